"""A few cases of the fault matrix; `make faults` has them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import LAB
from tests.faults.arena import Arena
from tests.faults.catalogue import FAULTS
from tests.faults.history import kind
from tests.faults.model import Case
from tests.faults.runner import Trial
from tests.faults.verdict import broken

pytestmark = pytest.mark.lab

# Fault, phase, host, launcher; the last one takes the cluster down and counts what is left of all of them.
# That a rank's signal ends the job everywhere, test_restarts.py and test_jobs.py show as well.
RARE = ("rank-kill", "rank-segv")
CASES = (
    ("rank-kill", "step", "box2", "mpirun"),
    ("rank-segv", "checkpoint", "box3", "torchrun"),
    ("lease-kill", "step", "box3", "mpirun"),
    ("command-kill", "launch", "box1", "mpirun"),
    ("link-cut-out", "step", "box2", "mpirun"),
)


@pytest.fixture(scope="module")
def arena(lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(lab / "hosts.yaml", tmp_path_factory.mktemp("faults"), LAB) as arena:
        yield arena


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(number, words, id="/".join(words), marks=[pytest.mark.rare] if words[0] in RARE else [])
        for number, words in enumerate(CASES)
    ],
)
def test_a_fault(arena: Arena, number: int, words: tuple[str, str, str, str]) -> None:
    fault, phase, host, launcher = words
    case = Case(0, number, fault, phase, host, launcher, 0.5, down=number == len(CASES) - 1)
    trial = Trial(arena, case)
    seen = trial.run()
    assert seen.injected, seen
    # Seconds are measured by `make faults`, on a machine that does nothing else.
    assert [line for line in broken(case, trial.answer, seen) if kind(line) != "late"] == []


def test_they_are_faults_of_the_matrix() -> None:
    answers = {fault.name: fault.answers for fault in FAULTS}
    assert all(phase in answers[fault] for fault, phase, _, _ in CASES)
