"""Jobs, from the caller's side: start one, follow its log, read how it ended, end it."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from toolkit.api import Session
from toolkit.core.command import command, script
from toolkit.core.names import INSIDE, JOBS
from toolkit.core.report import Report
from toolkit.effects.fanout import fan_out
from toolkit.effects.runner import Runner
from toolkit.errors import Interrupted, NotReady, ToolkitError
from toolkit.execute import Listener, PlanInterrupted
from toolkit.inputs import inside_programs
from toolkit.plan.programs import taken_from_jobs
from toolkit.plan.steps import Plan

FINAL = ("succeeded", "failed", "stopped", "timeout", "lost")

# Job, whether its supervisor is alive, status. The number of a process says nothing by itself: after a
# restart of the container another program may have it, so the supervisor's own mark is looked for.
_STATUSES = r"""
cd "$1" || exit
for d in */; do
  job=${d%/}
  [ -f "$job/status.json" ] || continue
  pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$job/status.json")
  alive=gone
  tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "TOOLKIT_SUPERVISOR=$job" && alive=alive
  printf '%s\t%s\t' "$job" "$alive"; tr -d '\n' <"$job/status.json"; echo
done
"""


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


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait until the block has ended: a job is either started or not, never half."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def start(session: Session, plan: Plan, listen: Listener) -> Report:
    """Run the plan of ``plan_run``; afterwards the job belongs to the cluster.

    Raises:
        ToolkitError: some host did not get the code, so nothing was started.
        Interrupted: Ctrl-C while the code travelled; nothing was started.
        KeyboardInterrupt: Ctrl-C while the job was started; it runs.
    """
    code, launch = (replace(plan, phases=(phase,)) for phase in plan.phases)
    try:
        report = session.execute(code, listen)
    except PlanInterrupted as error:
        raise Interrupted("interrupted; the job was not started") from error
    ours = [o for o in report.outcomes if o.phase != "connect"]
    if failed := [o for o in ours if o.status != "ok"]:
        lines = "".join(f"\n  {o.host}: {o.detail or o.status}" for o in failed)
        raise ToolkitError(f"the job was not started{lines}", failed[0].fix)
    with interrupts_held():
        started = session.execute(launch, listen)
    if failed := [o for o in started.outcomes if o.phase != "connect" and o.status != "ok"]:
        raise ToolkitError(f"the supervisor did not start: {failed[0].detail}", failed[0].fix, failed[0].host)
    return replace(started, outcomes=(*ours, *started.outcomes))


def follow(session: Session, job: str, sink: Callable[[bytes], None]) -> None:
    """Copy the job's merged log to ``sink`` from its beginning until the job has ended."""
    result = session.main.stream(command("python3", str(INSIDE / "follow.py"), job), sink)
    if not result.ok:
        raise ToolkitError(f"cannot follow {job}: {result.stderr.strip()}", f"toolkit logs {job}")


def hear_out(session: Session, plan: Plan, job: str, listen: Listener) -> str:
    """Run the plan of ``plan_run``, follow the job to its end and return its merged log.

    Raises:
        KeyboardInterrupt: Ctrl-C; the job has been ended.
    """
    output: list[bytes] = []
    try:
        start(session, plan, listen)
        follow(session, job, output.append)
    except KeyboardInterrupt:
        stop(session, job, interrupt=True)
        raise
    return b"".join(output).decode(errors="replace")


def log_text(session: Session, job: str, sink: Callable[[bytes], None]) -> None:
    """Copy what the job's merged log holds at this moment to ``sink``."""
    result = session.main.stream(command("cat", f"{JOBS}/{job}/output.log"), sink)
    if not result.ok:
        raise ToolkitError(f"{job} has no log: {result.stderr.strip()}", "toolkit status")


def statuses(session: Session) -> list[Status]:
    """Return the status of each job that main knows, oldest first; empty when main does not run."""
    try:
        main = session.main
    except (ToolkitError, KeyError):
        return []
    return _statuses(main)


def _statuses(main: Runner) -> list[Status]:
    ask = script(_STATUSES, str(JOBS))
    result = main.run(ask, 30)
    if not result.ok:
        raise ToolkitError(f"main does not say which jobs it has: {result.output}", "toolkit status -v")
    rows = [line.split("\t", 2) for line in result.stdout.splitlines() if line.count("\t") >= 2]
    known = [_status(job, json.loads(text), alive == "alive") for job, alive, text in rows]
    return sorted(known, key=lambda s: s.started)


def status(session: Session, job: str) -> Status:
    """Return the status of one job.

    Raises:
        NotReady: main knows no such job, or does not run.
    """
    for known in _statuses(session.main):
        if known.id == job:
            return known
    raise NotReady(f"there is no job {job}", "toolkit status lists them")


def newest(session: Session) -> Status:
    """Return the status of the job that started last.

    Raises:
        NotReady: none has ever run, or main does not run.
    """
    known = _statuses(session.main)
    if not known:
        raise NotReady("no job has run on this cluster", "toolkit run SCRIPT")
    return known[-1]


def _status(job: str, data: dict[str, Any], alive: bool = True) -> Status:
    state = str(data.get("state", ""))
    return Status(
        id=job,
        # Main's container or host went down under it, so nobody was left to write how it ended.
        state=state if alive or state in FINAL else "lost",
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


def refuse_to_end_jobs(session: Session, prepare: bool = False) -> None:
    """Refuse an `up` that would pull a container or its programs from under a running job.

    Args:
        prepare: the containers are left alone.

    Raises:
        NotReady: names the job and the hosts.
    """
    taken = taken_from_jobs(session.layout(), inside_programs(), prepare)
    running = [s.id for s in statuses(session) if not s.final] if taken else []
    if running:
        what = f"job {running[-1]} is running, and {' and '.join(taken)}"
        raise NotReady(what, f"toolkit stop {running[-1]}, or end it by: toolkit up --force")
