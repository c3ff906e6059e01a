"""From a request to a Job on the hosts that answered, and to the plan that starts it."""

from __future__ import annotations

import contextlib
import copy
import getpass
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from toolkit.cluster.gpu_usage import refuse_held
from toolkit.cluster.layout import Layout
from toolkit.cluster.ports import master_port
from toolkit.cluster.session import Session, observe_layout
from toolkit.cluster.versions import require_programs
from toolkit.core.code import CodeTree, size_findings
from toolkit.core.command import quoted
from toolkit.core.finding import Finding
from toolkit.core.host_programs import container_programs
from toolkit.errors import BadInput, NotReady, Problem, ToolkitError
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import private_files, read_secrets
from toolkit.jobs.code import read_tree
from toolkit.jobs.plan import plan_job, require_launcher, require_running, rooms
from toolkit.jobs.records import taken_slots
from toolkit.jobs.request import CheckedRequest, Request, check_request, chosen_hosts
from toolkit.jobs.slots import Room, Taken, take_slots
from toolkit.launchers import WITH_TOKEN, starts_from_main
from toolkit.launchers.job import Job, JobHost
from toolkit.network.choose import cidrs
from toolkit.network.tuning import parse_tunings, rules_text, tuned_for
from toolkit.plan.steps import Plan, SendCode
from toolkit.protocol.host_list import every_host
from toolkit.protocol.names import job_id


@dataclass(frozen=True)
class PlannedJob:
    """A job and the plan that starts it; ``layout`` is that of the cluster that runs."""

    job: Job
    plan: Plan
    layout: Layout


def plan_request(
    session: Session, request: Request, known: Layout | ToolkitError | None = None
) -> PlannedJob:
    """Return the job that the request makes on this cluster as it is now, and its plan.

    Args:
        known: the layout of the cluster that runs, or why there is none, where that is known already.

    Raises:
        BadInput: see ``check_request`` and ``make_job``.
        NotReady: see ``job_layout`` and ``make_job``.
    """
    checked = check_request(session.inventory, request)
    layout = job_layout(session, checked, known)
    job = make_job(session, checked, layout)
    code = read_code(session.inventory, request.workdir)
    plan = plan_job(layout, job, str(request.workdir or ""), code)
    return PlannedJob(job, plan, layout)


def job_layout(
    session: Session, checked: CheckedRequest, known: Layout | ToolkitError | None = None
) -> Layout:
    """Return the layout of the cluster that runs, on which the hosts of a job can be used.

    Args:
        known: see ``plan_request``.

    Raises:
        ToolkitError: a host of the job did not answer, or does not have what the hosts file requires.
        NotReady: the cluster is not up.
    """
    needed = _needed(session.inventory, checked)
    _refuse_lost(session, needed, checked.request)
    if isinstance(known, ToolkitError):
        raise known
    layout = known or observe_layout(session, running=True)
    _refuse_lost(session, needed, checked.request)
    return layout


def _needed(inventory: Inventory, checked: CheckedRequest) -> tuple[str, ...]:
    """Return the hosts that a job needs: that of its launcher, and those of its ranks."""
    from_main = starts_from_main(checked.start.launcher, inventory.used_transport)
    return (*((inventory.main,) if from_main else ()), *chosen_hosts(inventory, checked.request))


