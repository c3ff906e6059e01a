"""Leftovers of dead runs of any cluster of this user, and the plan of their removal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.checks.preflight import first_look
from toolkit.cleanup.plan import State, plan_gc
from toolkit.cleanup.remains import PROBES, Kept, Remains, removable
from toolkit.cluster.session import Session
from toolkit.plan.steps import Plan


@dataclass(frozen=True)
class Collection:
    """The plan of removals, and similar things that are kept."""

    plan: Plan
    kept: tuple[Kept, ...]


def questions() -> tuple[tuple[str, str], ...]:
    """Return name and text of the queries that the session sends to each host."""
    return tuple((probe.name, probe.text) for probe in PROBES)


def collect(
    session: Session, days: float | None, state: bool, ask: Callable[[State], bool] = lambda state: False
) -> Collection:
    """Return the leftovers on the hosts without a change.

    Args:
        session: opened with ``questions()``.
        days: include folders of jobs that ended more than this number of days ago; None for none.
        state: include all folders of clusters, also recent ones and those with job records, but none that
            another host can use.
        ask: returns True to include a folder that would otherwise be kept.
    """
    remains = Remains(first_look(session), days)
    doubtful = [one for one in remains.states() if not removable(one)]
    granted = [one for one in doubtful if not one.elsewhere and (state or ask(one))]
    states = tuple(one for one in remains.states() if one in granted or removable(one))
    plan = plan_gc(remains.leftovers(states, tuple(granted)))
    return Collection(plan, remains.kept(states))
