"""bench_algorithms.py on a communicator of one rank and a clock of its own; MPI itself is for the lab."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from toolkit.container.bench import algorithms, allreduce, network

DEFAULT, RING, FINE = "0:0", "5:262144", "5:65536"
SIZES = [1024, 8192, 65536]


class Clock:
    """Goes on only while an all-reduce is done; sums of such times are exact."""

    def __init__(self) -> None:
        self.now = 8.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


class Alone:
    """A communicator of one rank."""

    rank = 0

    def Barrier(self) -> None:
        """Return at once: this world has one rank."""

    def bcast(self, value: Any) -> Any:
        return value

    def allreduce(self, value: float, op: object) -> float:
        return value


class Ways:
    """All-reduces with given durations: seconds at the smallest size, then in proportion."""

    def __init__(self, clock: Clock, **seconds: float) -> None:
        self.clock, self.called = clock, list[tuple[str, int]]()
        self.seconds = {word.removeprefix("w").replace("_", ":"): s for word, s in seconds.items()}
        self.ways = {word: self.way(word) for word in self.seconds}

    def way(self, word: str) -> Callable[[int], Callable[[], None]]:
        def of_size(size: int) -> Callable[[], None]:
            def once() -> None:
                self.called.append((word, size))
                self.clock.now += self.seconds[word] * size / SIZES[0]

            return once

        return of_size


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Any:
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(MAX="max")))
    monkeypatch.setattr(algorithms, "time", clock)
    return algorithms


def measured(rows: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Return the algorithms that have a time, by size."""
    found: dict[int, list[str]] = {}
    for row in rows:
        found.setdefault(row["bytes"], []).append(row["algorithm"])
    return found


def test_the_slowest_is_left_out_first_but_never_the_default(bench: Any) -> None:
    assert bench.worst({DEFAULT: 9.0, RING: 1.0, FINE: 2.0}) == FINE
    assert bench.worst({DEFAULT: 9.0, RING: 2.0, FINE: 1.0}) == RING
    # Of equally slow ones that named last.
    assert bench.worst({DEFAULT: 9.0, RING: 1.02, FINE: 1.0}) == FINE
    assert bench.worst({DEFAULT: 9.0, FINE: 1.0, RING: 1.0}) == RING


def test_with_time_enough_all_are_timed_at_all_sizes(bench: Any, clock: Clock) -> None:
    ways = Ways(clock, w0_0=1 / 64, w5_262144=1 / 128, w5_65536=1 / 32)
    rows = bench.time_all(Alone(), ways.ways, SIZES, 600.0)
    assert measured(rows) == {size: [DEFAULT, RING, FINE] for size in SIZES}
    assert rows[0] == {"algorithm": DEFAULT, "bytes": 1024, "seconds": 1 / 64}
    assert rows[-1] == {"algorithm": FINE, "bytes": 65536, "seconds": 2.0}


def test_they_take_turns_and_short_ones_take_more_of_them(bench: Any, clock: Clock) -> None:
    ways = Ways(clock, w0_0=1 / 64, w5_65536=1 / 32)
    bench.time_all(Alone(), ways.ways, SIZES[:2], 600.0)
    words = [word for word, size in ways.called if size == SIZES[0]]
    # Once before it counts, then until the quicker one has been timed for a tenth of a second.
    assert words == [DEFAULT, FINE] * (1 + 7)
    # The second size takes long enough alone, so its first time counts.
    assert [word for word, size in ways.called if size == SIZES[1]] == [DEFAULT, FINE] * bench.ROUNDS


def test_very_short_ones_are_not_repeated_for_ever(bench: Any, clock: Clock) -> None:
    ways = Ways(clock, w0_0=2.0**-20)
    bench.time_all(Alone(), ways.ways, SIZES[:1], 600.0)
    assert len(ways.called) == 1 + bench.MOST_ROUNDS


def test_the_median_counts(bench: Any, clock: Clock) -> None:
    times = iter([4.0, 1.0, 0.5, 2.0])

    def once() -> None:
        clock.now += next(times)

    rows = bench.time_all(Alone(), {DEFAULT: lambda size: once}, SIZES[:1], 600.0)
    assert rows == [{"algorithm": DEFAULT, "bytes": 1024, "seconds": 1.0}]  # the first was not counted


def test_under_a_small_budget_the_slowest_are_left_out(bench: Any, clock: Clock) -> None:
    ways = Ways(clock, w0_0=1 / 16, w5_262144=1 / 32, w5_65536=1 / 8)
    rows = bench.time_all(Alone(), ways.ways, SIZES, 8.0)
    found = measured(rows)
    assert found[SIZES[0]] == [DEFAULT, RING, FINE]
    # 3 rounds of 1.75 s are more than half of what is left; without the slowest they are not.
    assert found[SIZES[1]] == [DEFAULT, RING]
    assert found[SIZES[2]] == [DEFAULT]
    assert clock.now <= 8.0 + 8.0


