"""Turn a hosts file and a command into a job for Slurm or Kubernetes, or refuse unsupported parts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from toolkit.core.facts import Facts
from toolkit.core.printable import counted
from toolkit.errors import BadInput, Problem
from toolkit.export.job import BatchJob, BatchNode
from toolkit.export.kubernetes import KIND_OF
from toolkit.export.slurm import SLURM_LAUNCHES
from toolkit.hostsfile.errors import shown
from toolkit.hostsfile.inventory import Host, Inventory
from toolkit.jobs.request import Request, check_request, chosen_hosts, start_of
from toolkit.jobs.slots import SEVERAL_RANKS
from toolkit.protocol.transport import SSH

SLURM, KUBERNETES = "slurm", "kubernetes"
_CALLED = {SLURM: "Slurm", KUBERNETES: "Kubernetes"}
_LAUNCHERS = {SLURM: tuple(SLURM_LAUNCHES), KUBERNETES: tuple(KIND_OF)}

# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_WORD = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL = rf"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?{_WORD}"


@dataclass(frozen=True)
class BatchRequest:
    """A request for a job of Slurm or Kubernetes.

    Args:
        request: the command and its hosts.
        passed: names of variables whose values are set at submission.
        image: name of the image at the target; empty for the name in the hosts file.
        slots, gpus: numbers for every node; None for those of the hosts file or of the hosts.
        leave_out: parts of the hosts file to ignore, such as ``services`` or ``hosts/gpu1/env``.
        runtime: container runtime under Slurm: docker, pyxis or apptainer.
        resources: workers request more resources than GPUs, as RDMA requires in Kubernetes.
        host_network: pods use the network of their node.
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


def open_hosts(inventory: Inventory, batch: BatchRequest) -> tuple[str, ...]:
    """Return the hosts to query because neither the hosts file nor an option sets their number of GPUs.

    Raises:
        BadInput: see ``check_batch``.
    """
    if batch.gpus is not None:
        return ()
    chosen = (inventory.host(name) for name in chosen_hosts(inventory, batch.request))
    return tuple(host.name for host in chosen if _declared(host) is None and host.slots != 0)


def check_batch(inventory: Inventory, batch: BatchRequest, target: str) -> None:
    """Report all problems at once, before any host is contacted.

    Raises:
        BadInput: see ``toolkit.jobs.request.check_request``; or the target cannot express a part of the file.
    """
    check_request(_with_ssh(inventory), replace(batch.request, secrets=False), sent=False)
    problems = []
    start, fixes = start_of(_with_ssh(inventory), batch.request), []
    launcher = start.launcher
    if launcher not in _LAUNCHERS[target]:
        known = ", ".join(_LAUNCHERS[target])
        what = (
            f"toolkit cannot export a job with {launcher} to {_CALLED[target]}; supported launchers: {known}"
        )
        if start.why:
            what = f"launcher: auto selects {launcher} because {start.why}; {what}"
        problems.append(Problem("--launcher", what))
        fixes.append(f"add --launcher NAME, where NAME is one of {known}")
    if target == KUBERNETES and batch.host_network and KIND_OF.get(launcher) == "TrainJob":
        what = "a TrainJob cannot request the node's network; set hostNetwork in its ClusterTrainingRuntime"
        problems.append(Problem("--host-network", what))
    for word in batch.request.words:
        if any("\udc80" <= letter <= "\udcff" for letter in word):
            problems.append(
                Problem(
                    shown(word),
                    "this argument is not UTF-8, but a rendered job can contain only UTF-8",
                )
            )
    found = _hindrances(inventory, batch, target, launcher)
    for path in batch.leave_out:
        if not any(_below(each.path, path) for each in found):
            what = (
                "hosts.yaml does not set this key, or the key does not prevent an export to "
                f"{_CALLED[target]}"
            )
            problems.append(Problem(f"--leave-out {path}", what))
    refused = [each for each in found if not any(_below(each.path, path) for path in batch.leave_out)]
    if refused:
        fixes.append("add --leave-out PATH for each key that the job does not need")
    if problems or refused:
        source = inventory.source or "hosts file"
        raise BadInput(source, (*problems, *refused), "; ".join(fixes))


def prepare_batch_job(
    inventory: Inventory,
    batch: BatchRequest,
    target: str,
    ask: Callable[[tuple[str, ...]], Mapping[str, Facts]],
) -> BatchJob:
    """Return the job; query only hosts whose number of GPUs is unknown.

    Args:
        ask: returns the facts of these hosts.

    Raises:
        BadInput: see ``batch_job``.
    """
    check_batch(inventory, batch, target)
    unknown = open_hosts(inventory, batch)
    return batch_job(inventory, batch, target, ask(unknown) if unknown else {})


