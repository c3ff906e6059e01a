"""From what a person asks to run to a Job: everything that can be refused is refused before it starts."""

from __future__ import annotations

import contextlib
import getpass
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from toolkit.api import Session
from toolkit.core.code import CodeTree, size_findings
from toolkit.core.finding import Finding, graver_first
from toolkit.core.names import job_id
from toolkit.errors import BadInput, NotReady, Problem
from toolkit.inputs import choose_hosts, inside_programs, is_folder, read_secrets
from toolkit.launchers import WITH_TOKEN, starts_from_main
from toolkit.launchers.job import Job, JobHost
from toolkit.launchers.slots import Room, Taken, take_slots
from toolkit.launching import (
    AUTO,
    Start,
    elastic_problems,
    how_to_start,
    launcher_problems,
    transport_problems,
    without_ssh,
)
from toolkit.network.choose import cidrs
from toolkit.network.lint import lint_inventory
from toolkit.network.tuning import rules_text, tuned_for
from toolkit.network.tuning_json import parse_tunings
from toolkit.plan.holders import refuse_held
from toolkit.plan.job import plan_job, require_launcher, require_running, rooms
from toolkit.plan.layout import Layout
from toolkit.plan.ports import master_port
from toolkit.plan.programs import require_programs
from toolkit.plan.steps import Plan, SendCode
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
        max_restarts, min_hosts, stall_after, elastic: see ``Job``.
        with_spares: let spares take ranks like other hosts.
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
    max_restarts: int = 0
    min_hosts: int = 0
    stall_after: float | None = None
    elastic: bool = False
    with_spares: bool = False
    share: bool = False
    secrets: bool = True
    tuned: bool = True


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
            chosen = chosen_hosts(inventory, request)
    except BadInput as error:
        problems += error.problems
    if chosen and request.min_hosts > len(chosen):
        many = f"{request.min_hosts} hosts asked for at least, but the job has {len(chosen)}"
        problems.append(Problem("--min-hosts", many))
    launcher = request.launcher or (inventory.launcher if inventory is not None else "")
    if request.launcher:
        problems += launcher_problems(request.launcher)
    declared = [inventory.host(name).slots for name in chosen] if inventory is not None else []
    if request.ranks and chosen and all(s is not None for s in declared):
        total = sum(s or 0 for s in declared)
        if request.ranks > total:
            problems.append(Problem("--np", f"{request.ranks} ranks asked for, but there are {total} slots"))
    if request.workdir is not None and not is_folder(request.workdir):
        problems.append(Problem("--workdir", f"{request.workdir} is not a folder"))
    else:
        try:
            launcher = start_of(inventory, request).launcher
        except BadInput as error:
            problems += error.problems
    if request.elastic:
        problems += elastic_problems(launcher, request.max_restarts)
    if inventory is not None and inventory.in_parts:
        problems += transport_problems(launcher, request.max_restarts)
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
    hosts = chosen_hosts(inventory, request)
    return graver_first(lint_inventory(inventory, request.env, hosts))


