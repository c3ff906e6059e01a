"""GPUs of hosts and of their containers: the list of nvidia-smi, the GPUs of a container, and access to them.

It covers drivers of all ages; known errors of nvidia-smi and of engines have fixes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from toolkit.core.engines import DOCKER, PODMAN
from toolkit.core.facts import Facts, Gpu, Mig
from toolkit.core.printable import counted
from toolkit.errors import NotReady, together
from toolkit.hostsfile.inventory import Host, Inventory, Service
from toolkit.plan.steps import Failure
from toolkit.protocol.decode import DecodeError, whole
from toolkit.protocol.engine import EngineInfo
from toolkit.protocol.frames import lines_of

# Seconds for the calls of nvidia-smi in one `ask_gpus`: without persistence mode, a host with 8 GPUs can
# need 60 s to initialize them.
SMI_SECONDS = 70

# Define `ask_gpus TEXT`, which runs calls of nvidia-smi and returns 124 if they exceed the limit.
# If persistence mode is off, the driver initializes all GPUs again for each call, unless a process has them
# open. Therefore the shell opens each GPU first, one in each level of a recursion. A lost GPU does not open.
# If the driver hangs, no signal ends a process in it (state D). Therefore no such process has the input, the
# output or the errors of the SSH session: `cat` passes on the output, and ends at the limit. One process is
# left until the driver continues or the host reboots. The trap is for a `timeout` that ends only the shell.
ASK_GPUS = r"""
ask_gpus() {
  timeout -k 2 @limit@ sh -c '
    hold() {
      [ $# -gt 0 ] || { held=yes; eval "$questions"; return; }
      device=$1; shift; hold "$@" 3<"$device"
      [ -n "$held" ] || hold "$@"
    }
    questions=$1 held=
    hold /dev/nvidia[0-9]* | cat & reader=$!
    trap "kill $reader; exit 124" TERM; wait $reader' sh "$1" </dev/null 2>/dev/null
  case $? in
    124|137)
      stuck=$(grep -Esho "^[0-9]+ [(](nvidia-smi|sh)[)] D" /proc/[0-9]*/stat)
      echo "no answer within @limit@ s${stuck:+, in state D: }"$stuck
      return 124 ;;
  esac
}
""".replace("@limit@", str(SMI_SECONDS))

# The query prints everything except the parts of a split GPU, which the list prints; every driver has these
# fields. $also are further calls.
LIST_GPUS = """
if command -v nvidia-smi >/dev/null 2>&1; then
  fields=index,uuid,name,driver_version,memory.total
  ask_gpus "nvidia-smi --query-gpu=$fields --format=csv,noheader,nounits 2>&1
nvidia-smi -L 2>&1
${also-}"
else
  echo "nvidia-smi is not on the PATH"
