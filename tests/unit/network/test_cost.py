"""Formulas of the cost model against values worked out by hand, and what must hold for any value."""

from __future__ import annotations

import itertools

import pytest

from tests.unit.each import for_each
from toolkit.network.cost import (
    DTYPE_BYTES,
    Wire,
    allreduce,
    halving_doubling,
    open_mpi_choice,
    parameter_server,
    recursive_doubling,
    ring,
    wire_efficiency,
)
from toolkit.predict.model import BUCKETS, MODELS, Buckets, Step, each_wire, fill, step, whole_wire

MEGABYTE_A_SECOND = Wire(8e6)
SLOW = Wire(8e6, latency=0.010, overhead=0.005)


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-9)


def test_the_share_of_a_link_that_is_payload() -> None:
    # 20 IPv4, 20 TCP, 12 timestamps inside the packet; 14 header, 4 checksum, 8 preamble, 12 gap around it.
    assert wire_efficiency() == near(1448 / 1538) == pytest.approx(0.9415, abs=5e-5)
    assert wire_efficiency(9000) == near(8948 / 9038) == pytest.approx(0.9900, abs=5e-5)
    # What a traffic shaper counts: the frame's header alone.
    assert wire_efficiency(1500, frame=14) == near(1448 / 1514)


def test_a_ring_by_hand() -> None:
    # 4 ranks: 2 x 3 steps of a quarter of 1 MB, 0.25 s each.
    assert ring(1e6, 4, MEGABYTE_A_SECOND) == near(1.5)
    assert ring(1e6, 4, SLOW) == near(1.5 + 6 * 0.015)
    assert ring(1e6, 2, MEGABYTE_A_SECOND) == near(1.0)


def test_resnet_50_on_8_hosts() -> None:
    size = MODELS["resnet50"].parameters * DTYPE_BYTES["fp32"]
    # 2 (n - 1) / n x S / B = 1.75 x 102.2 MB x 8 / 1 Gb/s, of which 94.15 % is payload.
    bare = ring(size, 8, Wire(1e9))
    real = ring(size, 8, Wire(1e9 * wire_efficiency()))
    assert bare == pytest.approx(1.431, abs=5e-4)
    assert real == pytest.approx(1.520, abs=5e-4)
    assert bare < 1.49 < real
    assert ring(size, 8, Wire(1e10 * wire_efficiency())) == near(real / 10)
    assert ring(size / 2, 8, Wire(1e9)) == near(bare / 2)


def test_doubling_by_hand() -> None:
    assert recursive_doubling(1e6, 8, MEGABYTE_A_SECOND) == near(3)
    assert recursive_doubling(1e6, 8, SLOW) == near(3 * 1.015)
    # The fifth rank hands in and is handed the result.
    assert recursive_doubling(1e6, 5, MEGABYTE_A_SECOND) == near(2 + 2)


def test_halving_and_doubling_by_hand() -> None:
    # 1/2 + 1/4 + 1/8 of the bytes, twice, in 2 x 3 messages.
    assert halving_doubling(1e6, 8, MEGABYTE_A_SECOND) == near(1.75)
    assert halving_doubling(1e6, 8, SLOW) == near(1.75 + 6 * 0.015)
    # Three ranks as two, and three messages of half, half and all of the bytes for the third.
    assert halving_doubling(1e6, 3, SLOW) == near(1 + 2 + (2 + 3) * 0.015)


def test_a_parameter_server_by_hand() -> None:
    # 3 clients push 1 MB each through its link, then pull as much.
    assert parameter_server(1e6, 3, MEGABYTE_A_SECOND) == near(6)
    assert parameter_server(1e6, 3, SLOW) == near(6 + 2 * 0.010 + 6 * 0.005)
    assert parameter_server(1e6, 0, SLOW) == 0


ONE_RANK = [ring, recursive_doubling, halving_doubling]


