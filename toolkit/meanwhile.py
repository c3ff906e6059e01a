"""What commands get ready on this machine while their hosts answer: to import takes as long as to connect."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.api import Session

_PLANS = ("toolkit.explore", "toolkit.plan.layout", "toolkit.execute")
_RUN = (
    "toolkit.datasets",
    "toolkit.effects.tree",
    "toolkit.executors.code",
    "toolkit.jobs",
    "toolkit.logs",
    "toolkit.plan.job",
)
_UP = ("toolkit.preflight", "toolkit.jobs", "toolkit.race", "toolkit.plan.up", "toolkit.executors.forecast")


def fault_questions() -> tuple[tuple[str, str], ...]:
    """Return the questions of ``toolkit.preflight``, whose checks need not be here before a host is there."""
    from toolkit.preflight import questions

    return questions()


def before_up(session: Session) -> None:
    """Get ready for a plan of `up`, and ask this machine's engine which image is meant."""
    _import(_PLANS + _UP)
    if session.inventory.pull == "never":
        _ = session.local_image


def before_run(session: Session) -> None:
    """Get ready for a job that is started and followed."""
    _import(_PLANS + _RUN)


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        import_module(name)
