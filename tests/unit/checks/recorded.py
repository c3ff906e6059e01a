"""The output of a healthy host for each probe, and parts of it for other cases.

Folders, memory and marks are as a practice host printed them. What nvidia-smi, the PCI bus and the kernel's
log say is put together from NVIDIA's documentation and from public reports: no GPU was at hand.
"""

from __future__ import annotations

from collections.abc import Mapping

GIB = 2**30
HOME = "/home/alice"
SOURCES = ("/data/digits", "/scratch/out")


def place(
    role: str,
    path: str,
    *,
    kind: str = "directory",
    inode: str = "65024:1632646",
    may: str = "rwx",
    free: int = 200 * GIB,
    size: int = 900 * GIB,
    inodes_free: int = 15_690_301,
    inodes: int = 16_777_216,
    on: str = "ext4|/dev/vda|rw,relatime,discard",
    more: str = "",
) -> str:
    """One folder's lines; ``kind`` empty for one that is not there."""
    if not kind:
        return f"at|{role}|{path}\n"
    lines = (
        f"at|{role}|{path}",
        f"is|{kind}",
        f"may|{may}|{path}",
        f"fs|4096|{size // 4096}|{free // 4096}|{inodes}|{inodes_free}",
        f"on|{on}",
        *((f"inode|{inode}",) if role == "mount" else ()),
    )
    return "".join(f"{line}\n" for line in lines) + more


def places(
    root: str | None = None, state: str | None = None, home: str | None = None, mounts: str | None = None
) -> str:
    """All folders' lines, those not given being in order."""
    parts = (
        place("root", "/var/lib/docker", may="") if root is None else root,
        place("state", f"{HOME}/.local") if state is None else state,
        place("home", HOME) if home is None else home,
        "".join(place("mount", source) for source in SOURCES) if mounts is None else mounts,
    )
    return "".join(parts) + "looked\n"


MACHINE = """\
/proc/meminfo:MemTotal:       264684092 kB
/proc/meminfo:MemFree:        98340040 kB
/proc/meminfo:MemAvailable:   208665920 kB
/proc/meminfo:SwapTotal:       8388604 kB
/proc/meminfo:SwapFree:        8388604 kB
/proc/meminfo:HugePages_Total:       0
/proc/loadavg:1.39 0.78 0.08 2/1307 6813
/proc/pressure/memory:some avg10=0.00 avg60=0.00 avg300=0.00 total=0
/proc/pressure/memory:full avg10=0.00 avg60=0.00 avg300=0.00 total=0
/proc/self/limits:Limit                     Soft Limit           Hard Limit           Units     
/proc/self/limits:Max processes             96365                96365                processes 
/proc/self/limits:Max open files            1024                 1048576              files     
/proc/self/limits:Max nice priority         0                    0                    
/proc/sys/kernel/random/boot_id:{boot}
/proc/sys/kernel/numa_balancing:0
/sys/devices/system/node/online:0-1
/sys/devices/system/cpu/online:0-63
/sys/devices/system/cpu/cpufreq/policy0/scaling_governor:powersave
/sys/devices/system/cpu/cpufreq/policy0/scaling_driver:intel_pstate
/sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference:performance
/sys/devices/system/edac/mc/mc0/ue_count:0
/sys/devices/system/edac/mc/mc1/ue_count:0
/etc/hosts:127.0.0.1	localhost
"""  # noqa: W291


def machine(host: str = "gpu2", *changes: tuple[str, str], boot: str = "") -> str:
    """The small files of a host, with pieces of text put in place of others."""
    text = MACHINE.replace("{boot}", boot or f"c4529094-{host}")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def marks(host: str = "gpu2", *more: str, folders: tuple[str, ...] = ()) -> str:
    """Marked processes and state directories of a host where the cluster is up."""
    names = [folder.split("/")[-2:] for folder in (f"demo/{host}", *folders)]
    lines = [f"state||{cluster}|{name}" for cluster, name in names]
    return "\n".join(("/proc/629/environ:TOOLKIT_CLUSTER=demo", *more, *lines, "looked"))


def process(pid: int, job: str, mark: str = "JOB", cluster: str = "demo") -> str:
    """One process of a job; ``mark`` is SUPERVISOR for the one that owns it."""
    return f"/proc/{pid}/environ:TOOLKIT_CLUSTER={cluster}\n/proc/{pid}/environ:TOOLKIT_{mark}={job}"


_COLUMNS = (
    "index, uuid, pci.bus_id, name, driver_version, persistence_mode, compute_mode, display_active,"
    " memory.used [MiB], pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current,"
    " pcie.link.width.max, ecc.errors.uncorrected.volatile.total, retired_pages.pending,"
)
# As nvidia-smi 580 prints them; it has the second name of clocks_throttle_reasons.active in its header.
NEW_COLUMNS = f"{_COLUMNS} clocks_event_reasons.active, compute_cap, gpu_recovery_action"
OLD_COLUMNS = f"{_COLUMNS} clocks_throttle_reasons.active"
_CARD: Mapping[str, str] = {
    "name": "NVIDIA GeForce RTX 3090",
    "driver_version": "550.54.14",
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
    "display_active": "Disabled",
    "memory.used": "1",
    "pcie.link.gen.current": "4",
    "pcie.link.gen.max": "4",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "ecc.errors.uncorrected.volatile.total": "0",
    "retired_pages.pending": "No",
    "clocks_event_reasons.active": "0x0000000000000001",
    "clocks_throttle_reasons.active": "0x0000000000000001",
    "compute_cap": "8.6",
    "gpu_recovery_action": "None",
    "reset_status.reset_required": "No",
}


def card(index: int, columns: str = NEW_COLUMNS, **changes: str) -> str:
    """A GPU's line of nvidia-smi; in names of columns ``__`` represents a dot."""
    own = {"index": str(index), "uuid": f"GPU-{index}", "pci.bus_id": f"00000000:{index + 1}1:00.0"}
    values = {**_CARD, **own, **{name.replace("__", "."): value for name, value in changes.items()}}
    names = [name.partition(" [")[0].strip() for name in columns.split(",")]
    return ", ".join(values[name] for name in names)


TAIL = """\
chars:yes
tool:nvidia-container-runtime-hook
tool:nvidia-ctk
module:6.8.0-45-generic
kernel:6.8.0-45-generic
running:6.8.0-45-generic
log:
"""


def gpus(*cards: str, columns: str = NEW_COLUMNS, tail: str = TAIL, bus: int = 2) -> str:
    """A host's answer about its GPUs: two in order by default."""
    pci = "".join(f"pci:0000:{index + 1}1:00.0 nvidia\n" for index in range(bus))
    return pci + "\n".join((columns, *(cards or (card(0), card(1))))) + f"\n{tail}"


def healthy(host: str) -> dict[str, str]:
    """All answers of a host on which nothing is wrong."""
    return {
        "places": places(),
        "engine-sees": "open|state|/home/alice\nopen|mount|/data/digits\nopen|mount|/scratch/out",
        "quota": "",
        "machine-files": machine(host),
        "marks": marks(host),
        "gpu-health": gpus(),
    }