def batch_job(inventory: Inventory, batch: BatchRequest, target: str, facts: Mapping[str, Facts]) -> BatchJob:
    """Return the job.

    Args:
        facts: facts of the hosts that ``open_hosts`` returns.

    Raises:
        BadInput: see ``check_batch``; or nodes differ and the target requires equal nodes.
    """
    check_batch(inventory, batch, target)
    start = start_of(_with_ssh(inventory), batch.request)
    plain = target == SLURM and batch.runtime == "docker"
    request = batch.request
    # Later sources override earlier ones. The submission sets the values of variables that are None here.
    env: dict[str, str | None] = {
        **dict(inventory.env),
        **dict.fromkeys(name for name, _ in inventory.secrets),
        **dict.fromkeys(batch.passed),
        **dict(request.env),
    }
    nodes = tuple(
        made
        for name in chosen_hosts(inventory, batch.request)
        if (made := _node(inventory.host(name), batch, facts, target)).slots
    )
    if not nodes:
        fix = "in hosts.yaml: set slots of a selected host to 1 or more"
        raise BadInput("command line", (Problem("", "none of the selected hosts has a slot"),), fix)
    _refuse_too_few_gpus(inventory, nodes, env)
    if plain:
        _refuse_without_gpu(inventory, nodes)
    else:
        _refuse_unequal(inventory, nodes, _CALLED[target] if target == KUBERNETES else batch.runtime)
    command = start.command
    if start.local_rank_word:
        script = next(number for number, word in enumerate(command) if word.endswith(".py")) + 1
        before, after = shlex.join(command[:script]), shlex.join(command[script:])
        if command[0] == "python":  # see rank.sh.j2
            before = before.replace("python", '"$(command -v python || echo python3)"', 1)
        command = ("sh", "-c", f'exec {before} {start.local_rank_word}="$LOCAL_RANK" {after}'.rstrip())
    # All unsupported parts have been left out by now.
    left = {each.path for each in _hindrances(inventory, batch, target, start.launcher)}
    return BatchJob(
        name=_name(inventory.cluster, request.words),
        cluster=inventory.cluster,
        image=batch.image or inventory.image,
        pull=inventory.pull,
        launcher=start.launcher,
        command=command,
        nodes=nodes,
        env=tuple(sorted((name, value) for name, value in env.items() if value is not None)),
        passed=tuple(sorted(name for name, value in env.items() if value is None)),
        mounts=tuple(each for each in inventory.all_mounts if f"mounts/{each.target}" not in left),
        labels=tuple(pair for pair in inventory.labels if f"labels/{pair[0]}" not in left),
        ulimits=tuple(each for each in inventory.ulimits if f"ulimits/{each.name}" not in left),
        shm_bytes=inventory.shm_bytes,
        network=inventory.network,
        timeout=request.timeout,
        grace=max(1, round(request.grace)),
    )


def _with_ssh(inventory: Inventory) -> Inventory:
    # Slurm and the operators start the ranks, so the transport between the hosts restricts no launcher.
    return replace(inventory, transport=SSH)


def _node(host: Host, batch: BatchRequest, facts: Mapping[str, Facts], target: str) -> BatchNode:
    gpus = _declared(host) if batch.gpus is None else batch.gpus
    if gpus is None:
        gpus = len(facts[host.name].gpus) if host.name in facts else 0
    slots = host.slots
    if slots is None or (batch.slots is not None and slots):
        slots = batch.slots if batch.slots is not None else gpus or 1
    # The command line has priority over variables of a host.
    given = {*dict(batch.request.env), *batch.passed}
    env = tuple(pair for pair in host.env if target == SLURM and pair[0] not in given)
    return BatchNode(host.name, slots, gpus, host.data_address, env)


def _declared(host: Host) -> int | None:
    return len(host.gpu_ids) or host.gpus


def _refuse_too_few_gpus(
    inventory: Inventory, nodes: Sequence[BatchNode], env: Mapping[str, str | None]
) -> None:
    """Refuse nodes with fewer GPUs than slots, unless a variable declares that ranks share GPUs."""
    problems = tuple(
        Problem(f"hosts/{node.name}", f"the host has {_size(node)}, but by default each slot needs one GPU")
        for node in nodes
        if 0 < node.gpus < node.slots and {**env, **dict(node.env)}.get(SEVERAL_RANKS) != "1"
    )
    if problems:
        least = min(node.gpus for node in nodes if node.gpus)
        fix = (
            f"add --slots {least}, --gpus 0 or --env {SEVERAL_RANKS}=1  # --slots applies to all hosts with "
            "slots; --gpus 0 runs ranks on the CPU; --env lets ranks share GPUs (requires Gloo, or NCCL 2.30 "
            "or newer)"
        )
        raise BadInput(inventory.source or "hosts file", problems, fix)


