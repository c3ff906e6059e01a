"""What nvidia-smi says, with drivers of all ages: the question, the answer, troubles with their cures."""

from __future__ import annotations

import re
from dataclasses import replace

from toolkit.core.facts import Gpu, Mig
from toolkit.protocol.engine import EngineInfo
from toolkit.protocol.frames import lines_of
from toolkit.protocol.numbers import whole

# The query tells everything but the parts of a GPU that is split, which the list tells; the fields are such
# that every driver has them. A driver in trouble can make nvidia-smi hang, and must not take the probe along.
SMI = """
if command -v nvidia-smi >/dev/null 2>&1; then
  fields=index,uuid,name,driver_version,memory.total
  timeout 20 nvidia-smi --query-gpu=$fields --format=csv,noheader,nounits 2>&1
  if [ $? -eq 124 ]; then smi=hangs; echo "no answer within 20 s"; else timeout 20 nvidia-smi -L 2>&1; fi
else
  echo "there is no nvidia-smi on the PATH"
fi
"""
_MOST = 1023  # the number of a GPU
CDI_KIND = "nvidia.com/gpu"
_ABSENT = "there is no nvidia-smi on the PATH"

# A device of a CDI specification, which is YAML or JSON: https://github.com/cncf-tags/container-device-interface.
_CDI_NAME = re.compile(r'^[\s\-{]*"?name"?:\s*["\']?([^"\',\s]+)', re.MULTILINE)

_GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: ([^)]+)\)")
# "  MIG 1g.5gb Device 0: (UUID: MIG-GPU-…/7/0)" before driver 470, aligned in columns and MIG-… since.
_MIG_LINE = re.compile(r"MIG (\S+) +Device +(\d+): \(UUID: (MIG-[^)]+)\)")

# How nvidia-smi words its troubles, what it means, and what to do on the host; the first that fits counts.
_TROUBLES: tuple[tuple[str, str, str], ...] = (
    (
        r"version mismatch",
        "the NVIDIA driver was updated, and the kernel still runs the old one",
        "reboot {host}",
    ),
    (
        r"communicate with the NVIDIA driver",
        "the NVIDIA driver is not loaded",
        "on {host}: sudo modprobe nvidia; where that fails, as after a new kernel, install the driver anew",
    ),
    (
        r"No devices",
        "the NVIDIA driver finds no GPU",
        "on {host}: lspci | grep -i nvidia, and sudo dmesg | grep -i nvrm",
    ),
    (
        r"device handle|GPU is lost|fallen off",
        "a GPU does not answer any more",
        "reboot {host}; when it comes again: sudo dmesg | grep -i xid, and look at power and cooling",
    ),
    (
        r"Failed to initialize NVML: Unknown Error|Insufficient Permissions",
        "the ssh user may not use the NVIDIA device nodes",
        "on {host}: ls -l /dev/nvidia*",
    ),
    (
        r"libnvidia-ml",
        "a part of the NVIDIA driver is missing",
        "on {host}: install the driver anew",
    ),
    (
        r"no answer within",
        "nvidia-smi hangs",
        "on {host}: sudo dmesg | grep -i nvrm; mostly a reboot is needed",
    ),
    (re.escape(_ABSENT), "there is no nvidia-smi", "on {host}: install the NVIDIA driver"),
)


def parse_smi(text: str) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that the output of ``SMI`` lists, and everything else that it says in one line."""
    gpus: dict[str, Gpu] = {}
    rest: list[str] = []
    split = ""
    for line in (line.strip() for line in lines_of(text)):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and (index := whole(cells[0], _MOST)) is not None:
            # "[N/A]" or "[Not Supported]" where memory is shared with the processor.
            gpus[cells[1]] = Gpu(index, cells[1], cells[2], cells[3], whole(cells[4]) or 0)
        elif found := _GPU_LINE.match(line):
            split = found[2]
        elif (found := _MIG_LINE.match(line)) and split in gpus:
            mig = Mig(whole(found[2]) or 0, found[3], found[1])
            gpus[split] = replace(gpus[split], migs=(*gpus[split].migs, mig))
        elif line and line not in rest:
            rest.append(line)
    return tuple(gpus.values()), " ".join(rest)


def parse_cdi(info: EngineInfo, specifications: str) -> tuple[str, ...]:
    """Return the names of the GPUs that the engine gives by CDI: as it lists them, else from the files there.

    An empty list of folders is how an engine says that CDI is switched off.
    """
    if not info.cdi_folders:
        return ()
    listed = [device.id.partition("=") for device in info.devices or ()]
    names = [name for kind, _, name in listed if kind == CDI_KIND]
    return tuple(dict.fromkeys(names or _CDI_NAME.findall(specifications)))


def explain(trouble: str, host: str) -> tuple[str, str]:
    """Return what a trouble of nvidia-smi means, in its own words too, and what to do about it.

    Args:
        trouble: ``Facts.gpu_trouble``.
    """
    for pattern, what, fix in _TROUBLES:
        if re.search(pattern, trouble, re.IGNORECASE):
            said = "" if is_absent(trouble) else f" ({clipped(trouble)})"
            return f"{what}{said}", fix.format(host=host)
    said = f"nvidia-smi says: {clipped(trouble)}" if trouble else "nvidia-smi lists no GPU"
    return said, f"on {host}: nvidia-smi"


def is_absent(trouble: str) -> bool:
    """Return whether ``SMI`` found no nvidia-smi."""
    return _ABSENT in trouble


def is_known(trouble: str) -> bool:
    """Return whether it is a trouble that keeps GPUs from being used, and not just words of nvidia-smi."""
    return any(re.search(pattern, trouble, re.IGNORECASE) for pattern, _, _ in _TROUBLES)


def clipped(text: str) -> str:
    """Return other programs' words, cut where they grow long."""
    return text if len(text) <= 200 else f"{text[:199]}…"
