"""The smoke test: GPUs as containers see them, then one all-reduce whose result every rank checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from toolkit.bench.network import failed_job
from toolkit.bench.smoke_plan import (
    ALLREDUCE,
    GpuRow,
    allreduce_line,
    gpu_problem,
    judge_gpus,
    plan_gpu_smoke,
)
from toolkit.cluster.layout import Layout
from toolkit.cluster.session import Session, observe_layout
from toolkit.core.command import script
from toolkit.core.printable import counted
from toolkit.core.report import Report
from toolkit.errors import Interrupted, NotReady, Problem, ToolkitError
from toolkit.jobs.control import run_to_completion
from toolkit.jobs.launcher import AUTO
from toolkit.jobs.make_job import PlannedJob, plan_request
from toolkit.jobs.plan import require_launcher
from toolkit.jobs.records import job_status
from toolkit.jobs.request import Request
from toolkit.launchers import WITH_TOKEN
from toolkit.plan.execute import Listener
from toolkit.plan.steps import Plan
from toolkit.protocol.transport import WITHOUT_SSH


@dataclass(frozen=True)
class Smoke:
    """Result of the smoke test.

    Args:
        allreduce: the result line; empty after a failure.
        launcher: launcher of the all-reduce.
        instead: reason for a launcher other than the launcher of the hosts file; otherwise empty.
    """

    gpus: tuple[GpuRow, ...]
    problems: tuple[Problem, ...]
    allreduce: str
    launcher: str = ""
    instead: str = ""

    def __repr__(self) -> str:
        problems = counted(len(self.problems), "problem")
        return f"Smoke({'ok' if self.ok else 'failed'}, {problems}, {self.allreduce!r})"

    @property
    def ok(self) -> bool:
        return not self.problems and bool(self.allreduce)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "problems": [str(problem) for problem in self.problems],
            "allreduce": self.allreduce,
            "launcher": self.launcher,
            "instead": self.instead,
        }


# Launchers to try, in this order, if the image does not contain the launcher of the hosts file.
_OTHERS = ("mpirun", "torchrun", "python")
# Programs of launchers with other names.
_PROGRAMS = {"horovodrun-gloo": "horovodrun", "python": "python3"}
_MISSING = 'for name; do command -v "$name" >/dev/null || echo "$name"; done'
_LOOK_SECONDS = 30.0


def choose_launcher(session: Session, layout: Layout | None, requested: str) -> tuple[str, str]:
    """Return the launcher of the all-reduce, and the reason if it is not that of the hosts file.

    With ``auto`` in the hosts file, mpirun needs no reason.

    Args:
        layout: None if the cluster is not up; then the image is unknown.
        requested: launcher given on the command line, used without a check; empty for that of the hosts file.
    """
    if requested and requested != AUTO and requested not in WITH_TOKEN:
        return requested, ""
    wanted = requested or session.inventory.launcher
    # The same order as in _OTHERS: mpirun if the image has it, otherwise torchrun.
    wanted = _OTHERS[0] if wanted == AUTO else wanted
    others = [name for name in _OTHERS if not session.inventory.in_parts or name in WITHOUT_SSH]
    if layout is None:
        return wanted, ""
    try:
        absent = _absent(session, layout, [wanted, *others])
    except ToolkitError:
        return wanted, ""  # the checks of the job report a main container that is not running
    if wanted in WITH_TOKEN:
        absent[wanted] = f"{wanted} starts one driver process instead of one process per rank"
    found = next((name for name in (wanted, *others) if name not in absent), wanted)
    return found, "" if found == wanted else absent[wanted]


def _absent(session: Session, layout: Layout, launchers: Sequence[str]) -> dict[str, str]:
    """Return the launchers that the image does not contain, each with the reason."""
    programs = {name: _PROGRAMS.get(name, name) for name in launchers}
    looked = session.main.run(script(_MISSING, *programs.values()), _LOOK_SECONDS)
    missing = looked.stdout.split() if looked.ok else []
    found = {}
    for name, program in programs.items():
        try:
            require_launcher(layout, name)
        except NotReady as error:
            found[name] = error.what
        else:
            if program in missing:
                found[name] = f"the image {session.inventory.image} has no {program}"
    return found


@dataclass(frozen=True)
class PlannedSmoke:
    """Plans of both parts of the test.

    Args:
        layout: layout of the running cluster, or the reason why none runs.
        gpus: plan that lists the GPUs of each container; without a step if no host has a GPU.
        job: the all-reduce, or the reason why it cannot be started.
        launcher, instead: see ``choose_launcher``.
    """

    layout: Layout | ToolkitError
    gpus: Plan
    job: PlannedJob | ToolkitError
    launcher: str
    instead: str

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All plans.

        Raises:
            ToolkitError: one of the parts cannot be started.
        """
        job = _or_raise(self.job)
        return (*((self.gpus,) if self.gpus.steps else ()), job.plan)


Value = TypeVar("Value")


def _or_raise(value: Value | ToolkitError) -> Value:
    if isinstance(value, ToolkitError):
        raise value
    return value


def plan_smoke(session: Session, requested: str) -> PlannedSmoke:
    """Return both parts of the test; the result contains the reason if a part cannot be started.

    Args:
        requested: see ``choose_launcher``.
    """
    layout: Layout | ToolkitError
    gpus = Plan("", ())
    try:
        layout = observe_layout(session, running=True)
        gpus = plan_gpu_smoke(layout)
    except ToolkitError as error:
        layout = error
    known = None if isinstance(layout, ToolkitError) else layout
    launcher, instead = choose_launcher(session, known, requested)
    request = Request(words=ALLREDUCE, launcher=launcher, timeout=300, secrets=False, with_spares=True)
    job: PlannedJob | ToolkitError
    try:
        job = plan_request(session, request, layout)
    except ToolkitError as error:
        job = error
    return PlannedSmoke(layout, gpus, job, launcher, instead)


def run_smoke(session: Session, planned: PlannedSmoke, listen: Listener) -> Smoke:
    """Run both parts; the second part also runs if a host failed in the first.

    Raises:
        ToolkitError: the cluster is not up, or the all-reduce cannot start and no host listed its GPUs.
        Interrupted: Ctrl-C before the all-reduce was started; no rank of it runs.
    """
    layout, launcher, instead = _or_raise(planned.layout), planned.launcher, planned.instead
    problems = [Problem(name, error.what) for name, error in session.errors.items()]
    rows: tuple[GpuRow, ...] = ()
    plan = planned.gpus
    report = session.execute(plan, listen) if plan.steps else Report(plan.title, ())
    rows, found = judge_gpus(layout, report)
    failed = (gpu_problem(o.host, o.detail, o.fix) for o in report.failures if o.phase != "connect")
    problems += [*found, *failed]
    try:
        started = _or_raise(planned.job)
        job = started.job
        lines = run_to_completion(session, started.plan, job.id, listen).splitlines()
    except ToolkitError as error:
        # Report the GPUs that were found; without any, the error is the complete result.
        if not rows or isinstance(error, Interrupted):
            raise
        problems.append(gpu_problem("all-reduce", error.what, error.fix))
        return Smoke(rows, tuple(problems), "", launcher, instead)
    ended = job_status(session, job.id)
    line = allreduce_line(lines) if ended.exit_code == 0 else ""
    if not line:
        failure = failed_job(job, ended, lines)
        problems.append(gpu_problem("all-reduce", failure.what, failure.fix))
    return Smoke(rows, tuple(problems), line, launcher, instead)