fi
"""
# The same as a script of its own, which exits with 0 even if nvidia-smi hangs.
SMI = f"{ASK_GPUS}also=\n{LIST_GPUS.strip()}\ntrue\n"
_MOST = 1023  # the number of a GPU
_CDI_KIND = "nvidia.com/gpu"
ABSENT = "nvidia-smi is not on the PATH"

# A device of a CDI specification, which is YAML, or JSON in one line or several lines:
# https://github.com/cncf-tags/container-device-interface.
_CDI_NAME = re.compile(r'(?:^|[{,])[\s\-{]*"?name"?:\s*["\']?([^"\',\s]+)', re.MULTILINE)

_GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: ([^)]+)\)")
# "  MIG 1g.5gb Device 0: (UUID: MIG-GPU-…/7/0)" before driver 470, aligned in columns and MIG-… since.
_MIG_LINE = re.compile(r"MIG (\S+) +Device +(\d+): \(UUID: (MIG-[^)]+)\)")

# The fix for slow GPUs; if the driver hangs, the command hangs too.
PERSIST = (
    "sudo nvidia-smi -pm 1"
    "  # persistence mode keeps the GPUs initialized; if this command hangs too, reboot the host"
)

# Error messages of nvidia-smi as patterns, their meaning, and the fix; the first match counts.
_TROUBLES: tuple[tuple[str, str, str], ...] = (
    (
        r"version mismatch",
        "the NVIDIA driver was updated, and the kernel still runs the old driver",
        "on {host}: sudo reboot",
    ),
    (
        r"communicate with the NVIDIA driver",
        "the NVIDIA driver is not loaded",
        "on {host}: sudo modprobe nvidia  # if modprobe fails, reinstall the NVIDIA driver",
    ),
    (
        r"device handle|GPU is lost|fallen off",
        "a GPU has stopped responding",
        "on {host}: sudo reboot  # if the GPU fails again: sudo dmesg | grep -i xid; check power and cooling",
    ),
    (
        r"No devices",
        "the NVIDIA driver finds no GPU",
        "on {host}: lspci | grep -i nvidia; sudo dmesg | grep -i nvrm",
    ),
    (
        r"Failed to initialize NVML: Unknown Error|Insufficient Permissions",
        "the SSH user cannot use the NVIDIA device nodes",
        "on {host}: ls -l /dev/nvidia*  # the SSH user must be able to read and write these files",
    ),
    (
        r"libnvidia-ml",
        "the NVIDIA driver library libnvidia-ml is missing",
        "on {host}: reinstall the NVIDIA driver",
    ),
    (r"no answer within", "nvidia-smi is too slow or hangs", f"on {{host}}: {PERSIST}"),
    (
        re.escape(ABSENT),
        ABSENT,
        "on {host}: install the NVIDIA driver, "
        "or add the folder that contains nvidia-smi to the PATH of the SSH user",
    ),
)

_MOST_LINES = 4096  # of ``LIST_GPUS``


def parse_smi(text: str) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs in the output of ``LIST_GPUS``, and all of its other lines as one line.

    Raises:
        DecodeError: it has too many lines.
    """
    gpus: dict[str, Gpu] = {}
    rest: list[str] = []
    split = ""
    lines = lines_of(text)
    if len(lines) > _MOST_LINES:
        raise DecodeError("gpus", f"the list contains more than {_MOST_LINES} lines")
    for line in map(str.strip, lines):
        cells = [cell.strip() for cell in line.split(",")]
        # UUIDs become arguments of commands that `render` prints.
        shown = line.isprintable()
        if shown and len(cells) == 5 and (index := whole(cells[0], _MOST)) is not None:
            # "[N/A]" or "[Not Supported]" if memory is shared with the processor.
            gpus[cells[1]] = Gpu(index, cells[1], cells[2], cells[3], whole(cells[4]) or 0)
        elif shown and (found := _GPU_LINE.match(line)):
            split = found[2]
        elif shown and (found := _MIG_LINE.match(line)) and split in gpus:
            mig = Mig(whole(found[2]) or 0, found[3], found[1])
            gpus[split] = replace(gpus[split], migs=(*gpus[split].migs, mig))
        elif line and line not in rest:
            rest.append(line)
    return tuple(gpus.values()), " ".join(rest)


def parse_cdi(info: EngineInfo, specifications: str) -> tuple[str, ...]:
    """Return the names of the GPUs that the engine offers by CDI, from its list, otherwise from the files.

    An engine with an empty list of folders has CDI switched off.
    """
    if not info.cdi_folders:
        return ()
    listed = [device.id.partition("=") for device in info.devices or ()]
    names = [name for kind, _, name in listed if kind == _CDI_KIND]
    return tuple(dict.fromkeys(names or _CDI_NAME.findall(specifications)))


def explain(trouble: str, host: str) -> tuple[str, str]:
    """Return the meaning of an error of nvidia-smi, with its own words, and the fix.

    Args:
        trouble: ``Facts.gpu_trouble``.
    """
    for pattern, what, fix in _TROUBLES:
        if re.search(pattern, trouble, re.IGNORECASE):
            words = "" if is_absent(trouble) else f" ({clipped(trouble)})"
            return f"{what}{words}", fix.format(host=host)
    words = f"nvidia-smi reports: {clipped(trouble)}" if trouble else "nvidia-smi lists no GPU"
    return words, f"on {host}: nvidia-smi"


def is_absent(trouble: str) -> bool:
    """Return True if ``LIST_GPUS`` found no nvidia-smi."""
    return ABSENT in trouble


def is_known(trouble: str) -> bool:
    """Return True if it is a known error that makes GPUs unusable, not just a warning of nvidia-smi."""
    return any(re.search(pattern, trouble, re.IGNORECASE) for pattern, _, _ in _TROUBLES)


def clipped(text: str) -> str:
    """Return the output of another program, cut to 200 characters."""
    return text if len(text) <= 200 else f"{text[:199]}…"


# The parts of the driver that a training container needs: CUDA, and nvidia-smi with NVML.
CAPABILITIES = ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")

