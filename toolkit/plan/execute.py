"""Plan x Runners x Executors -> Report: the only place where plans and hosts meet; the times of its steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from toolkit.core.engines import DOCKER
from toolkit.core.report import HERE, FailureCause, Outcome, Report, Span
from toolkit.core.runner import Runner
from toolkit.errors import Interrupted, ToolkitError, Unreachable
from toolkit.plan.context import Context, Executors, KnownFailure, Verdict
from toolkit.plan.precheck import known_answers, precheck_host, precheck_verdict
from toolkit.plan.steps import Phase, Plan, Run, Step, WaitFor
from toolkit.remote.container_session import ContainerSessions
from toolkit.remote.fanout import fan_out


@dataclass(frozen=True)
class PhaseStarted:
    """A phase begins on these hosts."""

    title: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class StepStarted:
    """A step begins; it can still turn out that there is nothing to do."""

    host: str
    step: str


@dataclass(frozen=True)
class StepProgress:
    """Bytes done of all bytes; ``total`` 0 means unknown."""

    host: str
    step: str
    done: int
    total: int


@dataclass(frozen=True)
class StepEnded:
    """A step has its outcome."""

    outcome: Outcome


Event = PhaseStarted | StepStarted | StepProgress | StepEnded
Listener = Callable[[Event], None]


class PlanInterrupted(Interrupted):
    """Ctrl-C while a plan ran; ``report`` has the outcomes so far of each host."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__("interrupted", "run the same command again: it continues from the current state")


@contextmanager
def reported_after(before: Report | None) -> Iterator[None]:
    """Let an interrupt within, of a plan or between two plans, also report what ran before it.

    Raises:
        PlanInterrupted: with the merged report.
    """
    try:
        yield
    except PlanInterrupted as error:
        raise PlanInterrupted(error.report.after(before)) from None
    except KeyboardInterrupt:
        if before is None or not before.outcomes:
            raise
        raise PlanInterrupted(before) from None


STALE_S = 5.0
# Ctrl-C also reaches the programs that a connection uses, such as a tunnel in the same terminal. A step that
# lost its connection waits this many seconds for an interrupt as the possible cause.
_INTERRUPT_S = 0.5
# A signal to a process group can arrive twice; more signals than this are deliberate.
_PRESSED_MOST = 3


@dataclass
class _Progress:
    """Progress and outcomes of the steps so far, shared by the threads of a plan."""

    runners: Mapping[str, Runner]
    executors: Executors
    listen: Listener
    interrupted: threading.Event = field(default_factory=threading.Event)
    begun: set[int] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    # Precheck results by step index. Discarded once a step changes something, fails, or takes longer than
    # STALE_S.
    prechecked: dict[int, str] = field(default_factory=dict)


def execute(
    plan: Plan,
    runners: Mapping[str, Runner],
    executors: Executors,
    listen: Listener = lambda event: None,
    close: Callable[[], None] = lambda: None,
    container_sessions: ContainerSessions | None = None,
    engine: str = DOCKER,
    precheck: bool = False,
    recent: bool = True,
) -> Report:
    """Run a plan phase by phase, with the hosts of a phase in parallel, and give every step an outcome.

    A host with a failed step is excluded; its later steps are "not run". A step of another host is also
    "not run" if all its targets failed (see ``Run``), but that host continues.

    Args:
        runners: by host name; a step for a host without one is "not run".
        executors: function for each kind of step, see ``toolkit.api.executors``.
        listen: called with events, from several threads.
        close: called on Ctrl-C to end the running commands.
        container_sessions: container sessions that stay open; by default the plan opens and closes its own.
        engine: container engine of the hosts, see ``toolkit.core.engines``.
        precheck: also query all hosts for the steps whose state the facts do not contain, see
            ``toolkit.plan.precheck``: most have nothing to do.
        recent: see ``Context``.

    Raises:
        PlanInterrupted: Ctrl-C; carries the report.
    """
    start = time.monotonic()
    progress = _Progress(runners, executors, listen)
    own = ContainerSessions()
    sessions = container_sessions or own
    context = Context(runners, plan.steps, container_sessions=sessions, engine=engine, recent=recent)
    number = 0
    numbered: list[tuple[Phase, list[tuple[int, Step]]]] = []
    for phase in plan.phases:
        steps = list(enumerate(phase.steps, number))
        number += len(steps)
        numbered.append((phase, steps))
    try:
        every = dict(enumerate(plan.steps))
        progress.prechecked = _precheck(plan, context) if precheck else known_answers(every, context)
        for phase, steps in numbered:
            _run_phase(phase, steps, context, progress)
    except KeyboardInterrupt:
        # Set before the connections are closed: a step that fails from now on was interrupted.
        progress.interrupted.set()
        _to_its_end(close)
    finally:
        _to_its_end(context.close)
        own.leave()
    outcomes = tuple(
        progress.outcomes.get(index) or _not_run(phase, step, index in progress.begun)
        for phase, steps in numbered
        for index, step in steps
    )
    report = Report(plan.title, outcomes, time.monotonic() - start)
    if progress.interrupted.is_set():
        raise PlanInterrupted(report)
    return report


def _to_its_end(close: Callable[[], None]) -> None:
    """Call ``close`` again until no Ctrl-C interrupts it. Otherwise threads would wait forever."""
    for _ in range(_PRESSED_MOST):
        with suppress(KeyboardInterrupt):
            return close()
    return close()


def step_key(phase: Phase, step: Step) -> tuple[str, str, str]:
    """Return the key of the outcome that a step is going to have; see ``Outcome.key``."""
    return _not_run(phase, step).key


