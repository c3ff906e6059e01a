"""From what a person asks to run to a Job: everything that can be refused is refused before it starts."""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from toolkit.api import Session
from toolkit.core.finding import Finding, graver_first
from toolkit.core.names import job_id
from toolkit.effects.tree import list_files
from toolkit.errors import BadInput, Problem
from toolkit.inputs import choose_hosts, inside_programs, is_file, is_folder, read_secrets
from toolkit.launchers import LAUNCHERS
from toolkit.launchers.job import Job
from toolkit.launchers.slots import take_slots
from toolkit.network.choose import cidrs
from toolkit.network.lint import lint_inventory
from toolkit.network.tuning import rules_text, tuned_for
from toolkit.network.tuning_json import parse_tunings
from toolkit.plan.holders import refuse_held
from toolkit.plan.job import plan_job, require_running, rooms
from toolkit.plan.ports import master_port
from toolkit.plan.programs import require_programs
from toolkit.plan.steps import Plan
from toolkit.records import job_statuses, taken_slots
from toolkit.spec.inventory import Inventory


@dataclass(frozen=True)
class Request:
    """What a person asks to run.

    Args:
        words: a script of ``workdir`` with its arguments, or a command.
        workdir: local folder whose files become the job's snapshot; None sends nothing.
        ranks: None means one per slot.
        launcher: empty means the hosts file's.
        share: take slots and GPUs whoever has them.
        secrets: hand the hosts file's secrets to the ranks.
        tuned: give the ranks what `toolkit network tune` found for exactly these.
    """

    words: tuple[str, ...]
    workdir: Path | None = None
    ranks: int | None = None
    launcher: str = ""
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    timeout: float | None = None
    grace: float = 10.0
    share: bool = False
    secrets: bool = True
    tuned: bool = True


def rank_command(words: Sequence[str], workdir: Path | None) -> tuple[str, ...]:
    """Return what each rank executes: a Python script through ``python``, another file as itself.

    Raises:
        BadInput: nothing was given, or a script that is not in the folder that is sent.
    """
    if not words:
        raise BadInput("command line", (Problem("", "say what to run: toolkit run SCRIPT [ARGS…]"),))
    first, rest = words[0], tuple(words[1:])
    local = workdir / first if workdir is not None else None
    if local is not None and is_file(local):
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


def check_request(inventory: Inventory | None, request: Request) -> None:
    """Refuse what is known to be wrong before any host is contacted, all of it at once.

    Args:
        inventory: None when the hosts file is wrong: then what does not depend on it is looked at.

    Raises:
        BadInput: unknown launcher or hosts, more ranks than declared slots, a folder, a script or a
            secret that is not there.
    """
    problems: list[Problem] = []
    chosen: tuple[str, ...] = ()
    try:
        if inventory is not None:
            chosen = choose_hosts(inventory, request.only, request.exclude)
    except BadInput as error:
        problems += error.problems
    if request.launcher and request.launcher not in LAUNCHERS:
        known = ", ".join(sorted(LAUNCHERS))
        problems.append(Problem("--launcher", f"is one of {known}, found {request.launcher}"))
    declared = [inventory.host(name).slots for name in chosen] if inventory is not None else []
    if request.ranks and chosen and all(s is not None for s in declared):
        total = sum(s or 0 for s in declared)
        if request.ranks > total:
            problems.append(Problem("--np", f"{request.ranks} ranks asked for, but there are {total} slots"))
    if request.workdir is not None and not is_folder(request.workdir):
        problems.append(Problem("--workdir", f"{request.workdir} is not a folder"))
    else:
        try:
            rank_command(request.words, request.workdir)
        except BadInput as error:
            problems += error.problems
    sources = ["command line"] if problems else []
    if request.secrets and inventory is not None:
        try:
            read_secrets(inventory)
        except BadInput as error:
            problems += error.problems
            sources.insert(0, error.source)
    if problems:
        raise BadInput(" and ".join(sources), tuple(problems))


def environment_findings(inventory: Inventory, request: Request | None = None) -> tuple[Finding, ...]:
    """Return what is wrong with the variables that ranks would get, errors first; nothing is contacted.

    Raises:
        BadInput: the request's hosts, see ``choose_hosts``.
    """
    if request is None:
        return graver_first(lint_inventory(inventory))
    hosts = choose_hosts(inventory, request.only, request.exclude)
    return graver_first(lint_inventory(inventory, request.env, hosts))


def make_job(session: Session, request: Request) -> Job:
    """Return the job that the request makes on this cluster as it is now.

    Raises:
        BadInput: see ``check_request``; also more ranks than the slots found on the hosts.
        NotReady: a container does not run, other jobs have the slots, or somebody else holds a GPU.
    """
    inventory = session.inventory
    check_request(inventory, request)
    chosen = choose_hosts(inventory, request.only, request.exclude)
    _refuse_lost(session, (inventory.main, *chosen))
    layout = session.layout(local_image=False)
    _refuse_lost(session, (inventory.main, *chosen))
    concerned = list(dict.fromkeys((inventory.main, *chosen)))
    require_running(layout, concerned)
    require_programs(inventory.cluster, (session.facts[name] for name in concerned), inside_programs())
    running = () if request.share else taken_slots(job_statuses(session))
    try:
        hosts = take_slots(rooms(layout, chosen), request.ranks, running)
    except ValueError as error:
        raise BadInput("command line", (Problem("--np", str(error)),)) from error
    if not request.share:
        wanted = {host.name: host.gpus for host in hosts}
        refuse_held(session.facts, wanted, inventory.cluster, [each.job for each in running])
    taking_part = {host.name for host in hosts} | {inventory.main}
    paths = {p.host: p for p in layout.paths if p.host in taking_part}
    given = read_secrets(inventory) if request.secrets else ()
    places = [(host.name, host.address, host.slots) for host in hosts]
    kept = parse_tunings(session.facts[inventory.main].tuned) if request.tuned else ()
    tunings = tuned_for(places, kept)
    now = datetime.now(timezone.utc)
    first = session.facts[hosts[0].name]
    name = job_id(now, request.words[0], secrets.token_hex(2))
    return Job(
        id=name,
        cluster=inventory.cluster,
        owner=getpass.getuser(),
        launcher=request.launcher or inventory.launcher,
        command=rank_command(request.words, request.workdir),
        hosts=hosts,
        main=inventory.main,
        master_port=master_port(name, first, hosts[0].address),
        networks=cidrs(paths),
        env=tuple(sorted((*inventory.env, *given))),
        override=tuple(sorted(request.env)),
        tuned=tuple(pair for tuning in tunings for pair in tuning.env),
        rules="".join(map(rules_text, tunings)),
        timeout=request.timeout,
        grace=request.grace,
        share=request.share,
        log_bytes=inventory.log_bytes,
    )


def _refuse_lost(session: Session, names: Sequence[str]) -> None:
    for name in names:
        if name in session.errors:
            raise session.errors[name]


def plan_run(session: Session, job: Job, workdir: Path | None) -> Plan:
    """Return the plan that starts the job."""
    paths = list_files(workdir) if workdir is not None else ()
    return plan_job(session.layout(local_image=False), job, str(workdir or ""), paths)
