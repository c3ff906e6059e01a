"""Which cluster it is, how its hosts are met, and who is told what: what all parts of ``Cluster`` share."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.api.executors import EXECUTORS
from toolkit.api.notices import Notice, Topic
from toolkit.cluster.session import Questions, Session
from toolkit.core.finding import Finding
from toolkit.data.plan import question
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import load_inventory
from toolkit.plan.execute import Listener

if TYPE_CHECKING:
    from toolkit.remote.ssh import Trace

Warn = Callable[[Finding], None]


class ToolkitWarning(UserWarning):
    """Something about the hosts or the job that does not keep it from running."""


def _warn(finding: Finding) -> None:
    host = f"{finding.host}: " if finding.host else ""
    text = f"{host}{finding.subject}: {finding.what}; fix: {finding.fix}"
    warnings.warn(text, ToolkitWarning, stacklevel=_depth_of_caller())


def _depth_of_caller() -> int:
    """Return the level of the first frame outside of toolkit, as ``_warn`` counts them."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("toolkit."):
        depth, frame = depth + 1, frame.f_back
    return depth


def _hear_nothing(event: object) -> None:
    pass


class Connection:
    """A cluster, by its hosts file.

    Args:
        hosts: path of a hosts.yaml, or what ``load_inventory`` has returned.
        listen: called with each ``toolkit.plan.execute.Event`` while plans run, from several threads.
        warn: called with findings that keep nothing from running; by default they are Python warnings.
        trace: called with host and line for each command, before it is run there.
        met: called with each session when its hosts have answered.
        notice: called with each notice of a command before its plan runs; by default its findings that keep
            nothing from running go to ``warn``.

    Raises:
        BadInput: the file cannot be read or is wrong; names all that is wrong with it.
    """

    def __init__(
        self,
        hosts: str | Path | Inventory = "hosts.yaml",
        listen: Listener = _hear_nothing,
        warn: Warn = _warn,
        trace: Trace | None = None,
        met: Callable[[Session], None] = _hear_nothing,
        notice: Callable[[Notice], None] | None = None,
    ) -> None:
        self.inventory = hosts if isinstance(hosts, Inventory) else load_inventory(hosts)
        self.listen = listen
        self.warn = warn
        self.trace = trace
        self.met = met
        self._notice = notice
        self._started: dict[str, tuple[str, ...]] = {}

    @property
    def name(self) -> str:
        return self.inventory.cluster

    def connect(
        self,
        hosts: Iterable[str] | None = None,
        questions: Questions = (),
        desks: bool = False,
        local_image: bool = False,
    ) -> Session:
        """Connect to hosts, all by default; for what has no method here. To be used in a ``with``.

        Args:
            questions, desks, local_image: see ``Session.open``.
        """
        always = question(self.inventory) if self.inventory.data else ()
        session = Session.open(
            self.inventory, hosts, self.trace, questions, desks, always, EXECUTORS, local_image
        )
        session.warn, session.started = self.warn, self._started
        self.met(session)
        return session

    def warn_of(self, findings: Iterable[Finding]) -> None:
        """Tell of each of these findings."""
        for finding in findings:
            self.warn(finding)

    @property
    def shows_notices(self) -> bool:
        """Return True if a function of the caller receives all notices."""
        return self._notice is not None

    def notify(self, notice: Notice) -> None:
        """Pass on a notice of a command."""
        if self._notice is not None:
            self._notice(notice)
            return
        # Problems of the hosts that are errors end the command, which reports them.
        ends = notice.topic is Topic.HOSTS
        self.warn_of(finding for finding in notice.findings if not (ends and finding.verdict == "error"))