def make_job(session: Session, request: Request) -> Job:
    """Return the job that the request makes on this cluster as it is now.

    Raises:
        BadInput: see ``check_request``; also more ranks than the slots found on the hosts.
        NotReady: a container does not run, other jobs have the slots, or somebody else holds a GPU.
    """
    inventory = session.inventory
    check_request(inventory, request)
    start = start_of(inventory, request)
    chosen = chosen_hosts(inventory, request)
    main = (inventory.main,) if starts_from_main(start.launcher, inventory.transport) else ()
    _refuse_lost(session, (*main, *chosen))
    layout = session.layout(local_image=False)
    _refuse_lost(session, (*main, *chosen))
    left_out = (*chosen, *request.exclude)
    spare = _usable_spares(session, layout, left_out) if request.max_restarts else ()
    concerned = list(dict.fromkeys((*main, *chosen, *spare)))
    require_launcher(layout, start.launcher, request.elastic)
    require_running(layout, concerned)
    require_programs(inventory.cluster, (session.facts[name] for name in concerned), inside_programs())
    running = () if request.share else taken_slots(job_statuses(session))
    try:
        hosts = take_slots(rooms(layout, chosen), request.ranks, running)
    except ValueError as error:
        raise BadInput("command line", (Problem("--np", str(error)),)) from error
    spares = tuple(taken for room in rooms(layout, spare) for taken in _spare(room, hosts, running))
    if not request.share:
        wanted = {host.name: host.gpus for host in hosts}
        refuse_held(session.facts, wanted, inventory.cluster, [each.job for each in running])
    taking_part = {host.name for host in (*hosts, *spares)} | {inventory.main}
    paths = {p.host: p for p in layout.paths if p.host in taking_part}
    given = read_secrets(inventory) if request.secrets else ()
    places = [(host.name, host.address, host.slots) for host in hosts]
    about_main = session.facts.get(inventory.main)
    kept = parse_tunings(about_main.tuned) if request.tuned and about_main else ()
    tunings = tuned_for(places, kept)
    now = datetime.now(timezone.utc)
    first = session.facts[hosts[0].name]
    name = job_id(now, request.words[0], secrets.token_hex(2))
    return Job(
        id=name,
        cluster=inventory.cluster,
        owner=getpass.getuser(),
        launcher=start.launcher,
        command=start.command,
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
        spares=spares,
        max_restarts=request.max_restarts,
        min_hosts=request.min_hosts,
        stall_after=request.stall_after,
        elastic=request.elastic,
        local_rank_word=start.local_rank_word,
        transport=inventory.transport,
        token=secrets.token_hex(32) if start.launcher in WITH_TOKEN else "",
    )


def start_of(inventory: Inventory | None, request: Request) -> Start:
    """Return how the request's ranks are started.

    Raises:
        BadInput: see ``how_to_start``.
    """
    launcher = request.launcher or (inventory.launcher if inventory is not None else AUTO)
    alone = request.ranks == 1
    start = how_to_start(request.words, request.workdir, launcher, bool(request.launcher), alone)
    return without_ssh(start) if inventory is not None and inventory.in_parts else start


def chosen_hosts(inventory: Inventory, request: Request) -> tuple[str, ...]:
    """Return the hosts that take ranks; a spare does when it is named."""
    chosen = choose_hosts(inventory, request.only, request.exclude)
    if request.only or request.with_spares:
        return chosen
    if left := tuple(name for name in chosen if name not in inventory.spares):
        return left
    raise BadInput("command line", (Problem("--exclude", "leaves spares alone; name those to use: --only"),))


def _usable_spares(session: Session, layout: Layout, left_out: Sequence[str]) -> tuple[str, ...]:
    """Return the spares that can be had: one that is away or not up must keep nobody from starting."""
    usable = []
    for name in session.inventory.spares:
        with contextlib.suppress(NotReady):
            if name not in left_out and name not in session.errors:
                require_running(layout, [name])
                usable.append(name)
    return tuple(usable)


def _spare(room: Room, hosts: Sequence[JobHost], running: Sequence[Taken]) -> tuple[JobHost, ...]:
    """Return a spare with the slots that it would have in place of one of these hosts, if they are free."""
    slots = min(room.slots, max(host.slots for host in hosts))
    try:
        return take_slots((room,), slots, running)
    except (ValueError, NotReady):
        return ()


def _refuse_lost(session: Session, names: Sequence[str]) -> None:
    for name in names:
        if name in session.errors:
            raise session.errors[name]


def plan_run(session: Session, job: Job, workdir: Path | None, tree: CodeTree | None = None) -> Plan:
    """Return the plan that starts the job.

    Args:
        tree: what ``read_tree`` has returned for ``workdir``, where it was read already.
    """
    if tree is None:
        tree = _read(workdir)
    return plan_job(session.layout(local_image=False), job, str(workdir or ""), tree)


def _read(workdir: Path | None) -> CodeTree:
    from toolkit.effects.tree import read_tree  # its rules for what is ignored take a while to import

    return CodeTree() if workdir is None else read_tree(workdir)


def code_findings(plan: Plan) -> tuple[Finding, ...]:
    """Return warnings about what a plan of ``plan_run`` sends: big files, or much in all."""
    trees = [step.tree for step in plan.steps if isinstance(step, SendCode)]
    return size_findings(trees[0]) if trees else ()
