"""The base of ``Cluster`` and of its parts: inventory, connections, receivers of events and notices."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.api.executors import EXECUTORS
from toolkit.cluster.connect import Questions
from toolkit.cluster.session import Session
from toolkit.core.finding import Finding, Notice, Topic
from toolkit.core.printable import counted
from toolkit.data.plan import question
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import load_inventory
from toolkit.plan.execute import Listener

if TYPE_CHECKING:
    from toolkit.remote.ssh import Trace

Warn = Callable[[Finding], None]


class ToolkitWarning(UserWarning):
    """A problem of the hosts or of the job that does not prevent the job from running."""


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


def _ignore_event(event: object) -> None:
    pass


class Connection:
    """A cluster that a hosts file describes.

    Args:
        hosts: path of a hosts.yaml, or the result of ``load_inventory``.
        listen: called with each ``toolkit.plan.execute.Event`` while plans run, from several threads.
        warn: called with findings that do not stop the command; by default they become Python warnings.
        trace: called with host and command line before each command runs on a host.
        met: called with each session after its hosts have answered.
        notice: called with each notice of a command before its plan runs; by default ``warn`` receives
            the findings that do not stop the command.

    Raises:
        BadInput: the file cannot be read or is invalid; lists every problem.
    """

    def __init__(
        self,
        hosts: str | Path | Inventory = "hosts.yaml",
        listen: Listener = _ignore_event,
        warn: Warn = _warn,
        trace: Trace | None = None,
        met: Callable[[Session], None] = _ignore_event,
        notice: Callable[[Notice], None] | None = None,
    ) -> None:
        self.inventory = hosts if isinstance(hosts, Inventory) else load_inventory(hosts)
        self.listen = listen
        self.warn = warn
        self.trace = trace
        self.met = met
        self._notice = notice
        self._started: dict[str, tuple[str, ...]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {counted(len(self.inventory.hosts), 'host')})"

    @property
    def name(self) -> str:
        return self.inventory.cluster

    def connect(
        self,
        hosts: Iterable[str] | None = None,
        questions: Questions = (),
        container_sessions: bool = False,
        local_image: bool = False,
    ) -> Session:
        """Connect to hosts (all by default), for work without a method. Use the session in a ``with``.

        Args:
            questions, container_sessions, local_image: see ``Session.open``.
        """
        always = question(self.inventory) if self.inventory.data else ()
        session = Session.open(
            self.inventory, hosts, self.trace, questions, container_sessions, always, EXECUTORS, local_image
        )
        session.warn, session.started = self.warn, self._started
        self.met(session)
        return session

    def warn_of(self, findings: Iterable[Finding]) -> None:
        """Pass each finding to ``warn``."""
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


class Part:
    """Acts on one subject of a cluster."""

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._cluster!r})"
