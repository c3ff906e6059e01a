"""A few of the random schedules that `make fuzz KIND=schedules` runs at length."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import broken_builds, schedules
from tests.fuzz.kernel import end_workers
from tests.fuzz.schedules import Broken, Event, Rank, Schedule

ROOT = Path(__file__).resolve().parents[2]
SEED, COUNT = 1, 100
REPEAT = """
import random
from tests.fuzz import kernel, schedules
made = []
schedules.World.judge_survivors = lambda self, status, then=schedules.World.judge_survivors: (
    then(self, status), made.append(list(self.trace)))
for number in range(12):
    schedules.run(schedules.make(random.Random(f"1/schedules/{number}")))
print(made)
"""


@pytest.fixture(scope="module", autouse=True)
def _hosts() -> Iterator[None]:
    yield
    schedules.close()


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    yield
    end_workers()


def test_no_schedule_breaks_an_invariant() -> None:
    outcomes: Counter[str] = Counter()
    for number in range(COUNT):
        schedule = schedules.make(random.Random(f"{SEED}/schedules/{number}"))
        try:
            outcomes[schedules.run(schedule)] += 1
        except Broken as error:
            pytest.fail(f"make fuzz SEED={SEED} FIRST={number} N=1 KIND=schedules\n{schedule!r}\n{error}")
    # Every end is among them, or the schedules would not be worth much.
    assert {"succeeded", "succeeded restarted", "failed", "stopped", "timeout"} <= outcomes.keys(), outcomes


def test_a_schedule_is_repeated_by_its_seed() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", REPEAT],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1] and "starts" in said[0]


@pytest.mark.parametrize("build", broken_builds.BUILDS, ids=lambda build: f"{build.invariant}-{build.file}")
def test_a_broken_build_is_noticed(build: broken_builds.Build) -> None:
    count, line = broken_builds.notice(build)
    assert count <= build.schedules and f"invariant {build.invariant}:" in line


def test_a_failing_schedule_is_printed_with_its_events() -> None:
    schedule = Schedule(
        7, ("gpu1",), ranks={(0, 0): Rank(0.5, 3)}, events=(Event(0.2, "freeze", "gpu1", 0.5),)
    )
    shown = repr(schedule)
    assert "'seed': 7" in shown and "rank 0 of attempt 0: Rank(lasts=0.5, code=3" in shown
    assert "at 0.20 s: Event(at=0.2, what='freeze', host='gpu1', value=0.5)" in shown


def test_a_lost_host_whose_launch_is_gone_ends_its_ranks_once_it_is_back() -> None:
    ranks = {(0, 0): Rank(1.0, 7), (0, 1): Rank(2.0)}
    events = (Event(1.05, "freeze", "gpu2", 5.0), Event(1.2, "kill job.launch", "gpu2"))
    assert schedules.run(Schedule(1, ("gpu1", "gpu2"), ranks=ranks, events=events)) == "failed"


def exit_code(schedule: Schedule) -> int:
    world = schedules.World(schedule, schedules.cluster_of(schedules.PROGRAMS))
    world.run()
    code: int = world.status()["exit_code"]
    return code


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_blames_another_waits_for_the_one_that_it_means(seed: int) -> None:
    # Its host is slow, so that main hears first of those that lost the connection to it.
    ranks = {(0, 0): Rank(3.0, peers="blame"), (0, 1): Rank(1.5, 7, peers="blame")}
    events = (Event(0.5, "late", "gpu2", 1.0),)
    assert exit_code(Schedule(seed, ("gpu1", "gpu2"), ranks=ranks, events=events)) == 7


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_blames_a_rank_that_is_never_heard_of_fails_the_job_itself(seed: int) -> None:
    ranks = {(0, 0): Rank(3.0, peers="blame"), (0, 1): Rank(3.0, peers="blame")}
    events = (Event(1.0, "cut", "gpu2", 40.0), Event(1.1, "kill rank", "gpu2"))
    assert exit_code(Schedule(seed, ("gpu1", "gpu2"), ranks=ranks, events=events)) in (1, 69)


def test_the_first_of_two_failures_decides_the_exit_code() -> None:
    ranks = {(0, 0): Rank(1.0, 5, peers="free"), (0, 1): Rank(4.5, 6, ("ignore",), peers="free")}
    assert exit_code(Schedule(1, ("gpu1", "gpu2"), ranks=ranks)) == 5


def killed_after(seconds: float, schedule: Schedule) -> list[float]:
    """Return how long after that moment the ranks were killed."""
    world = schedules.World(schedule, schedules.cluster_of(schedules.PROGRAMS))
    world.run()
    return [float(line.split()[0]) - seconds for line in world.trace if "SIGKILL" in line]


def test_a_stop_gives_ranks_the_whole_grace() -> None:
    ranks = {(0, rank): Rank(60.0, term=("ignore",), peers="free") for rank in (0, 1)}
    events = (Event(1.0, "stop", "gpu1", ("SIGTERM", None)),)
    killed = killed_after(1.0, Schedule(1, ("gpu1", "gpu2"), grace=6.0, ranks=ranks, events=events))
    assert len(killed) == 2 and all(6.0 <= seconds < 7.0 for seconds in killed), killed


@pytest.mark.parametrize("seed", range(5))
def test_a_launch_that_fails_leaves_ranks_of_other_hosts_two_seconds(seed: int) -> None:
    ranks = {(0, 0): Rank(1.0, 3, peers="free"), (0, 1): Rank(60.0, term=("ignore",), peers="free")}
    killed = killed_after(1.0, Schedule(seed, ("gpu1", "gpu2"), grace=6.0, ranks=ranks))
    assert len(killed) == 1 and 2.0 <= killed[0] < 3.0, killed
