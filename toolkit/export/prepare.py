"""From a hosts file and a command to a job for Slurm or Kubernetes; what they lack means for is refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from toolkit.core.facts import Facts
from toolkit.errors import BadInput, Problem
from toolkit.export.job import BatchJob, BatchNode
from toolkit.export.kubernetes import KIND_OF
from toolkit.export.slurm_launches import SLURM_LAUNCHES
from toolkit.hostsfile.inventory import Host, Inventory
from toolkit.hostsfile.words import shown
from toolkit.jobs.request import Request, check_request, chosen_hosts, start_of

SLURM, KUBERNETES = "slurm", "kubernetes"
_CALLED = {SLURM: "Slurm", KUBERNETES: "Kubernetes"}
_LAUNCHERS = {SLURM: tuple(SLURM_LAUNCHES), KUBERNETES: tuple(KIND_OF)}

# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_WORD = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL = rf"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?{_WORD}"


@dataclass(frozen=True)
class Away:
    """What a person asks to run elsewhere.

    Args:
        request: what is run, and on which of the hosts.
        passed: names of variables whose values are given where it is submitted.
        image: as it is called there; empty for the hosts file's name.
        slots, gpus: of every node, whatever the hosts file and the hosts say; None for that.
        leave_out: parts of the hosts file that may be missing there, as ``services`` or ``hosts/gpu1/env``.
        runtime: of Slurm: docker, pyxis or apptainer.
        resources: whether workers ask for more than GPUs, as RDMA wants it from Kubernetes.
        host_network: whether pods are to stand on their node's network.
    """

    request: Request
    passed: tuple[str, ...] = ()
    image: str = ""
    slots: int | None = None
    gpus: int | None = None
    leave_out: tuple[str, ...] = field(default=())
    runtime: str = "docker"
    resources: bool = False
    host_network: bool = False


def open_hosts(inventory: Inventory, away: Away) -> tuple[str, ...]:
    """Return the hosts that must be asked, because nothing says how many GPUs they have.

    Raises:
        BadInput: see ``check_away``.
    """
    if away.gpus is not None:
        return ()
    chosen = (inventory.host(name) for name in chosen_hosts(inventory, away.request))
    return tuple(host.name for host in chosen if _declared(host) is None and host.slots != 0)


def check_away(inventory: Inventory, away: Away, target: str) -> None:
    """Refuse what can be seen to be wrong before anybody is asked anything, all of it at once.

    Raises:
        BadInput: as ``toolkit.jobs.request.check_request``; the target has no means for a part of the file.
    """
    check_request(inventory, replace(away.request, secrets=False))
    problems = []
    launcher = start_of(inventory, away.request).launcher
    if launcher not in _LAUNCHERS[target]:
        known = ", ".join(_LAUNCHERS[target])
        problems.append(Problem("--launcher", f"{launcher} is not rendered for {_CALLED[target]}: {known}"))
    if target == KUBERNETES and away.host_network and KIND_OF.get(launcher) == "TrainJob":
        what = "a TrainJob cannot ask for its node's network; its TrainingRuntime can"
        problems.append(Problem("--host-network", what))
    for word in away.request.words:
        if any("\udc80" <= letter <= "\udcff" for letter in word):
            problems.append(Problem(shown(word), "is not UTF-8, and what is written for others to start is"))
    found = _hindrances(inventory, away, target)
    for path in away.leave_out:
        if not any(_below(each.path, path) for each in found):
            problems.append(Problem(f"--leave-out {path}", "nothing of that name is in the way"))
    problems += [each for each in found if not any(_below(each.path, path) for path in away.leave_out)]
    if problems:
        fix = "--leave-out PATH, for what may be missing there" if found else ""
        raise BadInput(inventory.source or "hosts file", tuple(problems), fix)


def job_elsewhere(
    inventory: Inventory, away: Away, target: str, ask: Callable[[tuple[str, ...]], Mapping[str, Facts]]
) -> BatchJob:
    """Return the job as it leaves; hosts are asked only where nothing says how many GPUs they have.

    Args:
        ask: returns what these hosts say.

    Raises:
        BadInput: see ``batch_job``.
    """
    check_away(inventory, away, target)
    unknown = open_hosts(inventory, away)
    return batch_job(inventory, away, target, ask(unknown) if unknown else {})


def batch_job(inventory: Inventory, away: Away, target: str, facts: Mapping[str, Facts]) -> BatchJob:
    """Return the job.

    Args:
        facts: of the hosts that ``open_hosts`` names.

    Raises:
        BadInput: see ``check_away``; or nodes differ where the target wants them alike.
    """
    check_away(inventory, away, target)
    start = start_of(inventory, away.request)
    plain = target == SLURM and away.runtime == "docker"
    nodes = tuple(
        made
        for name in chosen_hosts(inventory, away.request)
        if (made := _node(inventory.host(name), away, facts, target)).slots
    )
    if not nodes:
        raise BadInput("command line", (Problem("", "none of the hosts has a slot"),))
    if not plain:
        _refuse_unlike(inventory, nodes, _CALLED[target] if target == KUBERNETES else away.runtime)
    command = start.command
    if start.local_rank_word:
        script = next(number for number, word in enumerate(command) if word.endswith(".py")) + 1
        before, after = shlex.join(command[:script]), shlex.join(command[script:])
        command = ("sh", "-c", f'exec {before} --local_rank="$LOCAL_RANK" {after}'.rstrip())
    request = away.request
    # All that is in the way has been left out by now.
    left = {each.path for each in _hindrances(inventory, away, target)}
    return BatchJob(
        name=_name(inventory.cluster, request.words),
        cluster=inventory.cluster,
        image=away.image or inventory.image,
        pull=inventory.pull,
        launcher=start.launcher,
        command=command,
        nodes=nodes,
        env=tuple(sorted({**dict(inventory.env), **dict(request.env)}.items())),
        passed=tuple(sorted({*(name for name, _ in inventory.secrets), *away.passed})),
        mounts=tuple(each for each in inventory.all_mounts if f"mounts/{each.target}" not in left),
        labels=tuple(pair for pair in inventory.labels if f"labels/{pair[0]}" not in left),
        ulimits=tuple(each for each in inventory.ulimits if f"ulimits/{each.name}" not in left),
        shm_bytes=inventory.shm_bytes,
        network=inventory.network,
        timeout=request.timeout,
        grace=max(1, round(request.grace)),
    )


def _node(host: Host, away: Away, facts: Mapping[str, Facts], target: str) -> BatchNode:
    gpus = _declared(host) if away.gpus is None else away.gpus
    if gpus is None:
        gpus = len(facts[host.name].gpus) if host.name in facts else 0
    slots = host.slots
    if slots is None or (away.slots is not None and slots):
        slots = away.slots if away.slots is not None else gpus or 1
    return BatchNode(host.name, slots, gpus, host.data_address, host.env if target == SLURM else ())


def _declared(host: Host) -> int | None:
    return len(host.gpu_ids) or host.gpus


def _refuse_unlike(inventory: Inventory, nodes: Sequence[BatchNode], called: str) -> None:
    first = nodes[0]
    unlike = [node for node in nodes if (node.slots, node.gpus) != (first.slots, first.gpus)]
    if unlike:
        problems = [
            Problem(
                f"hosts/{node.name}",
                f"has {node.slots} slots and {node.gpus} GPUs, and {first.name} {first.slots} and "
                f"{first.gpus}: {called} makes all alike",
            )
            for node in unlike
        ]
        fix = "--slots N --gpus N for all of them, or --only HOST for those that are alike"
        raise BadInput(inventory.source or "hosts file", tuple(problems), fix)


def _hindrances(inventory: Inventory, away: Away, target: str) -> list[Problem]:
    """Return what the hosts file says and the target has no means for."""
    called = _CALLED[target] if target == KUBERNETES or away.runtime == "docker" else away.runtime
    chosen = [inventory.host(name) for name in chosen_hosts(inventory, away.request)]
    found = [
        Problem(f"services/{each.name}", "is a container of its own, and what is rendered is one job")
        for each in inventory.services
    ]
    found += [
        Problem(
            f"hosts/{host.name}/gpus",
            f"{_CALLED[target]} chooses which GPUs a job has; their number is kept",
        )
        for host in chosen
        if host.gpu_ids
    ]
    if target == KUBERNETES:
        found += [
            Problem(f"hosts/{host.name}/env", "all workers are alike there") for host in chosen if host.env
        ]
        if inventory.network in ("infiniband", "efa") and not away.resources:
            what = f"{inventory.network} wants the resource of your device plugin: --resource NAME=N"
            found.append(Problem("network", what))
        found += [
            Problem(f"labels/{name}", "is no label of Kubernetes")
            for name, value in inventory.labels
            if not re.fullmatch(_LABEL, name) or not re.fullmatch(f"({_WORD})?", value)
        ]
    if target == KUBERNETES or away.runtime != "docker":
        found += [Problem(f"ulimits/{each.name}", f"{called} sets no limits") for each in inventory.ulimits]
    if target == SLURM and away.runtime != "docker":
        found += [Problem(f"labels/{name}", f"{called} has no labels") for name, _ in inventory.labels]
        found += [
            Problem(f"mounts/{mount.target}", f"{called} takes no path with ',' or ':'")
            for mount in inventory.all_mounts
            if {",", ":"} & set(mount.source + mount.target)
        ]
    return found


def _below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}/")


def _name(cluster: str, words: Sequence[str]) -> str:
    """Return a name that is a label of DNS, begins with a letter, and has room for what operators add."""
    stem = PurePosixPath(words[0]).name.rsplit(".", 1)[0] if words else ""
    name = re.sub(r"[^a-z0-9]+", "-", f"{cluster}-{stem}".lower()).strip("-")
    return (name if name[:1].isalpha() else f"job-{name}")[:40].strip("-")
