"""The smoke test: GPUs as containers see them, then one all-reduce whose result every rank checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from toolkit.api import Session
from toolkit.core.report import Report
from toolkit.errors import Interrupted, Problem, ToolkitError
from toolkit.execute import Listener
from toolkit.jobs import hear_out
from toolkit.making import make_job, plan_run
from toolkit.plan.smoke import (
    ALLREDUCE,
    GpuRow,
    allreduce_line,
    gpu_problem,
    judge_gpus,
    plan_gpu_smoke,
)
from toolkit.plan.steps import Plan
from toolkit.records import job_status
from toolkit.request import Request


@dataclass(frozen=True)
class Smoke:
    """What the smoke test found; ``allreduce`` is the result line, empty when it failed."""

    gpus: tuple[GpuRow, ...]
    problems: tuple[Problem, ...]
    allreduce: str

    @property
    def ok(self) -> bool:
        return not self.problems and bool(self.allreduce)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "problems": [str(problem) for problem in self.problems],
            "allreduce": self.allreduce,
        }


def smoke_plans(session: Session, launcher: str) -> tuple[Plan, ...]:
    """Return the plans that ``run_smoke`` runs."""
    job = make_job(session, _request(launcher))
    gpus = plan_gpu_smoke(session.layout(local_image=False))
    return (*((gpus,) if gpus.steps else ()), plan_run(session, job, None))


def _request(launcher: str) -> Request:
    return Request(words=ALLREDUCE, launcher=launcher, timeout=300, secrets=False, with_spares=True)


def run_smoke(session: Session, launcher: str, listen: Listener) -> Smoke:
    """Run both parts; a host that fails in the first does not hide the second.

    Raises:
        ToolkitError: the cluster is not up, and no host has told anything about GPUs.
        Interrupted: Ctrl-C before the all-reduce was started; nothing of it runs.
    """
    layout = session.layout(local_image=False)
    problems = [Problem(name, error.what) for name, error in session.errors.items()]
    rows: tuple[GpuRow, ...] = ()
    plan = plan_gpu_smoke(layout)
    report = session.execute(plan, listen) if plan.steps else Report(plan.title, ())
    rows, found = judge_gpus(layout, report)
    failed = (gpu_problem(o.host, o.detail, o.fix) for o in report.failures if o.phase != "connect")
    problems += [*found, *failed]
    try:
        job = make_job(session, _request(launcher))
        lines = hear_out(session, plan_run(session, job, None), job.id, listen).splitlines()
    except ToolkitError as error:
        # What was found out about GPUs is still worth a look; without it the error says all.
        if not rows or isinstance(error, Interrupted):
            raise
        problems.append(Problem("all-reduce", error.what))
        return Smoke(rows, tuple(problems), "")
    ended = job_status(session, job.id)
    line = allreduce_line(lines) if ended.exit_code == 0 else ""
    if not line:
        tail = " | ".join(lines[-5:])
        problems.append(Problem("all-reduce", f"{ended.state}, exit code {ended.exit_code}: {tail}"))
    return Smoke(rows, tuple(problems), line)