# The command with which each engine can give GPUs to containers; it is part of the NVIDIA Container Toolkit.
GPU_SETUP = {
    DOCKER: "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
    PODMAN: "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
}
_INSTALL = (
    "on {host}: install the NVIDIA Container Toolkit (package nvidia-container-toolkit), then: "
    + GPU_SETUP[DOCKER]
)
_REINSTALL = (
    "on {host}: nvidia-smi -L"
    "  # if the list is complete, reinstall the NVIDIA Container Toolkit, then: sudo systemctl restart docker"
)
_GENERATE = "on {host}: " + GPU_SETUP[PODMAN]

# Error messages of engines and NVIDIA's tools that cannot give GPUs to a container.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"could not select device driver \"cdi\"",
        "CDI is disabled in the container engine",
        'on {host}: add "features": {{"cdi": true}} to /etc/docker/daemon.json, '
        "then: sudo systemctl restart docker",
    ),
    (
        r"could not select device driver|failed to discover GPU vendor from CDI|"
        r"nknown( or invalid)? runtime (name|specified):? ?nvidia|nvidia-container-runtime-hook.*not found",
        "the engine cannot give GPUs to a container: "
        "the NVIDIA Container Toolkit is missing or not configured",
        _INSTALL,
    ),
    (
        r"unresolvable CDI devices|CDI device injection failed",
        "the engine's CDI specification does not contain the requested GPUs",
        _GENERATE,
    ),
    (
        r"nvidia-container-cli.*(driver not loaded|driver error|initialization error|nvml error)",
        "the NVIDIA Container Toolkit cannot use the NVIDIA driver",
        "on {host}: nvidia-smi  # if this command works, reinstall the NVIDIA Container Toolkit",
    ),
    (
        r"nvidia-container-cli.*(device error|unknown device)",
        "the engine cannot give the container a GPU that nvidia-smi listed earlier",
        "on {host}: nvidia-smi -L  # if a GPU is missing, reboot the host",
    ),
    (
        r"nvidia-container-cli.*(requirement error|unsatisfied condition)",
        "the image requires a newer NVIDIA driver than the host has",
        "on {host}: update the NVIDIA driver"
        "  # or in hosts.yaml: set image: to an image with an older CUDA version",
    ),
)


def gpu_failures(host: str) -> tuple[Failure, ...]:
    """Return the known failures of a container start with GPUs on this host."""
    return tuple(Failure(says, what, fix.format(host=host)) for says, what, fix in _FAILURES)


def given_gpus(host: Host, facts: Facts, key: str = "") -> tuple[str, ...]:
    """Return the GPUs that a host's container gets, as indexes or UUIDs.

    Args:
        key: the key of the file that declares them; by default that of the host.

    Raises:
        NotReady: the file declares GPUs that nvidia-smi on the host does not list.
    """
    key = key or f"hosts/{host.name}/gpus"
    if host.gpus is not None and host.gpus > len(facts.gpus) and not host.gpu_ids:
        plural = "" if host.gpus == 1 else "s"
        raise _missing(f"hosts.yaml declares {host.gpus} GPU{plural}", facts, key)
    if not host.gpu_ids:
        return tuple(str(gpu.index) for gpu in facts.gpus[: host.gpus])
    known = _names(facts.gpus)
    if absent := [name for name in host.gpu_ids if name not in known]:
        raise _missing(f"hosts.yaml declares GPU{_plural(absent)} {', '.join(absent)}", facts, key)
    for gpu in facts.gpus:
        parts = [mig.uuid for mig in gpu.migs if mig.uuid in host.gpu_ids]
        if parts and gpu.uuid in host.gpu_ids:
            what = f"{parts[0]} is a MIG device of {gpu.uuid}, but hosts.yaml declares both"
            raise NotReady(what, f"in hosts.yaml: keep only one of the two ids in {key}", host.name)
    return host.gpu_ids


def service_gpus(host: Host, service: Service, facts: Facts) -> tuple[str, ...]:
    """Return the GPUs that the container of a service on this host gets; see ``given_gpus``.

    Raises:
        NotReady: see ``given_gpus``.
    """
    wanted = replace(host, gpus=service.gpus, gpu_ids=service.gpu_ids)
    return given_gpus(wanted, facts, f"services/{service.name}/gpus")


def _plural(names: Sequence[str]) -> str:
    return "" if len(names) == 1 else "s"


def renewal(facts: Facts) -> str:
    """Return the fix for a host whose engine gives other GPUs than requested."""
    return (_GENERATE if _uses_cdi(facts) else _REINSTALL).format(host=facts.host)


def _uses_cdi(facts: Facts) -> bool:
    """Return whether the engine gives GPUs by CDI: always with Podman, with Docker if only CDI is available.

    Before Podman 5.0, ``--gpus`` has no effect (containers/podman#21180).
    """
    return facts.engine == PODMAN or bool(facts.cdi and not facts.nvidia_runtime)


