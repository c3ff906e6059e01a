"""A request to run a job, and the checks that refuse it before any host is contacted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from toolkit.core.finding import Finding, graver_first
from toolkit.core.image import ImageFacts
from toolkit.core.printable import counted
from toolkit.env_lint.lint import lint_inventory, lint_nccl
from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.fields import env_name
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import choose_hosts, is_folder, read_secrets
from toolkit.jobs.launcher import (
    AUTO,
    Start,
    elastic_problems,
    how_to_start,
    launcher_problems,
    script_problems,
    transport_problems,
    without_ssh,
)
from toolkit.jobs.slots import too_few_slots
from toolkit.protocol.host_list import every_host
from toolkit.protocol.transport import NO_SSH


@dataclass(frozen=True)
class Request:
    """The command and the options of a job.

    Args:
        words: a script of ``workdir`` with its arguments, or a command.
        workdir: local folder whose files become the job's snapshot; None sends nothing.
        ranks: None means one per slot.
        launcher: empty means the hosts file's.
        max_restarts, min_hosts, stall_after, elastic: see ``Job``.
        with_spares: let spares take ranks like other hosts.
        share: oversubscribe slots and GPUs that are already taken.
        secrets: hand the hosts file's secrets to the ranks.
        tuned: give the ranks the settings that `toolkit network tune` found for exactly these ranks.
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


@dataclass(frozen=True)
class CheckedRequest:
    """A request without problems that your machine can detect.

    Args:
        start: how its ranks are started, which was decided once, by the sources as they were then.
    """

    request: Request
    start: Start


def check_request(inventory: Inventory | None, request: Request, sent: bool = True) -> CheckedRequest:
    """Report all problems of a request at once, before any host is contacted.

    Args:
        inventory: None if the hosts file has problems; then only the rest is checked.
        sent: the ranks run the copy of the folder that toolkit sends, without ignored files.

    Raises:
        BadInput: unknown launcher or hosts, more ranks than declared slots, a folder, a script or a
            secret that is not there, or a script that is not sent.
        ToolkitError: an ignore file of the folder cannot be read.
    """
    problems = _number_problems(request) + _variable_problems(request)
    chosen: tuple[str, ...] = ()
    try:
        if inventory is not None:
            chosen = chosen_hosts(inventory, request)
    except BadInput as error:
        problems += error.problems
    if chosen and request.min_hosts > len(chosen):
        many = f"the job has {counted(len(chosen), 'host')}, but the minimum is {request.min_hosts}"
        problems.append(Problem("--min-hosts", many))
    if request.min_hosts > 0 and not request.max_restarts:
        what = "has no effect, because the job has no restarts; add --max-restarts N"
        problems.append(Problem("--min-hosts", what))
    launcher = request.launcher or (inventory.launcher if inventory is not None else "")
    start: Start | None = None
    if request.launcher:
        problems += launcher_problems(request.launcher)
    declared = [inventory.host(name).slots for name in chosen] if inventory is not None else []
    if request.ranks and chosen and all(s is not None for s in declared):
        total = sum(s or 0 for s in declared)
        if request.ranks > total:
            problems.append(Problem("--np", too_few_slots(request.ranks, total)))
    if request.workdir is not None and not is_folder(request.workdir):
        problems.append(Problem("--workdir", f"{request.workdir} is not a folder"))
    else:
        try:
            start = start_of(inventory, request)
            # Without an inventory it is unknown whether the hosts file names a launcher.
            launcher = start.launcher if launcher else ""
            problems += script_problems(start.command, request.workdir) if sent else ()
        except BadInput as error:
            problems += error.problems
    if request.elastic:
        why = start.why if start is not None else ""
        problems += elastic_problems(launcher, request.max_restarts, why)
    if inventory is not None and inventory.in_parts:
        problems += transport_problems(launcher, request.max_restarts)
    sources = ["command line"] if problems else []
    if request.secrets and inventory is not None:
        try:
            read_secrets(inventory)
        except BadInput as error:
            problems += error.problems
            sources.insert(0, error.source)
    if problems or start is None:
        raise BadInput(" and ".join(sources), tuple(problems))
    return CheckedRequest(request, start)


def with_transport(checked: CheckedRequest, inventory: Inventory) -> CheckedRequest:
    """Return the request for the transport that `up` chose for ``transport: auto``.

    Raises:
        BadInput: the request needs SSH between the containers, and the image does not have it.
    """
    if not (inventory.chosen_transport and inventory.in_parts):
        return checked
    start = without_ssh(checked.start)
    if problems := transport_problems(start.launcher, checked.request.max_restarts, NO_SSH):
        raise BadInput("command line", tuple(problems))
    return replace(checked, start=start)


def _number_problems(request: Request) -> list[Problem]:
    least = (
        ("--np", request.ranks, 1),
        ("--max-restarts", request.max_restarts, 0),
        ("--min-hosts", request.min_hosts, 0),
    )
    found = [
        Problem(name, f"should be at least {bound}, found {number}")
        for name, number, bound in least
        if number is not None and number < bound
    ]
    seconds = (("--timeout", request.timeout), ("--stall-after", request.stall_after))
    return found + [
        Problem(name, f"should be more than 0 s, found {number:g} s")
        for name, number in seconds
        if number is not None and not number > 0
    ]


def _variable_problems(request: Request) -> list[Problem]:
    found: list[Problem] = []
    for whole, value in request.env:
        name = whole.partition("=")[0]
        try:
            env_name(whole)
        except ValueError as error:
            found.append(Problem(f"--env {name}", str(error)))
        if "\0" in value:
            # The value can be a secret, so no message repeats it.
            found.append(Problem(f"--env {name}", "contains a NUL byte, which a variable cannot contain"))
    return found


def environment_findings(inventory: Inventory, request: Request) -> tuple[Finding, ...]:
    """Return findings about the variables of the ranks, errors first; no host is contacted.

    Raises:
        BadInput: the request's hosts, see ``choose_hosts``.
    """
    hosts = chosen_hosts(inventory, request)
    return graver_first(lint_inventory(inventory, request.env, hosts))


def nccl_findings(inventory: Inventory, request: Request, image: ImageFacts) -> tuple[Finding, ...]:
    """Return findings about variables that the NCCL of the image does not know yet.

    The image names its version in a variable, as images from toolkit and NVIDIA do.
    """
    nccl = dict(image.env).get("NCCL_VERSION", "")
    return lint_nccl(inventory, nccl, request.env, chosen_hosts(inventory, request))


def start_of(inventory: Inventory | None, request: Request) -> Start:
    """Return the launcher and the command of a request.

    Raises:
        BadInput: see ``how_to_start``.
    """
    launcher = request.launcher or (inventory.launcher if inventory is not None else AUTO)
    alone = request.ranks == 1
    start = how_to_start(request.words, request.workdir, launcher, bool(request.launcher), alone)
    return without_ssh(start) if inventory is not None and inventory.in_parts else start


def chosen_hosts(inventory: Inventory, request: Request) -> tuple[str, ...]:
    """Return the hosts that take ranks; a spare only if it is named."""
    chosen = choose_hosts(inventory, every_host(request.only), every_host(request.exclude))
    if request.only or request.with_spares:
        return chosen
    if left := tuple(name for name in chosen if name not in inventory.spares):
        return left
    raise BadInput(
        "command line", (Problem("--exclude", "leaves only spare hosts; select spare hosts with --only"),)
    )