def test_the_default_stays_though_it_is_the_slowest(bench: Any, clock: Clock) -> None:
    ways = Ways(clock, w0_0=1 / 8, w5_262144=1 / 32, w5_65536=1 / 16)
    found = measured(bench.time_all(Alone(), ways.ways, SIZES[:2], 2.2))
    assert found[SIZES[1]] == [DEFAULT]


def test_sizes_end_where_the_budget_cannot_hold_the_default(bench: Any, clock: Clock) -> None:
    ways = Ways(clock, w0_0=1 / 8, w5_65536=1 / 64)
    assert list(measured(bench.time_all(Alone(), ways.ways, SIZES, 1.5))) == SIZES[:1]
    assert not any(size > SIZES[0] for _, size in ways.called)


def test_a_size_that_takes_all_the_time_ends_after_the_turn(bench: Any, clock: Clock) -> None:
    ways = Ways(clock, w0_0=5.0, w5_65536=5.0)
    rows = bench.time_all(Alone(), ways.ways, SIZES, 8.0)
    assert measured(rows) == {SIZES[0]: [DEFAULT, FINE]}
    assert len(ways.called) == 4


def test_without_time_nothing_is_timed(bench: Any, clock: Clock) -> None:
    ways = Ways(clock, w0_0=1.0, w5_262144=1.0, w5_65536=1.0)
    assert bench.time_all(Alone(), ways.ways, SIZES, 0.0) == []
    assert bench.time_all(Alone(), ways.ways, SIZES, -1.0) == []
    assert ways.called == []


@pytest.mark.parametrize("total", [[3.0, 4.0, 4.0], [4.0, 4.0, 3.0], [3.0, 4.0, 5.0]])
def test_a_wrong_sum_is_in_the_message(total: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = SimpleNamespace(ones=lambda *_: [], empty=lambda *_: total)
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    comm = SimpleNamespace(size=4, Allreduce=lambda mine, found: None)
    wrong = total[0] if total[0] != 4 else total[-1]
    with pytest.raises(ArithmeticError, match=f"returned the sum {wrong}, not 4"):
        network.mpi_allreduce(comm)(12)()


class _Stopped(Exception):
    pass


@pytest.mark.parametrize("start", [lambda: network.torch_allreduce("nccl"), allreduce.main])
def test_a_rank_uses_the_only_mig_device_that_it_sees(
    start: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOCAL_RANK is no index of it."""
    torch = MagicMock()
    torch.cuda.device_count.return_value = 1
    torch.device.side_effect = lambda *device: device
    torch.distributed.init_process_group.side_effect = _Stopped
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    rendezvous = SimpleNamespace(rendezvous=lambda url: iter([("store", 2, 3)]))
    monkeypatch.setitem(sys.modules, "torch.distributed.rendezvous", rendezvous)
    monkeypatch.setattr(allreduce, "agree", lambda *_: True)
    for name, value in {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(_Stopped):
        start()
    torch.cuda.set_device.assert_called_once_with(("cuda", 0))


class Store:
    """The part of torch.distributed.Store that the ranks use, for threads."""

    def __init__(self) -> None:
        self.values, self.changed = dict[str, str](), threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, 20), f"no rank has set {key}"
            return self.values[key].encode()

    def add(self, key: str, number: int) -> int:
        with self.changed:
            self.values[key] = str(int(self.values.get(key, "0")) + number)
            return int(self.values[key])


@pytest.mark.parametrize(
    ("gpus", "without"),
    [
        ((True, True, True), []),
        ((False, False), []),
        ((False,), []),
        ((True, False, True), [1]),
        ((False, True), [0]),
    ],
)
def test_ranks_with_different_backends_do_not_wait_for_each_other(
    gpus: tuple[bool, ...], without: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    store, size, found = Store(), len(gpus), dict[int, bool]()

    def agree(rank: int) -> None:
        found[rank] = allreduce.agree(store, rank, size, gpus[rank])

    threads = [threading.Thread(target=agree, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(size), not without)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" on ")[0] for line in lines] == [f"rank {rank}" for rank in without]
    assert all(f"sees no GPU, but {sum(gpus)} of {size} ranks see a GPU" in line for line in lines)


def test_ranks_that_see_different_devices_exit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = MagicMock()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    rendezvous = SimpleNamespace(rendezvous=lambda url: iter([("store", 0, 2)]))
    monkeypatch.setitem(sys.modules, "torch.distributed.rendezvous", rendezvous)
    monkeypatch.setattr(allreduce, "agree", lambda *_: False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert allreduce.main() == 1
    assert not torch.distributed.init_process_group.called