def _missing(declared: str, facts: Facts, key: str) -> NotReady:
    if not facts.gpus:
        what, fix = explain(facts.gpu_trouble, facts.host)
        # The alternative is a comment, so that a paste of the fix does not run it.
        mark = ";" if "#" in fix else "  #"
        fix = f"{fix}{mark} or set {key} to 0 in hosts.yaml"
        return NotReady(f"{declared}, but {what}", fix, facts.host)
    listed = ", ".join(
        f"{gpu.index} {gpu.uuid}" + (f" (split: {', '.join(gpu.usable)})" if gpu.migs else "")
        for gpu in facts.gpus
    )
    trouble = f"; nvidia-smi also reports: {facts.gpu_trouble}" if facts.gpu_trouble else ""
    what = (
        f"{declared}, but nvidia-smi on the host lists {counted(len(facts.gpus), 'GPU')}: {listed}{trouble}"
    )
    fix = (
        f"on {facts.host}: nvidia-smi -L"
        f"  # then change {key} in hosts.yaml to the listed GPUs, or to their number"
    )
    return NotReady(what, fix, facts.host)


def _names(gpus: Iterable[Gpu]) -> dict[str, tuple[str, ...]]:
    """Return, for every name of a GPU or of a part, the UUIDs of the devices that a process can use."""
    names: dict[str, tuple[str, ...]] = {}
    for gpu in gpus:
        names |= {str(gpu.index): gpu.usable, gpu.uuid: gpu.usable}
        names |= {mig.uuid: (mig.uuid,) for mig in gpu.migs}
    return names


def usable_uuids(given: Iterable[str], facts: Facts) -> frozenset[str]:
    """Return the UUIDs that a container with these GPUs should see."""
    return frozenset(uuid for gpu in usable_groups(given, facts) for uuid in gpu)


def usable_groups(given: Iterable[str], facts: Facts) -> tuple[tuple[str, ...], ...]:
    """Return, for each of these GPUs, the UUIDs of what a process can use: the GPU, or its parts."""
    names = _names(facts.gpus)
    return tuple(names[name] for name in given)


def gpu_access(given: tuple[str, ...], facts: Facts) -> tuple[str, tuple[str, ...]]:
    """Return the engine's options as ``Container.gpus`` and ``Container.cdi``; one of them is empty.

    ``--gpus`` with Docker if NVIDIA's runtime is installed, or if neither the runtime nor CDI is available:
    then Docker reports the reason. Otherwise CDI.

    Raises:
        NotReady: the CDI specification on the host does not name the GPUs.
    """
    every = given == tuple(str(gpu.index) for gpu in facts.gpus)
    if not given:
        return "", ()
    if not _uses_cdi(facts):
        return "all" if every else ",".join(given), ()
    if every and "all" in facts.cdi:
        return "", (f"{_CDI_KIND}=all",)
    found = {
        name: [next((n for n in same if n in facts.cdi), "") for same in _cdi_names(name, facts)]
        for name in given
    }
    if absent := [name for name, cdi in found.items() if not all(cdi)]:
        names = f"GPU{_plural(absent)} {', '.join(absent)}"
        what = f"the container engine uses CDI, but its CDI specification does not contain {names}"
        raise NotReady(what, _GENERATE.format(host=facts.host), facts.host)
    return "", tuple(f"{_CDI_KIND}={name}" for cdi in found.values() for name in cdi)


def _cdi_names(name: str, facts: Facts) -> Iterator[tuple[str, ...]]:
    """Yield the possible names of a GPU or a part in nvidia-ctk: by UUID, by index, by ``gpu:part``.

    nvidia-ctk writes no device for a split GPU, only for each of its parts.
    """
    for gpu in facts.gpus:
        chosen = name in (str(gpu.index), gpu.uuid)
        if chosen and not gpu.migs:
            yield gpu.uuid, str(gpu.index), f"gpu{gpu.index}"
        for mig in gpu.migs:
            if chosen or name == mig.uuid:
                yield mig.uuid, f"{gpu.index}:{mig.index}", f"mig{gpu.index}:{mig.index}"


def share_gpus(
    inventory: Inventory, facts: Mapping[str, Facts]
) -> tuple[dict[str, tuple[str, ...]], tuple[NotReady, ...]]:
    """Return the GPUs of each host that has those of the file, and the errors of the other hosts.

    Raises:
        NotReady: no host has them.
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