def _not_run(phase: Phase, step: Step, begun: bool = False) -> Outcome:
    """Return the outcome of a step that has none of its own; it was interrupted if it had begun."""
    cause = FailureCause.INTERRUPTED if begun else FailureCause.OTHER
    detail = "interrupted" if begun else ""
    return Outcome(phase.title, step.title, step.host, "not run", 0.0, detail, id=_id(step), cause=cause)


def _id(step: Step) -> str:
    return step.id if isinstance(step, WaitFor) else ""


def to_do(plan: Plan, runners: Mapping[str, Runner], engine: str = DOCKER) -> tuple[Step, ...]:
    """Return the steps that have something to do as things are now; nothing is changed.

    The action of a step can make later steps necessary.
    """
    context = Context(runners, plan.steps, engine=engine)
    progress = _Progress(runners, {}, lambda event: None, prechecked=_precheck(plan, context))
    return tuple(
        step for number, step in enumerate(plan.steps) if _prechecked(number, step, context, progress) is None
    )


def _run_phase(phase: Phase, steps: list[tuple[int, Step]], context: Context, progress: _Progress) -> None:
    by_host: dict[str, list[tuple[int, Step]]] = {}
    for index, step in steps:
        if step.host in progress.runners and step.host not in progress.failed:
            by_host.setdefault(step.host, []).append((index, step))
    progress.listen(PhaseStarted(phase.title, tuple(by_host)))

    def work(host: str) -> None:
        for index, step in by_host[host]:
            progress.begun.add(index)
            outcome = _run_step(phase, index, step, context, progress)
            if outcome is None:
                return
            progress.outcomes[index] = outcome
            if not progress.interrupted.is_set():
                progress.listen(StepEnded(outcome))
            if outcome.status == "failed":
                progress.failed.add(host)
                return

    fan_out(by_host, work)
    # Once all have ended, so that what the others of this phase read does not depend on who was first.
    for host in progress.failed:
        context.forget(host)


def _precheck(plan: Plan, context: Context) -> dict[int, str]:
    """Return the answers of all hosts for all steps; if a query fails, the first step reports the reason."""
    by_host: dict[str, dict[int, Step]] = {}
    for number, step in enumerate(plan.steps):
        if step.host in context.runners:
            by_host.setdefault(step.host, {})[number] = step
    answers, _ = fan_out(by_host, lambda host: precheck_host(host, by_host[host], context))
    return {number: answer for each in answers.values() for number, answer in each.items()}


def _prechecked(number: int, step: Step, context: Context, progress: _Progress) -> Verdict | None:
    """Return the outcome of a step for which the precheck of the host found nothing to do."""
    answer = progress.prechecked.get(number)
    if answer is None:
        return None
    return precheck_verdict(step, context, answer)


def _run_step(phase: Phase, number: int, step: Step, context: Context, progress: _Progress) -> Outcome | None:
    """Run a step; return None if an interrupt ended it, because the host is not the cause."""
    start, listen = time.monotonic(), progress.listen
    listen(StepStarted(step.host, step.title))

    def advance(done: int, total: int) -> None:
        listen(StepProgress(step.host, step.title, done, total))

    cause = FailureCause.OTHER
    try:
        verdict = _prechecked(number, step, context, progress)
        if verdict is None:
            verdict = progress.executors[type(step)](step, context, advance)
    except ToolkitError as error:
        lost = isinstance(error, Unreachable)
        if progress.interrupted.wait(_INTERRUPT_S if lost else 0):
            return None
        verdict = Verdict("failed", error.what, fix=error.fix)
        cause = error.cause if isinstance(error, KnownFailure) else cause
    except OSError as error:
        if progress.interrupted.is_set():
            return None
        # Errors of this machine: a full disk, a file that was removed.
        verdict = Verdict("failed", f"an operation on your machine failed: {error}")
    seconds = round(time.monotonic() - start, 3)
    if verdict.status in ("ok", "failed") or seconds > STALE_S:
        progress.prechecked = {}
    return Outcome(
        phase.title,
        step.title,
        step.host,
        verdict.status,
        seconds,
        verdict.detail,
        verdict.fix,
        verdict.output,
        verdict.amounts,
        isinstance(step, Run) and step.proof,
        _id(step),
        cause,
    )


class Stopwatch:
    """Records the time spans of each host, from its own creation on."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._met: list[Span] = []
        self._done: list[Span] = []

    def met(self, host: str, seconds: float) -> None:
        """Record that a host was connected and probed just now."""
        self._met.append(Span("connect", host, self._now() - seconds, seconds))

    def heard_by(self, listen: Listener) -> Listener:
        """Return a listener that records every executed step, and forwards all events."""

        def record(event: Event) -> None:
            if isinstance(event, StepEnded) and event.outcome.status in ("ok", "failed"):
                done = event.outcome
                self._done.append(Span(done.phase, done.host, self._now() - done.seconds, done.seconds))
            listen(event)

        return record

    def take(self) -> tuple[Span, ...]:
        """Return the spans recorded since the last call, in seconds since the start.

        The work of this machine between connecting and the first step is listed under ``HERE``.
        """
        met, done = self._met, sorted(self._done, key=lambda span: span.begin)
        self._met, self._done = [], []
        met_until = max((span.end for span in met), default=None)
        if met_until is None or not done or done[0].begin <= met_until:
            return (*met, *done)
        return (*met, Span("query and plan", HERE, met_until, done[0].begin - met_until), *done)

    def _now(self) -> float:
        return time.monotonic() - self._begun
