"""A command between its two phases: the hosts have answered and nothing is changed yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, Generic, TypeVar

from toolkit.api.connection import Connection
from toolkit.cluster.layout import Layout, Observed, make_layout, refuse_unsendable
from toolkit.cluster.session import Session
from toolkit.core.finding import Finding, Notice, Topic
from toolkit.core.report import Report, refuse_failed
from toolkit.errors import ToolkitError
from toolkit.image.pull import plan_pull
from toolkit.plan.execute import Listener, StepEnded, reported_after, to_do
from toolkit.plan.steps import Plan, Step
from toolkit.protocol.host_list import host_list

Result = TypeVar("Result")
Own = TypeVar("Own", bound="Prepared[Any]")


class Notices:
    """The notices of one command; each is passed on at once."""

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster
        self.all: tuple[Notice, ...] = ()

    def add(self, topic: Topic, findings: Iterable[Finding] = (), text: str = "") -> None:
        """Pass on a notice, unless it is empty."""
        notice = Notice(topic, tuple(findings), text)
        if notice.findings or notice.text:
            self.all = (*self.all, notice)
            self._cluster.notify(notice)


class Prepared(ABC, Generic[Result]):
    """A command with a plan to inspect and then run; the end of its ``with`` closes the connections.

    Args:
        session: this object closes it.
    """

    def __init__(self, cluster: Connection, session: Session, notices: Notices) -> None:
        self.cluster = cluster
        self.session = session
        self._notices = notices

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cluster!r})"

    @property
    @abstractmethod
    def plans(self) -> tuple[Plan, ...]:
        """The plans that ``execute`` runs."""

    @property
    def plan(self) -> Plan:
        """The first plan; most commands have one."""
        return self.plans[0]

    @abstractmethod
    def execute(self, listen: Listener) -> Result:
        """Run the plans.

        Args:
            listen: called with events, from several threads.
        """

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The notices so far."""
        return self._notices.all

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all notices."""
        return tuple(finding for notice in self.notices for finding in notice.findings)

    def findings_about(self, topic: Topic) -> tuple[Finding, ...]:
        """Return the findings about one topic."""
        return tuple(f for notice in self.notices if notice.topic is topic for f in notice.findings)

    @property
    def notes(self) -> tuple[str, ...]:
        """The texts of all notices."""
        return tuple(notice.text for notice in self.notices if notice.text)

    def to_do(self) -> tuple[Step, ...]:
        """Query the hosts for the steps of ``plan`` that would change something now."""
        return to_do(self.plan, self.session.runners_in_use(), self.session.inventory.engine)

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.session.close()


def completed(prepared: Prepared[Report]) -> Report:
    """Execute a command, close its connections and return its report.

    Raises:
        PlanFailed: a step failed on a host; contains the report.
    """
    with prepared:
        return refuse_failed(prepared.execute(prepared.cluster.listen))


@contextmanager
def closed_on_error(session: Session) -> Iterator[Session]:
    """Close a session if the block fails; otherwise it stays open."""
    try:
        yield session
    except BaseException:
        session.close()
        raise


def report_silent(session: Session, listen: Listener) -> None:
    """Report hosts without a connection to the listener, as failed steps."""
    for outcome in session.connect_outcomes():
        listen(StepEnded(outcome))


class PreparedPlan(Prepared[Report]):
    """A command of one plan."""

    def __init__(self, cluster: Connection, session: Session, notices: Notices, plan: Plan) -> None:
        super().__init__(cluster, session, notices)
        self._plan = plan

    @property
    def plans(self) -> tuple[Plan, ...]:
        return (self._plan,)

    def execute(self, listen: Listener) -> Report:
        report_silent(self.session, listen)
        return self.session.execute(self._plan, listen)


class PreparedAfterPull(Prepared[Report]):
    """A command that begins with a pull of the image if the hosts file allows it.

    If hosts pull, ``plan`` is the plan of the pull, and the command itself is planned after the pull.
    Otherwise ``plan`` is the plan of the command, made from earlier answers of the hosts. A planning error
    is raised by ``plan`` and ``execute``.
    """

    def __init__(self, cluster: Connection, session: Session, notices: Notices) -> None:
        super().__init__(cluster, session, notices)
        self._observed: Observed | ToolkitError | None = None
        try:
            if session.facts and not self._pull:
                self._observed = session.observe()
        except ToolkitError as error:
            self._observed = error

    @cached_property
    def _pull(self) -> Plan | None:
        pull = plan_pull(self.session.inventory, self.session.facts)
        return pull if pull.steps else None

    @property
    def planned_later(self) -> bool:
        """True if the command itself is planned after the pull."""
        return self._pull is not None

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        self.session.require_some()
        return (self._pull or self._first[1],)

    @cached_property
    def _first(self) -> tuple[Layout, Plan]:
        """The layout and the plan of the command itself, without a pull before."""
        if isinstance(self._observed, ToolkitError):
            raise self._observed
        assert self._observed is not None
        return self._made(self._observed)

    def _made(self, observed: Observed) -> tuple[Layout, Plan]:
        layout = refuse_unsendable(self._layout(observed), observed)
        return layout, self._plan(layout)

    def _layout(self, observed: Observed) -> Layout:
        return make_layout(self.session.inventory, observed)

    @abstractmethod
    def _plan(self, layout: Layout) -> Plan:
        """Return the plan of the command itself."""

    @abstractmethod
    def _run(self, layout: Layout, plan: Plan, listen: Listener) -> Report:
        """Run the plan of the command itself, or refuse to."""

    def execute(self, listen: Listener) -> Report:
        """Run the pull, if there is one, and the plan of the command itself.

        Raises:
            PlanFailed: no host is left after the pull.
            PlanInterrupted: Ctrl-C; its report contains the steps of the pull too.
        """
        session = self.session
        session.require_some()
        pulled = None
        if self._pull:
            hosts = host_list(step.host for step in self._pull.steps)
            self._notices.add(Topic.PULL, text=f"{hosts}: {self._pull.title}")
            pulled = session.pull(self._pull, listen)
        session.require_some()
        with reported_after(pulled):
            layout, plan = self._made(session.observe()) if self._pull else self._first
            session.leave_out(layout.refused)
            return self._run(layout, plan, listen).after(pulled)
