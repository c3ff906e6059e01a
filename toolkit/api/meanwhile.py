"""What commands get ready on this machine while their hosts answer: to import takes as long as to connect."""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.cluster.session import Session
    from toolkit.core.code import CodeTree
    from toolkit.hostsfile.inventory import Inventory

_PLANS = ("toolkit.cluster.reachability", "toolkit.cluster.layout", "toolkit.plan.execute")
_RUN = (
    "toolkit.data.manage",
    "toolkit.jobs.send_code",
    "toolkit.jobs.control",
    "toolkit.jobs.logs",
    "toolkit.jobs.build",
)
_LOOKS = ("toolkit.checks.preflight",)
_UP = (
    "toolkit.checks.preflight",
    "toolkit.jobs.control",
    "toolkit.lifecycle.port_race",
    "toolkit.lifecycle.planning",
    "toolkit.plan.precheck",
)


def fault_questions() -> tuple[tuple[str, str], ...]:
    """Return the questions of ``toolkit.checks.preflight``, which need not be here before a host is there."""
    from toolkit.checks.preflight import questions

    return questions()


def before_up(session: Session) -> None:
    """Get ready for a plan of `up`, and ask this machine's engine which image is meant."""
    _import(_PLANS + _UP)
    _ = session.local_image


class BeforeRun:
    """Gets ready for a job that is started and followed, and reads the code that goes with it.

    Args:
        workdir: local folder; None sends nothing.
        looks: it looks for faults of the hosts first, which takes to know this machine's image.
    """

    def __init__(self, workdir: Path | None, looks: bool = True) -> None:
        self._workdir, self._looks = workdir, looks
        self._tree: CodeTree | None = None
        self._inventory: Inventory | None = None
        # Apart from the rest, as it may be long: what is wrong with the cluster is said before.
        self._reading = threading.Thread(target=self._read, name="code", daemon=True)

    @property
    def tree(self) -> CodeTree | None:
        """The code, waited for while it is read; None where nothing is sent, or where it cannot be read."""
        if self._reading.ident is not None:
            self._reading.join()
        return self._tree

    def __call__(self, session: Session) -> None:
        if self._workdir is not None:
            self._inventory = session.inventory
            self._reading.start()
        _import(_PLANS + _RUN)
        if self._looks:
            _import(_LOOKS)
            _ = session.local_image

    def _read(self) -> None:
        from toolkit.jobs.build import read_code

        # It is met again where it is read for the plan.
        with suppress(BaseException):
            if self._workdir is not None and self._inventory is not None:
                self._tree = read_code(self._inventory, self._workdir)


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        import_module(name)
