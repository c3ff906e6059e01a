"""The prediction: which link is named, what was measured, rows, verdict and advice."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.each import for_each
from toolkit.errors import BadInput
from toolkit.network.cost import Wire, fit_ring, fits, ring, wire_efficiency
from toolkit.network.links import Given, Network, assemble, measured_rates
from toolkit.network.measured import Measured, Point, parse_measured
from toolkit.predict.model import BUCKETS, Load, Row, counts, parse_probed, predict, verdict

DDP = BUCKETS["ddp"]


def load(parameters: float = 1.2e6, compute: float | None = 0.8, **changes: Any) -> Load:
    made = Load(round(parameters), round(parameters) * 4, "fp32", DDP, compute=compute)
    return replace(made, **changes)


def network(rate: float | None = 1e9, hosts: int = 4, slots: int = 1, **rates: float) -> Network:
    return assemble([(f"gpu{i + 1}", slots) for i in range(hosts)], Given(rate, rates))[0]


def measured(**data: Any) -> Measured:
    return parse_measured(json.dumps({"hosts": ["gpu1", "gpu2", "gpu3"], **data}), "net.json")


def pair(source: str, target: str, mbit: float, latency: float = 50) -> dict[str, Any]:
    return {"from": source, "to": target, "mbit": mbit, "latency_us": latency}


def all_pairs(mbit: dict[str, float]) -> list[dict[str, Any]]:
    """Every ordered pair is as fast as the slower end."""
    return [pair(a, b, min(mbit[a], mbit[b])) for a in mbit for b in mbit if a != b]


# --- which link holds the others back


def test_the_slow_link_is_named() -> None:
    assert network(gpu2=1e7).neck().text == "the link of gpu2 has a rate of 10 Mb/s"
    assert network().neck().text == "the link of every host has a rate of 1 Gb/s"
    assert network(gpu2=1e7, gpu4=1e7).neck().text == "the links of gpu2, gpu4 have a rate of 10 Mb/s"
    many = network(None, 6, **{f"gpu{i}": 1e9 if i == 1 else 1e8 for i in range(1, 7)})
    assert many.neck().text == "the links of gpu[2-6] have a rate of 100 Mb/s"
    assert network(gpu2=1e7).neck().rate == pytest.approx(1e7 * wire_efficiency())


def test_only_the_hosts_that_take_part_count() -> None:
    slow_third = network(gpu3=1e7)
    assert slow_third.first(2).neck().text == "the link of every host has a rate of 1 Gb/s"
    assert slow_third.first(3).neck().text == "the link of gpu3 has a rate of 10 Mb/s"
    with pytest.raises(ValueError, match="no link"):
        slow_third.first(1).neck()


HOSTS3 = [("gpu1", 1), ("gpu2", 1), ("gpu3", 1)]


def test_measured_pairs_tell_whose_link_it_is() -> None:
    found = measured(pairs=all_pairs({"gpu1": 941, "gpu2": 9.4, "gpu3": 941}))
    assert measured_rates(found) == pytest.approx({"gpu1": 941e6, "gpu2": 9.4e6, "gpu3": 941e6})
    made, source = assemble(HOSTS3, Given(), found)
    assert made.neck().text == "the link of gpu2 has a rate of 9.4 Mb/s"
    assert made.latency == pytest.approx(50e-6)
    assert source == "measured rates of 6 links between hosts (each direction is one link)"
    assert made.first(2).neck().text == "the link of gpu2 has a rate of 9.4 Mb/s"
    # With only two hosts, the slow end cannot be identified.
    two = measured(hosts=["gpu1", "gpu2"], pairs=all_pairs({"gpu1": 941, "gpu2": 9.4}))
    made, _ = assemble(HOSTS3[:2], Given(), two)
    assert made.neck().text == "the link between gpu1 and gpu2 has a rate of 9.4 Mb/s"


def test_a_slow_way_between_fast_hosts() -> None:
    rows = all_pairs({"gpu1": 941, "gpu2": 941, "gpu3": 941})
    slow = [r | {"mbit": 90} if (r["from"], r["to"]) == ("gpu2", "gpu3") else r for r in rows]
    made, _ = assemble(HOSTS3, Given(), measured(pairs=slow))
    assert made.neck().text == "the link from gpu2 to gpu3 has a rate of 90 Mb/s"
    # The other way round is not on the ring's path.
    slow = [r | {"mbit": 90} if (r["from"], r["to"]) == ("gpu3", "gpu2") else r for r in rows]
    assert assemble(HOSTS3, Given(), measured(pairs=slow))[0].neck().rate == pytest.approx(941e6)


def test_a_link_that_is_slow_one_way() -> None:
    found = measured(pairs=[r | {"mbit": 90} if r["to"] == "gpu3" else r
                            for r in all_pairs({"gpu1": 941, "gpu2": 941, "gpu3": 941})])  # fmt: skip
    assert measured_rates(found)["gpu3"] == pytest.approx(90e6)


def test_what_if_one_link_were_another() -> None:
    found = measured(pairs=all_pairs({"gpu1": 941, "gpu2": 9.4, "gpu3": 941}))
    made, source = assemble(HOSTS3, Given(rates={"gpu2": 1e9}), found)
    assert made.neck().rate == pytest.approx(941e6)
    assert source.endswith("; rate from the command line for gpu2")
    # A rate for all applies to hosts without a measurement.
    made, _ = assemble([*HOSTS3, ("gpu4", 1)], Given(rate=1e8), found)
    assert [round(m.rate / 1e5) for m in made.members] == [9410, 94, 9410, 941]


def test_rates_that_are_lacking_or_for_nobody() -> None:
    with pytest.raises(BadInput) as caught:
        assemble(HOSTS3, Given(rates={"gpu1": 1e9, "gpu9": 1e9}))
    assert [str(problem) for problem in caught.value.problems] == [
        "--rate gpu9: this host is not one of the predicted hosts: gpu1, gpu2, gpu3",
        "gpu2, gpu3: the rate of the link is unknown; add --rate 1gbit or --rate gpu2=1gbit",
    ]


# --- the fit


def points(wire: Wire, ranks: int, sizes: tuple[int, ...] = (2**10, 2**16, 2**20, 2**26)) -> list[Point]:
    return [Point(size, ranks, ring(size, ranks, wire)) for size in sizes]


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("rate", [1e7, 9.4e8])
def test_a_ring_is_found_again(ranks: int, rate: float) -> None:
    fit = fit_ring(points(Wire(rate, 300e-6), ranks))
    assert fit is not None
    assert (fit.message, fit.rate) == (pytest.approx(300e-6, rel=1e-6), pytest.approx(rate, rel=1e-6))
    assert fit.worst < 1e-6 and fit.points == 4
    # a + b x bytes, as the fit promises: 2 (n - 1) messages, 2 (n - 1) / n of the bytes.
    assert ring(5e6, ranks, fit.wire) == pytest.approx(ring(5e6, ranks, Wire(rate, 300e-6)))


def test_a_fit_is_the_least_of_the_squares_of_relative_errors() -> None:
    noisy = [
        replace(p, seconds=p.seconds * (1.05 if i % 2 else 0.95))
        for i, p in enumerate(points(Wire(1e8, 1e-3), 4))
    ]
    fit = fit_ring(noisy)
    assert fit is not None

    def error(wire: Wire) -> float:
        return sum((ring(p.size, p.ranks, wire) / p.seconds - 1) ** 2 for p in noisy)

    best = error(fit.wire)
    for message, rate in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99)):
        assert error(Wire(fit.rate * rate, fit.message * message)) > best
    assert 0.03 < fit.worst < 0.08


def test_a_fit_never_goes_below_nothing() -> None:
    # Small ones faster than the rate allows, as out of a token bucket.
    fit = fit_ring([Point(10**5, 2, 0.0001), Point(10**6, 2, 0.8), Point(10**7, 2, 8.0)])
    assert fit is not None and fit.message == 0 and fit.rate > 0
    one = fit_ring([Point(10**6, 2, 0.8)])
    assert one is not None
    assert (one.message, one.rate) == (0, pytest.approx(1e7))
    assert fit_ring([]) is None
    assert fits([]) == {}
    assert set(fits([*points(Wire(1e8), 2), *points(Wire(1e8), 4)])) == {0, 2, 4}


def rows_of(wire: Wire, ranks: int) -> list[dict[str, Any]]:
    return [{"bytes": p.size, "ranks": p.ranks, "seconds": p.seconds} for p in points(wire, ranks)]


def test_measured_all_reduces_are_used() -> None:
    found = measured(
        allreduce=rows_of(Wire(8e8, 1e-3), 3),
        pairs=all_pairs(dict.fromkeys(("gpu1", "gpu2", "gpu3"), 1000.0)),
    )
    made, source = assemble(HOSTS3, Given(), found)
    assert source.startswith(
        "a ring model fitted to 4 measured all-reduces (error at most 0 %), 1 ms overhead per message; "
    )
    assert made.share == pytest.approx(0.8)
    work = load(compute=None, buckets=BUCKETS["horovod"])
    wires = [row.wire for row in predict(made, work).rows]
    assert wires[2] == pytest.approx(ring(4.8e6, 3, Wire(8e8, 1e-3)))
    # Two hosts were not measured: the same share of their links, the same cost of a message.
    assert wires[1] == pytest.approx(ring(4.8e6, 2, Wire(8e8, 1e-3)))


def test_a_part_of_the_measured_hosts() -> None:
    rates = {"gpu1": 1000.0, "gpu2": 1000.0, "gpu3": 10.0}
    found = measured(allreduce=rows_of(Wire(8e6, 1e-3), 3), pairs=all_pairs(rates))
    # gpu3's link held back the three; without it the same share of the others' is left.
    made, _ = assemble(HOSTS3[:2], Given(), found)
    assert (made.share, made.link.rate) == (pytest.approx(0.8), pytest.approx(8e8))
    # In another order, or with another host among them, it is not the ring that was measured.
    assert assemble(HOSTS3, Given(), found)[0].fits
    assert not assemble(HOSTS3[::-1], Given(), found)[0].fits
    assert not assemble([("new", 1), *HOSTS3], Given(1e9), found)[0].fits


def test_a_measured_ring_does_not_count_for_other_hosts_with_as_many_ranks() -> None:
    """Two hosts with two ranks each were measured; four hosts with one rank each also have four ranks."""
    pairs = all_pairs({"gpu1": 9400, "gpu2": 9400})
    found = measured(hosts=["gpu1", "gpu2"], allreduce=rows_of(Wire(9.4e9, 1e-5), 4), pairs=pairs)
    slow = {f"gpu{i}": 1e8 / wire_efficiency() for i in (3, 4, 5)}
    made, _ = assemble([(f"gpu{i}", 1) for i in range(1, 6)], Given(rates=slow), found)
    assert [made.first(count).link.rate for count in (2, 3, 4, 5)] == pytest.approx([9.4e9, 1e8, 1e8, 1e8])
    # With their own ranks, the measured hosts have the measured ring, also as a part of more hosts.
    made, _ = assemble([("gpu1", 2), ("gpu2", 2), ("gpu3", 2)], Given(rates={"gpu3": slow["gpu3"]}), found)
    assert made.first(2).link == Wire(pytest.approx(9.4e9), pytest.approx(1e-5))
    assert made.link.rate == pytest.approx(1e8)


def test_all_reduces_alone_are_enough() -> None:
    made, _ = assemble(HOSTS3, Given(), measured(allreduce=rows_of(Wire(9e6, 1e-3), 3)))
    assert made.share == pytest.approx(1)
    assert made.neck().text == "the link of every host has a rate of 9 Mb/s"


def test_all_reduces_inside_one_host_are_not_used_for_links_between_hosts() -> None:
    found = measured(hosts=["gpu1"], allreduce=rows_of(Wire(3e11, 1e-5), 4))
    with pytest.raises(BadInput, match="the rate of the link is unknown; add --rate 1gbit"):
        assemble([("gpu1", 4), ("gpu2", 4)], Given(), found)
    with_rate = assemble([("gpu1", 4), ("gpu2", 4)], Given(1e9), found)
    assert with_rate == assemble([("gpu1", 4), ("gpu2", 4)], Given(1e9))
    assert assemble([("gpu1", 4)], Given(), found)[0].slots == (4,)


def test_what_if_keeps_the_share_that_all_reduces_come_to() -> None:
    found = measured(
        allreduce=rows_of(Wire(8e6, 1e-3), 3), pairs=all_pairs({"gpu1": 1000, "gpu2": 10, "gpu3": 1000})
    )
    made, _ = assemble(HOSTS3, Given(rates={"gpu2": 1e9 / wire_efficiency()}), found)
    assert (made.fits, made.share) == ({}, pytest.approx(0.8))
    assert made.link.rate == pytest.approx(8e8)
    # A latency that the person gives takes the place of the measured one.
    made, _ = assemble(HOSTS3, Given(latency=0.5, overhead=0.0), found)
    assert (made.link.latency, made.link.overhead, made.link.rate) == (0.5, 0, pytest.approx(8e6))


def test_a_file_of_measurements() -> None:
    found = measured(
        pairs=[pair("gpu1", "gpu2", 941.2, 0)],
        allreduce=[{"bytes": 8, "ranks": 3, "seconds": 0.5, "busbw": 1}],
    )
    assert found.hosts == ("gpu1", "gpu2", "gpu3")
    assert (found.pairs[0].rate, found.pairs[0].latency) == (pytest.approx(941.2e6), 0)
    assert found.allreduce == (Point(8, 3, 0.5),)


@for_each(
    ("text", "messages"),
    [
        ("{", ["the file is not valid JSON"]),
        ("[]", ["the file should contain a mapping, found a list"]),
        ("{}", ["hosts: should be a list of different host names, found nothing"]),
        ('{"hosts": ["a", "a"]}', ["hosts: should be a list of different host names"]),
        ("[" * 100_000, ["the file is not valid JSON"]),
        ("9" * 5000, ["the file is not valid JSON"]),
        ('{"hosts": ["a", "-b"]}', ["hosts: should be a list of different host names"]),
        (
            '{"hosts": ["a"], "allreduce": [{"bytes": 1%s, "ranks": 2, "seconds": 1}]}' % ("0" * 400),
            ["the file is not valid JSON"],
        ),
        ('{"hosts": ["a", 1]}', ["hosts: should be a list of different host names"]),
        ('{"hosts": ["a", "b"]}', ["the file has no measurements: both pairs and allreduce are missing"]),
        (
            '{"hosts": ["a", "b"], "pairs": {}, "allreduce": 3}',
            ["pairs: should be a list", "allreduce: should be a list"],
        ),
        ('{"hosts": ["a", "b"], "pairs": [1]}', ["pairs/0: should be a mapping, found 1"]),
        (
            '{"hosts": ["a", "b"], "pairs": [{"from": "a", "to": "c", "mbit": 0, "latency_us": -1}, '
            '{"from": "b", "to": "b"}]}',
            [
                "pairs/0/to: should be one of a, b, found 'c'",
                "pairs/0/latency_us: should be a number from 1e-9 to 1e15, found -1",
                "pairs/0/mbit: should be a number from 1e-9 to 1e15, found 0",
                "pairs/1/to: should be a host other than 'from', found 'b'",
                "pairs/1/latency_us: should be a number from 1e-9 to 1e15, found nothing",
                "pairs/1/mbit: should be a number from 1e-9 to 1e15, found nothing",
            ],
        ),
        (
            '{"hosts": ["a"], "allreduce": [{"bytes": 1.5, "ranks": 1, "seconds": 0}, '
            '{"bytes": true, "ranks": 2, "seconds": 1e99}]}',
            [
                "allreduce/0/bytes: should be a whole number from 1 to 1e15, found 1.5",
                "allreduce/0/ranks: should be a whole number from 2 to 1e15, found 1",
                "allreduce/0/seconds: should be a number from 1e-9 to 1e15, found 0",
                "allreduce/1/bytes: should be a whole number from 1 to 1e15, found true",
                "allreduce/1/seconds: should be a number from 1e-9 to 1e15, found 1e+99",
            ],
        ),
        (
            '{"hosts": ["a"], "allreduce": [{"bytes": 1, "ranks": 2, "seconds": NaN}]}',
            ["the file is not valid JSON"],
        ),
    ],
)
def test_what_is_wrong_with_a_file_of_measurements(text: str, messages: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        parse_measured(text, "net.json")
    found = [str(problem) for problem in caught.value.problems]
    assert len(found) == len(messages)
    assert all(line.startswith(message) for line, message in zip(found, messages, strict=True)), found
    assert caught.value.exit_code == 2


# --- rows and verdict


def test_thirty_seconds_on_one_box_and_ninety_on_two() -> None:
    """The published example: one of the two has a port of 10 Mb/s."""
    two = network(hosts=2, gpu2=1e7)
    # 1.2 million parameters, 0.8 s a step: 30 s are 37.5 steps, and two hosts take half as many each.
    row = predict(two, load()).rows[1]
    assert row.step is not None
    assert 30 / 0.8 / 2 * row.step.most == pytest.approx(91.4, abs=0.5)
    assert 30 / 0.8 / 2 * row.step.likely == pytest.approx(84, abs=1)
    assert predict(two, load()).verdict == (
        "2 hosts would take 2.8 × as long as 1 host for the same samples, "
        "because the link of gpu2 has a rate of 10 Mb/s"
    )
    assert (
        predict(network(hosts=2), load()).verdict
        == "2 hosts would be 1.9 × as fast as 1 host (96 % of the ideal speedup)"
    )


def test_one_host_alone_is_what_all_else_is_measured_by() -> None:
    rows = predict(network(), load(batch=64)).rows
    assert [row.hosts for row in rows] == [1, 2, 3, 4]
    assert (rows[0].wire, rows[0].speedup, rows[0].efficiency, rows[0].neck) == (0, 1, 1, "")
    assert rows[0].throughput == pytest.approx(64 / 0.8)
    for row in rows:
        assert row.throughput == pytest.approx(row.ranks * 64 / row.step.likely)  # type: ignore[union-attr]
        assert row.efficiency == pytest.approx(row.speedup / row.hosts)  # type: ignore[operator]


def test_slots_are_counted_against_those_of_one_host() -> None:
    rows = predict(network(slots=4, hosts=2), load()).rows
    assert [row.ranks for row in rows] == [4, 8]
    assert 0 < rows[0].wire < 0.01 < rows[1].wire
    assert rows[1].efficiency == pytest.approx(rows[1].speedup / 2)  # type: ignore[operator]


@for_each("parameters", [1e5, 25.6e6, 340e6])
@for_each("hosts", [2, 5, 8])
def test_what_makes_it_better_and_worse(parameters: float, hosts: int) -> None:
    def speedup(rate: float = 1e9, size: float = parameters, compute: float = 0.3, slow: float = 0) -> float:
        rates = {"gpu2": slow} if slow else {}
        found = predict(network(rate, hosts, **rates), load(size, compute)).rows[-1].speedup
        assert found is not None
        return found

    assert speedup(1e10) > speedup() > speedup(1e8) > speedup(slow=1e7)
    assert speedup(size=parameters / 2) > speedup() > speedup(size=parameters * 2)
    assert speedup(compute=0.6) > speedup() > speedup(compute=0.15)
    assert speedup() <= hosts


def test_from_which_step_on_it_pays() -> None:
    row = predict(network(hosts=2, gpu2=1e7), load(compute=None)).rows[1]
    assert row.step is row.throughput is row.speedup is None
    assert row.even is not None and row.ninety is not None
    for compute, wanted in ((row.even, 1), (row.ninety, 1.8)):
        done = predict(network(hosts=2, gpu2=1e7), load(compute=compute)).rows[1].step
        assert done is not None
        # With nothing hidden, which is how these two are defined.
        assert 2 * compute / done.most == pytest.approx(wanted)


def test_ways_are_compared_and_half_the_bytes_take_half_the_time() -> None:
    row = predict(network(), load(25e6)).rows[-1]
    ways = {(way.algorithm, way.dtype): way.seconds for way in row.ways}
    assert len(ways) == 8
    assert ways["ring", "fp32"] == pytest.approx(row.wire)
    assert ways["ring", "fp16"] == pytest.approx(row.wire / 2, rel=0.01)
    assert ways["parameter-server", "fp32"] > 1.9 * ways["ring", "fp32"]
    assert ways["hierarchical", "fp32"] == pytest.approx(ways["ring", "fp32"])
    brain = predict(network(), load(25e6, dtype="bf16", size=50e6)).rows[-1]
    assert {way.dtype for way in brain.ways} == {"fp32", "bf16"}


def test_a_parameter_server_stands_where_its_link_is_fastest() -> None:
    def server(**rates: float) -> float:
        row = predict(network(1e9, 3, **rates), load(25e6)).rows[-1]
        return next(w.seconds for w in row.ways if (w.algorithm, w.dtype) == ("parameter-server", "fp32"))

    # 2 clients through 1 Gb/s, then through 10 Gb/s where each client's own link is the limit.
    assert server() == pytest.approx(2 * 2 * 0.8 / wire_efficiency(), rel=0.01)
    assert server(gpu2=1e10) == pytest.approx(2 * 0.8 / wire_efficiency(), rel=0.01)


@pytest.mark.parametrize(
    ("speedup", "efficiency", "line"),
    [
        (6.08, 0.76, "8 hosts would be 6.1 × as fast as 1 host (76 % of the ideal speedup)"),
        (
            1.5,
            0.19,
            "8 hosts would be 1.5 × as fast as 1 host (19 % of the ideal speedup), "
            "because gpu2's link is 10 Mb/s",
        ),
        (
            1 / 2.9,
            0.04,
            "8 hosts would take 2.9 × as long as 1 host for the same samples, because gpu2's link is 10 Mb/s",
        ),
        (
            1 / 290,
            0.001,
            "8 hosts would take 290 × as long as 1 host for the same samples, because gpu2's link is 10 Mb/s",
        ),
        (
            0.96,
            0.12,
            "8 hosts would take 1.04 × as long as 1 host for the same samples, "
            "because gpu2's link is 10 Mb/s",
        ),
        (1.01, 0.13, "8 hosts would be about as fast as 1 host, because gpu2's link is 10 Mb/s"),
        (0.99, 0.12, "8 hosts would be about as fast as 1 host, because gpu2's link is 10 Mb/s"),
    ],
)
def test_the_verdict_in_one_line(speedup: float, efficiency: float, line: str) -> None:
    row = Row(8, 8, 1, "gpu2's link is 10 Mb/s", None, 1, speedup, efficiency, None, None, ())
    assert verdict([row]) == line


def test_the_verdict_without_a_step_time() -> None:
    said = predict(network(hosts=2, gpu2=1e7), load(compute=None)).verdict
    assert said == (
        "2 hosts would be faster than 1 host if a step computes for more than 4.08 s (more than 36.7 s for "
        "90 % of the ideal speedup); the link of gpu2 has a rate of 10 Mb/s"
    )
    assert predict(network(hosts=1), load()).verdict.startswith("1 host sends no gradients over the network")
    fast = assemble([("a", 8), ("b", 8)], Given(1e13, inside=1e9))[0]
    assert (
        predict(fast, load(compute=None)).verdict
        == "2 hosts would be faster than 1 host at any compute time per step"
    )


def test_a_part_of_the_hosts_that_would_do_more() -> None:
    said = predict(network(1e10, 4, gpu2=1e8), load(138e6, 0.4))
    assert said.verdict == (
        "4 hosts would take 44.1 × as long as 1 host for the same samples, "
        "because the link of gpu2 has a rate of 100 Mb/s"
    )
    assert said.advice == (
        "the 3 hosts with the fastest links alone would be 1.5 × as fast as 1 host; add --exclude gpu2"
    )
    assert predict(network(1e10, 4, gpu4=1e8), load(138e6, 0.4)).advice.startswith(
        "the first 3 hosts alone would be 1.5 × as fast as 1 host"
    )
    # Where no part is worth more than one host, and where all of them are best, there is nothing to add.
    assert predict(network(1e9, 2, gpu2=1e7), load()).advice == ""
    assert predict(network(1e10, 4), load()).advice == ""


def test_how_many_hosts_are_looked_at() -> None:
    assert counts(3) == (1, 2, 3)
    assert counts(16) == tuple(range(1, 17))
    assert counts(100) == (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 100)


def test_what_a_probe_printed() -> None:
    line = '[box1 0] epoch 1 …toolkit-steptime {"parameters": 3, "gradients": {"bfloat16": 4, "float32": 4}, '
    line += '"seconds": 0.5, "least": 0.4, "most": 0.6, "steps": 10, "device": "cpu"}\n[box1 0] bye\n'
    found = parse_probed("toolkit-steptime {}\n" + line)
    assert found is not None
    assert (found.parameters, found.size, found.dtype, found.seconds) == (3, 8, "bf16", 0.5)
    assert parse_probed("[box1 0] nothing of the kind\n") is None