def make_job(session: Session, checked: CheckedRequest, layout: Layout) -> Job:
    """Return the job that a request makes on this cluster as it is now.

    Args:
        layout: from ``job_layout``.

    Raises:
        BadInput: more ranks than the slots found on the hosts.
        NotReady: a container is not running, other jobs have the slots, or another process holds a GPU.
    """
    inventory, request, start = session.inventory, checked.request, checked.start
    chosen = chosen_hosts(inventory, request)
    left_out = (*chosen, *every_host(request.exclude))
    may_replace = request.max_restarts and not request.only  # --only names all hosts of the job
    spare = _usable_spares(session, layout, left_out) if may_replace else ()
    concerned = list(dict.fromkeys((*_needed(inventory, checked), *spare)))
    require_launcher(layout, start.launcher, request.elastic)
    require_running(layout, concerned, lambda lost: _without(inventory, lost, request))
    require_programs(inventory.cluster, (session.facts[name] for name in concerned), container_programs())
    running = () if request.share else taken_slots(session)
    try:
        hosts = take_slots(rooms(layout, chosen), request.ranks, running)
    except ValueError as error:
        raise BadInput("command line", (Problem("--np", str(error)),)) from error
    compared = {each.job: _gpus_of(each, rooms(layout, (*chosen, *spare))) for each in running}

    def require_free(taken: Sequence[JobHost]) -> None:
        if not request.share:
            wanted = {host.name: host.gpus for host in taken}
            refuse_held(session.facts, wanted, inventory.cluster, compared)

    require_free(hosts)
    most = max(host.slots for host in hosts)
    spares = tuple(
        taken for room in rooms(layout, spare) for taken in _spare(room, most, running, require_free)
    )
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
        host_env=tuple((name, tuple(sorted(env))) for name in concerned if (env := inventory.host(name).env)),
        override=tuple(sorted(dict(request.env).items())),
        tuned=tuple(pair for tuning in tunings for pair in tuning.env),
        rules="".join(map(rules_text, tunings)),
        timeout=request.timeout,
        grace=request.grace,
        share=request.share,
        log_bytes=inventory.log_bytes,
        spares=spares,
        max_restarts=request.max_restarts,
        min_hosts=min(request.min_hosts, len(hosts)),
        stall_after=request.stall_after,
        elastic=request.elastic,
        local_rank_word=start.local_rank_word,
        transport=inventory.used_transport,
        token=secrets.token_hex(32) if start.launcher in WITH_TOKEN else "",
        secret_names=tuple(sorted(name for name, _ in given)),
    )


def _usable_spares(session: Session, layout: Layout, left_out: Sequence[str]) -> tuple[str, ...]:
    """Return the usable spares; a spare that is away or not up does not prevent the job."""
    usable = []
    for name in session.inventory.spares:
        with contextlib.suppress(NotReady):
            if name not in left_out and name not in session.errors:
                require_running(layout, [name])
                usable.append(name)
    return tuple(usable)


def _spare(
    room: Room, most: int, running: Sequence[Taken], require_free: Callable[[Sequence[JobHost]], None]
) -> tuple[JobHost, ...]:
    """Return a spare with at most this number of slots, if they and their GPUs are free."""
    try:
        found = take_slots((room,), min(room.slots, most), running)
        require_free(found)
    except (ValueError, NotReady):
        return ()
    return found


def _gpus_of(job: Taken, rooms: Sequence[Room]) -> dict[str, tuple[str, ...]]:
    """Return the GPUs of a job's slots, by host, as hosts.yaml now divides the GPUs."""
    used = [(room, job.slots.get(room.name, ())) for room in rooms if room.slots]  # main can have none now
    return {room.name: room.gpus_of(slots) for room, slots in used if slots}


def _refuse_lost(session: Session, names: Sequence[str], request: Request) -> None:
    """Raise the error of the first of these hosts that did not answer."""
    lost = [name for name in names if name in session.errors]
    if not lost:
        return
    error = copy.copy(session.errors[lost[0]])
    if without := _without(session.inventory, lost, request):
        error.fix += f"\n{without}  # runs the job on the other hosts"
    raise error


def _without(inventory: Inventory, lost: Sequence[str], request: Request) -> str:
    """Return the command that runs a job without these hosts too; empty if no command can."""
    if inventory.main in lost or request.only:
        return ""
    other = replace(request, exclude=(*request.exclude, *lost))
    try:
        check_request(inventory, other, sent=False)
    except BadInput:
        return ""
    # An excluded word can be a host list in brackets, which a shell expands without quotes.
    return f"toolkit run --exclude {quoted(','.join(other.exclude))} …"


def read_code(inventory: Inventory, workdir: Path | None) -> CodeTree:
    """Return the files of a local folder to send: all except ignored and private files."""
    return CodeTree() if workdir is None else read_tree(workdir, private=private_files(inventory))


def private_code(plan: Plan, hosts_file: str = "") -> tuple[str, ...]:
    """Return the private files in the folder of the code that a plan of ``plan_job`` does not send.

    Args:
        hosts_file: a file that is not reported, because no script reads it.
    """
    sent = next((step for step in plan.steps if isinstance(step, SendCode)), None)
    if sent is None:
        return ()
    known = Path(hosts_file).resolve() if hosts_file else None
    return tuple(name for name in sent.tree.private if (Path(sent.source) / name).resolve() != known)


def code_findings(plan: Plan) -> tuple[Finding, ...]:
    """Return warnings about what a plan of ``plan_job`` sends: big files, or a big total."""
    trees = [step.tree for step in plan.steps if isinstance(step, SendCode)]
    return size_findings(trees[0]) if trees else ()
