"""Leftovers of dead runs of any cluster of this user, and the plan of their removal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.checks.run import first_look
from toolkit.cleanup.plan import State, plan_gc
from toolkit.cleanup.remains import PROBES, Kept, Remains, removable
from toolkit.cluster.session import Session
from toolkit.plan.steps import Plan


@dataclass(frozen=True)
class Collection:
    """What is to be removed, and what looks like it and stays."""

    plan: Plan
    kept: tuple[Kept, ...]


def questions() -> tuple[tuple[str, str], ...]:
    """Return what the hosts are to be asked when they are met."""
    return tuple((probe.name, probe.text) for probe in PROBES)


def collect(
    session: Session, days: float | None, state: bool, ask: Callable[[State], bool] = lambda state: False
) -> Collection:
    """Return what is left over on the hosts; changes nothing.

    Args:
        session: opened with ``questions()``.
        days: folders of jobs that ended so long ago are left over as well; None for none.
        state: clusters' folders go whatever they hold and however young they are.
        ask: whether one that would stay otherwise may go.
    """
    remains = Remains(first_look(session), days)
    doubtful = [one for one in remains.states() if not removable(one)]
    granted = [one for one in doubtful if state or ask(one)]
    states = tuple(one for one in remains.states() if one in granted or removable(one))
    plan = plan_gc(remains.leftovers(states, at_once=bool(granted)))
    return Collection(plan, remains.kept(states))
