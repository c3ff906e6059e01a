"""Plans that remove leftovers of dead runs: of one cluster (`check --fix`) or of all of them (`gc`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.checks.leftovers import abandoned, strays
from toolkit.checks.run import first_look
from toolkit.cleanup.plan import Leftovers, State, plan_fix
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
    plan = plan_fix("gc", remains.leftovers(states, at_once=bool(granted)))
    return Collection(plan, remains.kept(states))


def leftovers_plan(session: Session) -> Plan:
    """Return the plan that removes leftovers of earlier clusters and jobs; see ``toolkit.cleanup.plan``.

    Args:
        session: opened with ``toolkit.checks.preflight.questions()``.
    """
    scene = first_look(session)
    containers = {name: abandoned(seen) for name, seen in scene.seen.items()}
    return plan_fix(f"fix {session.inventory.cluster}", Leftovers(containers, strays(scene)))