@pytest.mark.parametrize("formula", ONE_RANK)
def test_one_rank_sends_nothing(formula: object) -> None:
    assert formula(1e6, 1, SLOW) == 0  # type: ignore[operator]


@for_each(
    ("ranks", "size", "algorithm"),
    [
        (2, 4, "ring"),
        (2, 1024, "recursive-doubling"),
        (3, 5000, "ring"),
        (3, 10_000, "recursive-doubling"),
        (3, 65_536, "ring"),
        (3, 262_144, "halving-doubling"),
        (4, 8, "ring"),
        (4, 8191, "recursive-doubling"),
        (4, 8192, "halving-doubling"),
        (8, 8, "recursive-doubling"),
        (8, 25e6, "halving-doubling"),
        (16, 63, "ring"),
        (31, 4096, "halving-doubling"),
        (32, 127, "ring"),
        (32, 128, "halving-doubling"),
        (64, 262_143, "recursive-doubling"),
        (1024, 1e6, "halving-doubling"),
    ],
)
def test_the_algorithm_that_open_mpi_selects(ranks: int, size: float, algorithm: str) -> None:
    assert open_mpi_choice(size, ranks) == algorithm


ALGORITHMS = ("ring", "hierarchical", "halving-doubling", "recursive-doubling", "open-mpi")
INSIDE = Wire(64e9, 5e-6)
SHAPES = [(1, 1), (1, 1, 1), (1, 1, 1, 1), (2, 2), (4, 4, 4), (3, 1), (8,) * 8, (1,) * 13, (4,)]


@for_each("algorithm", ALGORITHMS)
@for_each("slots", SHAPES)
def test_more_bytes_more_latency_and_slower_links_take_longer(algorithm: str, slots: tuple[int, ...]) -> None:
    def seconds(size: float, rate: float, latency: float) -> float:
        return allreduce(algorithm, size, slots, Wire(rate, latency), INSIDE)

    across = len(slots) > 1
    # Within one algorithm: Open MPI changes to a better one at 256 KiB.
    for size, rate, latency in itertools.product((1e6, 1e8), (1e7, 1e9), (1e-5, 1e-3)):
        base = seconds(size, rate, latency)
        assert base > 0
        assert seconds(size * 2, rate, latency) > base
        assert (seconds(size, rate / 2, latency) > base) is across
        assert (seconds(size, rate, latency * 2) > base) is across


@for_each("algorithm", ALGORITHMS)
@for_each("slots", [shape for shape in SHAPES if len(shape) > 1])
def test_nothing_beats_the_bound(algorithm: str, slots: tuple[int, ...]) -> None:
    """2 (n - 1) / n of the bytes must leave each host and come to it, however they go round."""
    hosts = len(slots)
    bound = 2 * (hosts - 1) / hosts * 1e8 * 8 / 1e9
    assert allreduce(algorithm, 1e8, slots, Wire(1e9), INSIDE) >= bound * (1 - 1e-9)


def test_a_ring_grows_with_every_host_and_stays_below_twice_the_bytes() -> None:
    times = [allreduce("ring", 1e8, (1,) * n, Wire(1e9), INSIDE) for n in range(1, 40)]
    assert times == sorted(times)
    assert times[-1] < 2 * 1e8 * 8 / 1e9


def test_hosts_with_several_ranks() -> None:
    link, inside = Wire(1e9), Wire(8e9)
    # One ring through 8 ranks, 14 steps of an eighth, at the pace of the link.
    assert allreduce("ring", 1e8, (4, 4), link, inside) == near(14 / 8 * 0.8)
    # 2 x 3/4 of the bytes inside, then 2 x 1/2 over the link.
    assert allreduce("hierarchical", 1e8, (4, 4), link, inside) == near(1.5 * 0.1 + 0.8)
    assert allreduce("halving-doubling", 1e8, (4, 4), link, inside) == near(1.5 * 0.1 + 0.8)
    # Four ranks send everything through one link, after two rounds inside.
    assert allreduce("recursive-doubling", 1e8, (4, 4), link, inside) == near(2 * 0.1 + 4 * 0.8)
    # Inside a host slower than the link between hosts, that is what holds up the ring.
    assert allreduce("ring", 1e8, (2, 2), Wire(1e10), Wire(1e9)) == near(6 / 4 * 0.8)
    # One rank a host never goes that way.
    assert allreduce("ring", 1e8, (1, 1), Wire(1e10), Wire(1e9)) == near(0.08)