def _refuse_unequal(inventory: Inventory, nodes: Sequence[BatchNode], called: str) -> None:
    first = nodes[0]
    unequal = [node for node in nodes if (node.slots, node.gpus) != (first.slots, first.gpus)]
    if unequal:
        problems = [
            Problem(
                f"hosts/{node.name}",
                f"the host has {_size(node)}, but {first.name} has {_size(first)}; "
                f"a job for {called} requires equal nodes",
            )
            for node in unequal
        ]
        fix = (
            "add --slots N --gpus N, or --only HOST,...  # --slots and --gpus apply to all hosts with slots; "
            "--only selects hosts with equal slots and GPUs"
        )
        raise BadInput(inventory.source or "hosts file", tuple(problems), fix)


def _refuse_without_gpu(inventory: Inventory, nodes: Sequence[BatchNode]) -> None:
    """Refuse nodes without GPUs beside nodes with GPUs (https://slurm.schedmd.com/sbatch.html#OPT_gpus)."""
    own = [node.name for node in nodes if node.gpus]
    without = [node for node in nodes if not node.gpus]
    if own and without:
        what = f"the host has no GPU, unlike {own[0]}; Slurm requires a GPU on each node of a job with GPUs"
        fix = f"add --only {','.join(own)}, or --gpus N  # --gpus applies to all hosts with slots"
        problems = tuple(Problem(f"hosts/{node.name}", what) for node in without)
        raise BadInput(inventory.source or "hosts file", problems, fix)


def _size(node: BatchNode) -> str:
    return f"{counted(node.slots, 'slot')} and {counted(node.gpus, 'GPU')}"


def _hindrances(inventory: Inventory, batch: BatchRequest, target: str, launcher: str) -> list[Problem]:
    """Return the parts of the hosts file that the target cannot express."""
    called = _CALLED[target] if target == KUBERNETES or batch.runtime == "docker" else batch.runtime
    chosen = [inventory.host(name) for name in chosen_hosts(inventory, batch.request)]
    found = [
        Problem(f"services/{each.name}", "a rendered job cannot contain services")
        for each in inventory.services
    ]
    found += [
        Problem(
            f"hosts/{host.name}/gpus",
            f"{_CALLED[target]} chooses the GPUs of a job, so a rendered job contains only their number",
        )
        for host in chosen
        if host.gpu_ids
    ]
    if target == KUBERNETES:
        if inventory.pull == "always" and KIND_OF.get(launcher) == "TrainJob":
            what = "a TrainJob cannot set imagePullPolicy; set imagePullPolicy in its ClusterTrainingRuntime"
            found.append(Problem("image/pull", what))
        found += [
            Problem(
                f"hosts/{host.name}/env",
                "a rendered Kubernetes job cannot set a variable for only one worker",
            )
            for host in chosen
            if host.env
        ]
        if inventory.network in ("infiniband", "efa") and not batch.resources:
            what = f"{inventory.network} requires a resource of your device plugin (--resource NAME=N)"
            found.append(Problem("network", what))
        found += [
            Problem(f"labels/{name}", "the label is not valid in Kubernetes")
            for name, value in inventory.labels
            if not re.fullmatch(_LABEL, name) or not re.fullmatch(f"({_WORD})?", value)
        ]
    if target == KUBERNETES or batch.runtime != "docker":
        found += [
            Problem(f"ulimits/{each.name}", f"{called} cannot set ulimits") for each in inventory.ulimits
        ]
    if target == SLURM and batch.runtime != "docker":
        found += [
            Problem(f"labels/{name}", f"{called} does not support labels") for name, _ in inventory.labels
        ]
        found += [
            Problem(f"mounts/{mount.target}", f"{called} accepts no path with ',' or ':'")
            for mount in inventory.all_mounts
            if {",", ":"} & set(mount.source + mount.target)
        ]
    return found


def _below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}/")


def _name(cluster: str, words: Sequence[str]) -> str:
    """Return a DNS label that begins with a letter and has room for the suffixes of operators."""
    stem = PurePosixPath(words[0]).name.rsplit(".", 1)[0] if words else ""
    name = re.sub(r"[^a-z0-9]+", "-", f"{cluster}-{stem}".lower()).strip("-")
    return (name if name[:1].isalpha() else f"job-{name}")[:40].strip("-")
