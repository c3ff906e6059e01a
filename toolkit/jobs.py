"""Jobs, from the caller's side: start one, follow its log, read how it ended, end it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from toolkit.api import Session
from toolkit.core.command import command, script
from toolkit.core.names import INSIDE, JOBS
from toolkit.core.report import Report
from toolkit.effects.fanout import fan_out
from toolkit.errors import NotReady, ToolkitError
from toolkit.execute import Listener
from toolkit.plan.steps import Plan

FINAL = ("succeeded", "failed", "stopped", "timeout")


@dataclass(frozen=True)
class Status:
    """How a job stands; ``exit_code`` is None until it has ended."""

    id: str
    state: str
    exit_code: int | None
    started: float
    ended: float | None
    reason: str
    unswept: tuple[str, ...] = ()

    @property
    def final(self) -> bool:
        return self.state in FINAL


def start(session: Session, plan: Plan, listen: Listener) -> Report:
    """Run the plan of ``plan_run``; afterwards the job belongs to the cluster.

    Raises:
        ToolkitError: some host did not get the code, so nothing was started.
    """
    code, launch = (replace(plan, phases=(phase,)) for phase in plan.phases)
    report = session.execute(code, listen)
    ours = [o for o in report.outcomes if o.phase != "connect"]
    if failed := [o for o in ours if o.status != "ok"]:
        lines = "".join(f"\n  {o.host}: {o.detail or o.status}" for o in failed)
        raise ToolkitError(f"the job was not started{lines}", failed[0].fix)
    started = session.execute(launch, listen)
    if failed := [o for o in started.outcomes if o.phase != "connect" and o.status != "ok"]:
        raise ToolkitError(f"the supervisor did not start: {failed[0].detail}", failed[0].fix, failed[0].host)
    return replace(started, outcomes=(*ours, *started.outcomes))


def follow(session: Session, job: str, sink: Callable[[bytes], None]) -> None:
    """Copy the job's merged log to ``sink`` from its beginning until the job has ended."""
    result = session.main.stream(command("python3", str(INSIDE / "follow.py"), job), sink)
    if not result.ok:
        raise ToolkitError(f"cannot follow {job}: {result.stderr.strip()}", f"toolkit logs {job}")


def log_text(session: Session, job: str, sink: Callable[[bytes], None]) -> None:
    """Copy what the job's merged log holds at this moment to ``sink``."""
    result = session.main.stream(command("cat", f"{JOBS}/{job}/output.log"), sink)
    if not result.ok:
        raise ToolkitError(f"{job} has no log: {result.stderr.strip()}", "toolkit status")


def statuses(session: Session) -> list[Status]:
    """Return the status of each job that main knows, oldest first; empty when main does not run."""
    ask = script(
        'cd "$1" || exit 0; for d in */; do [ -f "$d/status.json" ] || continue; '
        'printf "%s\\t" "${d%/}"; tr -d "\\n" <"$d/status.json"; echo; done',
        str(JOBS),
    )
    try:
        text = session.main.run(ask, 30).stdout
    except (ToolkitError, KeyError):
        return []
    rows = (line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    return sorted((_status(row[0], json.loads(row[1])) for row in rows), key=lambda s: s.started)


def status(session: Session, job: str) -> Status:
    """Return the status of one job.

    Raises:
        NotReady: main knows no such job.
    """
    for known in statuses(session):
        if known.id == job:
            return known
    raise NotReady(f"there is no job {job}", "toolkit status lists them")


def newest(session: Session) -> Status:
    """Return the status of the job that started last.

    Raises:
        NotReady: none has ever run.
    """
    known = statuses(session)
    if not known:
        raise NotReady("no job has run on this cluster", "toolkit run SCRIPT")
    return known[-1]


def _status(job: str, data: dict[str, Any]) -> Status:
    return Status(
        id=job,
        state=str(data.get("state", "")),
        exit_code=data.get("exit_code"),
        started=float(data.get("started") or 0),
        ended=data.get("ended"),
        reason=str(data.get("reason", "")),
        unswept=tuple(data.get("unswept") or ()),
    )


def stop(session: Session, job: str, interrupt: bool = False) -> Status:
    """End a job everywhere: its supervisor ends the launcher and sweeps every host by the job's mark.

    Args:
        interrupt: a person pressed Ctrl-C: the job's exit code is 130 then, else 143.
    """
    flags = ("--interrupt",) if interrupt else ()
    ask = command("python3", str(INSIDE / "stop.py"), *flags, job)
    result = session.main.run(ask, 120)
    if not result.ok:
        raise ToolkitError(f"cannot end {job}: {result.output}", "toolkit down ends everything")
    return _status(job, json.loads(result.stdout.strip().splitlines()[-1]))


def kill(session: Session, job: str) -> None:
    """Kill every process that carries the job's mark, on every host that answers, without asking it first."""

    def sweep(host: str) -> None:
        ask = command("python3", str(INSIDE / "sweep.py"), job, "--signal", "KILL")
        with contextlib.suppress(NotReady):
            session.container(host).run(ask, 30)

    fan_out(session.facts, sweep)
