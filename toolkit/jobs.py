"""Jobs, from the caller's side: start one, follow its log, read how it ended, end it."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from toolkit.api import Session, choose_hosts
from toolkit.core.command import command, script
from toolkit.core.names import INSIDE, JOBS, job_id
from toolkit.core.report import Report
from toolkit.effects.fanout import fan_out
from toolkit.effects.tree import list_files
from toolkit.errors import BadInput, NotReady, Problem, ToolkitError
from toolkit.execute import Listener
from toolkit.launchers import LAUNCHERS
from toolkit.launchers.job import Job, take_slots
from toolkit.network.choose import cidrs
from toolkit.plan.job import job_hosts, plan_job, require_running
from toolkit.plan.layout import FIRST_MASTER_PORT, free_port
from toolkit.plan.steps import Plan
from toolkit.spec.inventory import Inventory

FINAL = ("succeeded", "failed", "stopped", "timeout")


@dataclass(frozen=True)
class Request:
    """What a person asks to run.

    Args:
        words: a script of ``workdir`` with its arguments, or a command.
        workdir: local folder whose files become the job's snapshot; None sends nothing.
        ranks: None means one per slot.
        launcher: empty means the hosts file's.
        share: start although another job runs on the cluster.
    """

    words: tuple[str, ...]
    workdir: Path | None = None
    ranks: int | None = None
    launcher: str = ""
    env: tuple[tuple[str, str], ...] = ()
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    timeout: float | None = None
    grace: float = 10.0
    share: bool = False


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


def rank_command(words: Sequence[str], workdir: Path | None) -> tuple[str, ...]:
    """Return what each rank executes: a Python script through ``python``, another file as itself.

    Raises:
        BadInput: nothing was given, or a script that is not in the folder that is sent.
    """
    if not words:
        raise BadInput("command line", (Problem("", "say what to run: toolkit run SCRIPT [ARGS…]"),))
    first, rest = words[0], tuple(words[1:])
    local = workdir / first if workdir is not None else None
    if local is not None and local.is_file():
        try:
            relative = _below(local, workdir)
        except BadInput:
            if first.startswith("/") and not first.endswith(".py"):
                return (first, *rest)  # a program of the image that this machine happens to have too
            raise
        if first.endswith(".py"):
            return ("python", relative, *rest)
        return (f"./{relative}", *rest)
    if first.endswith((".py", ".sh")) and not first.startswith("/"):
        problem = Problem(first, f"there is no such file in {workdir}; another folder: --workdir DIR")
        raise BadInput("command line", (problem,))
    return (first, *rest)


def _below(path: Path, folder: Path | None) -> str:
    base = (folder or Path()).resolve()
    try:
        # Not resolved at first: a link in the folder is sent as a link, and runs under its own name.
        return Path(os.path.normpath(path.absolute())).relative_to(base).as_posix()
    except ValueError:
        try:
            return path.resolve().relative_to(base).as_posix()
        except ValueError:
            problem = Problem(str(path), f"is outside {base}, the folder that is sent; see --workdir")
            raise BadInput("command line", (problem,)) from None


def check_request(inventory: Inventory, request: Request) -> None:
    """Refuse what is known to be wrong before any host is contacted, all of it at once.

    Raises:
        BadInput: unknown launcher or hosts, more ranks than declared slots, a folder or script that is not there.
    """
    problems: list[Problem] = []
    chosen: tuple[str, ...] = ()
    try:
        chosen = choose_hosts(inventory, request.only, request.exclude)
    except BadInput as error:
        problems += error.problems
    if request.launcher and request.launcher not in LAUNCHERS:
        known = ", ".join(sorted(LAUNCHERS))
        problems.append(Problem("--launcher", f"is one of {known}, found {request.launcher}"))
    declared = [inventory.host(name).slots for name in chosen]
    if request.ranks and chosen and all(s is not None for s in declared):
        total = sum(s or 0 for s in declared)
        if request.ranks > total:
            problems.append(Problem("--np", f"{request.ranks} ranks asked for, but there are {total} slots"))
    if request.workdir is not None and not request.workdir.is_dir():
        problems.append(Problem("--workdir", f"{request.workdir} is not a folder"))
    else:
        try:
            rank_command(request.words, request.workdir)
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput("command line", tuple(problems))


def make_job(session: Session, request: Request) -> Job:
    """Return the job that the request makes on this cluster as it is now.

    Raises:
        BadInput: see ``check_request``; also more ranks than the slots found on the hosts.
        NotReady: a container does not run, or another job does.
    """
    inventory = session.inventory
    check_request(inventory, request)
    chosen = choose_hosts(inventory, request.only, request.exclude)
    layout = session.layout(local_image=False)
    require_running(layout, list(dict.fromkeys((inventory.main, *chosen))))
    if not request.share:
        _refuse_second(session)
    try:
        hosts = take_slots(job_hosts(layout, chosen), request.ranks)
    except ValueError as error:
        raise BadInput("command line", (Problem("--np", str(error)),)) from error
    taking_part = {host.name for host in hosts} | {inventory.main}
    paths = {p.host: p for p in layout.paths if p.host in taking_part}
    now = datetime.now(timezone.utc)
    first = session.facts[hosts[0].name]
    return Job(
        id=job_id(now, request.words[0], secrets.token_hex(2)),
        cluster=inventory.cluster,
        owner=getpass.getuser(),
        launcher=request.launcher or inventory.launcher,
        command=rank_command(request.words, request.workdir),
        hosts=hosts,
        main=inventory.main,
        master_port=free_port(FIRST_MASTER_PORT, first, hosts[0].address),
        networks=cidrs(paths),
        env=inventory.env,
        override=tuple(sorted(request.env)),
        timeout=request.timeout,
        grace=request.grace,
    )


def _refuse_second(session: Session) -> None:
    running = [s for s in statuses(session) if not s.final]
    if running:
        what = f"job {running[-1].id} is running on this cluster"
        raise NotReady(what, f"toolkit stop {running[-1].id}, or --share to run beside it")


def plan_run(session: Session, job: Job, workdir: Path | None) -> Plan:
    """Return the plan that starts the job."""
    paths = list_files(workdir) if workdir is not None else ()
    return plan_job(session.layout(local_image=False), job, str(workdir or ""), paths)


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
