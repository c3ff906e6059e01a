"""Which GPUs a host's container is given, and by which of the engine's ways; decided from file and facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from toolkit.cluster.nvidia import CDI_KIND, explain
from toolkit.core.facts import Facts, Gpu
from toolkit.errors import NotReady, together
from toolkit.hostsfile.inventory import Host, Inventory
from toolkit.plan.steps import Failure

# What a training container needs of the driver: CUDA, and nvidia-smi with NVML. Graphics and video are not.
CAPABILITIES = ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")
# Where NVIDIA's runtime is the default one, an image that asks for all GPUs gets them unless told otherwise.
NONE_VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "void")

_INSTALL = (
    "on {host}: install the NVIDIA Container Toolkit (package nvidia-container-toolkit), then"
    " sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
)
_REINSTALL = "on {host}: nvidia-smi -L; then reinstall the NVIDIA Container Toolkit and restart docker"
_GENERATE = "on {host}: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"

# How engines and NVIDIA's own tools word it when they cannot give GPUs.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"could not select device driver \"cdi\"",
        "CDI is switched off in the engine",
        '{host}: write "features": {{"cdi": true}} in /etc/docker/daemon.json, then restart docker',
    ),
    (
        r"could not select device driver|failed to discover GPU vendor from CDI|"
        r"nknown( or invalid)? runtime (name|specified):? ?nvidia|nvidia-container-runtime-hook.*not found",
        "the engine has no means to give a container GPUs: the NVIDIA Container Toolkit is missing",
        _INSTALL,
    ),
    (
        r"unresolvable CDI devices|CDI device injection failed",
        "the engine's CDI specification does not name these GPUs, so it is older than they are",
        _GENERATE,
    ),
    (
        r"nvidia-container-cli.*(driver not loaded|driver error|initialization error|nvml error)",
        "the NVIDIA driver and the NVIDIA Container Toolkit do not work together",
        "on {host}: nvidia-smi; when that works: reinstall the NVIDIA Container Toolkit",
    ),
    (
        r"nvidia-container-cli.*(device error|unknown device)",
        "a GPU that was there a moment ago cannot be given",
        "on {host}: nvidia-smi -L",
    ),
    (
        r"nvidia-container-cli.*(requirement error|unsatisfied condition)",
        "the image needs a newer NVIDIA driver than the host has",
        "on {host}: update the driver, or use an image with an older CUDA",
    ),
)


def gpu_failures(host: str) -> tuple[Failure, ...]:
    """Return what can go wrong on this host when a container is started with GPUs."""
    return tuple(Failure(says, what, fix.format(host=host)) for says, what, fix in _FAILURES)


def given_gpus(host: Host, facts: Facts, key: str = "") -> tuple[str, ...]:
    """Return the GPUs that a host's container gets, as indexes or UUIDs.

    Args:
        key: where in the file they are declared; the host's own place by default.

    Raises:
        NotReady: the file declares GPUs that nvidia-smi on the host does not list.
    """
    key = key or f"hosts/{host.name}/gpus"
    if host.gpus is not None and host.gpus > len(facts.gpus) and not host.gpu_ids:
        raise _missing(f"{host.gpus} GPUs are declared", facts, key)
    if not host.gpu_ids:
        return tuple(str(gpu.index) for gpu in facts.gpus[: host.gpus])
    known = _names(facts.gpus)
    if absent := [name for name in host.gpu_ids if name not in known]:
        raise _missing(f"gpus: names {', '.join(absent)}", facts, key)
    for gpu in facts.gpus:
        parts = [mig.uuid for mig in gpu.migs if mig.uuid in host.gpu_ids]
        if parts and gpu.uuid in host.gpu_ids:
            what = f"{parts[0]} is a part of {gpu.uuid}, and both are declared"
            raise NotReady(what, f"keep one of them in {key}", host.name)
    return host.gpu_ids


def renewal(facts: Facts) -> str:
    """Return what to do on a host whose engine gives other GPUs than it is asked for."""
    by_cdi = facts.cdi and not facts.nvidia_runtime
    return (_GENERATE if by_cdi else _REINSTALL).format(host=facts.host)


def _missing(declared: str, facts: Facts, key: str) -> NotReady:
    if not facts.gpus:
        what, fix = explain(facts.gpu_trouble, facts.host)
        fix = f"{fix}; without GPUs: gpus: 0 in the hosts file"
        return NotReady(f"{declared}, but {what}", fix, facts.host)
    listed = ", ".join(
        f"{gpu.index} {gpu.uuid}" + (f" (split: {', '.join(gpu.usable)})" if gpu.migs else "")
        for gpu in facts.gpus
    )
    trouble = f"; it also says: {facts.gpu_trouble}" if facts.gpu_trouble else ""
    what = f"{declared}, nvidia-smi on the host lists {len(facts.gpus)}: {listed}{trouble}"
    fix = f"correct {key}; on {facts.host}: nvidia-smi -L"
    return NotReady(what, fix, facts.host)


def _names(gpus: Iterable[Gpu]) -> dict[str, tuple[str, ...]]:
    """Return, for every name that a GPU or a part of one has, the UUIDs of what a process can compute on."""
    names: dict[str, tuple[str, ...]] = {}
    for gpu in gpus:
        names |= {str(gpu.index): gpu.usable, gpu.uuid: gpu.usable}
        names |= {mig.uuid: (mig.uuid,) for mig in gpu.migs}
    return names


def usable_uuids(given: Iterable[str], facts: Facts) -> frozenset[str]:
    """Return the UUIDs that a container should see when it is given these GPUs."""
    return frozenset(ordered_uuids(given, facts))


def ordered_uuids(given: Iterable[str], facts: Facts) -> tuple[str, ...]:
    """Return the UUIDs of what a container that is given these GPUs can compute on, in their order."""
    names = _names(facts.gpus)
    return tuple(dict.fromkeys(uuid for name in given for uuid in names[name]))


def gpu_access(given: tuple[str, ...], facts: Facts) -> tuple[str, tuple[str, ...]]:
    """Return what to ask the engine for, as ``Container.gpus`` and ``Container.cdi``; one of them is empty.

    ``--gpus`` where NVIDIA's runtime is there, and where nothing is: then the engine's own error says so.
    CDI where that is the only way.

    Raises:
        NotReady: the CDI specification on the host does not name the GPUs.
    """
    every = given == tuple(str(gpu.index) for gpu in facts.gpus)
    if not given:
        return "", ()
    if facts.nvidia_runtime or not facts.cdi:
        return "all" if every else ",".join(given), ()
    if every and "all" in facts.cdi:
        return "", (f"{CDI_KIND}=all",)
    found = [next((n for n in names if n in facts.cdi), "") for names in _cdi_names(given, facts)]
    if absent := [name for name, cdi in zip(given, found, strict=True) if not cdi]:
        what = f"the engine gives GPUs by CDI, but its specification names no {', '.join(absent)}"
        raise NotReady(what, _GENERATE.format(host=facts.host), facts.host)
    return "", tuple(f"{CDI_KIND}={name}" for name in found)


def _cdi_names(given: Iterable[str], facts: Facts) -> Iterable[tuple[str, ...]]:
    """Yield the names that nvidia-ctk may have given to each GPU: by UUID, by index, by ``gpu:part``."""
    for name in given:
        same: tuple[str, ...] = (name,)
        for gpu in facts.gpus:
            if name in (str(gpu.index), gpu.uuid):
                same = (gpu.uuid, str(gpu.index), f"gpu{gpu.index}")
            for mig in gpu.migs:
                if name == mig.uuid:
                    same = (mig.uuid, f"{gpu.index}:{mig.index}", f"mig{gpu.index}:{mig.index}")
        yield same


def share_gpus(
    inventory: Inventory, facts: Mapping[str, Facts]
) -> tuple[dict[str, tuple[str, ...]], tuple[NotReady, ...]]:
    """Return the GPUs of each host that can give what the file asks for, and the others' reasons.

    Raises:
        NotReady: no host can.
    """
    given: dict[str, tuple[str, ...]] = {}
    refused: list[NotReady] = []
    for host in (h for h in inventory.hosts if h.name in facts):
        try:
            gpus = given_gpus(host, facts[host.name])
            gpu_access(gpus, facts[host.name])
        except NotReady as error:
            refused.append(error)
        else:
            given[host.name] = gpus
    if refused and not given:
        raise together(refused)
    return given, tuple(refused)