def test_buckets_hold_every_byte_in_the_order_of_the_backward_pass() -> None:
    assert fill(100, Buckets("x", 40, 10)) == ((10, 1), (40, 2), (10, 1))
    assert fill(100, Buckets("x", 40)) == ((40, 2), (20, 1))
    assert fill(80, Buckets("x", 40)) == ((40, 2),)
    assert fill(5, Buckets("x", 40, 10)) == ((5, 1),)
    assert fill(0, Buckets("x", 40, 10)) == ()
    resnet = fill(102_228_128, BUCKETS["ddp"])
    assert resnet[:2] == ((2**20, 1), (25 * 2**20, 3))
    assert sum(size * count for size, count in resnet) == 102_228_128
    assert fill(102_228_128, BUCKETS["horovod"]) == ((102_228_128, 1),)


def test_a_step_by_hand() -> None:
    # 3 s of computing: 1 s forward, then two halves of the backward pass of 1 s each.
    done = step(3, ((10, 2),), (4,))
    assert (done.least, done.likely, done.most) == (near(8), near(2 + 4 + 4), near(11))
    # The first bucket has arrived long before the second is ready: only the last one shows.
    done = step(3, ((9, 1), (9, 1)), (0.1, 0.2))
    assert (done.least, done.likely, done.most) == (near(3), near(3.2), near(3.3))
    assert step(3, (), ()) == step(3, ((10, 1),), (0,)) == step(3, ((5, 2),), (0,)) == Step(3, 3, 3)


COMPUTES, RATES, SIZES = (0.01, 0.3, 5), (1e7, 1e9, 1e11), (1e4, 1e7, 1e9)


@for_each("name", BUCKETS)
@for_each(("compute", "rate", "size"), list(itertools.product(COMPUTES, RATES, SIZES)))
def test_the_middle_lies_between_the_bounds_and_grows_with_what_it_is_made_of(
    name: str, compute: float, rate: float, size: float
) -> None:
    runs = fill(size, BUCKETS[name])
    times = each_wire(runs, lambda b: ring(b, 4, Wire(rate, 1e-4)))
    done = step(compute, runs, times)
    assert done.least <= done.likely * (1 + 1e-12)
    assert done.likely <= done.most * (1 + 1e-12)
    assert step(compute * 1.1, runs, times).likely > done.likely
    assert step(compute, runs, [t * 1.1 for t in times]).likely > done.likely
    # One bucket after the other, as docs/explanation/prediction.md tells it.
    arrived = ready = 0.0
    for (each, count), takes in zip(runs, times, strict=True):
        for _ in range(count):
            ready += each
            arrived = max(arrived, compute / 3 + compute * 2 / 3 * ready / size) + takes
    assert done.likely == pytest.approx(arrived)
    assert whole_wire(runs, times) == pytest.approx(done.most - compute)


def test_every_model_says_where_its_figures_are_from() -> None:
    for name, model in MODELS.items():
        assert name == model.name == name.lower()
        assert model.source.startswith("https://")
        if model.published is not None:
            assert model.published.source.startswith("https://")
            assert 0.05 < model.published.seconds < 2
    # 219 images a second, 64 at a time.
    assert MODELS["resnet50"].published.seconds == pytest.approx(0.2922, abs=1e-4)  # type: ignore[union-attr]
