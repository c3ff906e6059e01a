"""Checks of the machines themselves: processor, memory, load, programs, one name for each."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks.disk import GIB
from toolkit.checks.engine import engine_info
from toolkit.checks.model import Check, Probe, Scene, Seen, error, fine, unchecked, warning
from toolkit.core.finding import Finding
from toolkit.core.image import image_arch
from toolkit.protocol.frames import lines_of
from toolkit.protocol.numbers import real, whole

# What our scripts call on a host. Without base64, timeout or sh not even the first question is answered.
PROGRAMS = (
    *("base64", "cat", "chmod", "cut", "date", "grep", "gzip", "id", "ls", "mkdir", "mktemp", "mv", "rm"),
    *("rmdir", "sed", "sha256sum", "sleep", "sort", "stat", "tar", "timeout", "tr", "uname"),
)

# One grep reads all the small files; the name of each stands in front of its lines.
MACHINE = Probe(
    "machine-files",
    rf"""
grep -sH '' /proc/meminfo /proc/loadavg /proc/pressure/memory /proc/self/limits \
  /proc/sys/kernel/random/boot_id /proc/sys/kernel/numa_balancing \
  /sys/devices/system/node/online /sys/devices/system/cpu/online \
  /sys/devices/system/cpu/cpufreq/policy0/scaling_governor \
  /sys/devices/system/cpu/cpufreq/policy0/scaling_driver \
  /sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference \
  /sys/devices/system/edac/mc/mc*/ue_count
grep -sH '^127\.' /etc/hosts
for file in /.dockerenv /run/.containerenv; do [ ! -e "$file" ] || echo container:; done
for program in {" ".join(PROGRAMS)}; do
  command -v "$program" >/dev/null || echo "missing:$program"
done
""",
)

_CPUFREQ = "/sys/devices/system/cpu/cpufreq/policy0/"


def files(seen: Seen) -> dict[str, list[str]]:
    """Return the lines of each small file that the host has shown, by path.

    ``missing`` are programs, ``container`` is there when the host is one.
    """
    found: dict[str, list[str]] = {}
    for line in lines_of(seen.answer(MACHINE)):
        name, _, rest = line.partition(":")
        found.setdefault(name, []).append(rest)
    return found


def memory(seen: Seen) -> dict[str, int]:
    """Return /proc/meminfo in bytes; empty when it is not known."""
    rows = (line.partition(":") for line in files(seen).get("/proc/meminfo", ()))
    found = {name.strip(): re.match(r"\s*([0-9]{1,15}) kB", rest) for name, _, rest in rows}
    return {name: int(match[1]) * 1024 for name, match in found.items() if match}


def processors(seen: Seen) -> int:
    """Return how many processors are online, 0 when it is not known."""
    return _counted(_only(seen, "/sys/devices/system/cpu/online"))


def _arch(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    own = image_arch(seen.facts.arch)
    if scene.image is not None and scene.image.arch and scene.image.arch != own:
        what = f"its processor is {own}, the image {scene.inventory.image} is for {scene.image.arch}"
        yield error(what, "take this host out of the hosts file, or name an image that is built for it")
    elif scene.image is None or not scene.image.arch:
        others = sorted({image_arch(facts.arch) for facts in scene.facts.values()} - {own})
        if others:
            what = f"its processor is {own}, that of other hosts {', '.join(others)}: no image serves both"
            yield error(what, "make one cluster for each kind of processor")


def _one_machine(scene: Scene) -> Iterator[Finding]:
    # Hosts that are containers share a kernel, cloned machines an engine's id and a name: all three are one.
    same: dict[tuple[str, str, str], list[str]] = {}
    for name, seen in scene.seen.items():
        boot, engine = _only(seen, "/proc/sys/kernel/random/boot_id"), engine_info(seen).id
        if boot and engine and seen.facts is not None:
            same.setdefault((boot, engine, seen.facts.hostname), []).append(name)
    for names in same.values():
        if len(names) > 1:
            what = f"{' and '.join(names)} are one machine under {len(names)} names"
            yield error(what, "keep one of them in the hosts file; for more ranks on it: slots:", names[1])


def _names(scene: Scene) -> Iterator[Finding]:
    by_name: dict[str, list[str]] = {}
    for name, facts in scene.facts.items():
        by_name.setdefault(facts.hostname, []).append(name)
    for hostname, names in by_name.items():
        if len(names) > 1:
            what = (
                f"{', '.join(names)} all call themselves {hostname}; containers have the hosts file's names"
            )
            yield fine(what)
    for name, seen in scene.seen.items():
        own = seen.facts.hostname if seen.facts else ""
        lines = [line.split() for line in files(seen).get("/etc/hosts", ())]
        loop = next((words[0] for words in lines if own and own in words[1:]), "")
        if loop:
            what = f"{own} is {loop} in /etc/hosts; containers have a hosts file of their own"
            yield fine(what, name)


def _programs(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if not files(seen):
        yield unchecked("the host did not say which programs it has")
    if missing := files(seen).get("missing"):
        what = f"the PATH of ssh sessions has no {', '.join(missing)}"
        yield error(what, f"on {seen.host}: install coreutils and grep")


def _limits(seen: Seen, scene: Scene) -> Iterator[Finding]:
    lines = files(seen).get("/proc/self/limits", ())
    soft = {line[:26].strip(): line[26:].split()[0] for line in lines if line[26:].strip()}
    if not soft:
        yield unchecked("/proc/self/limits cannot be read")
    for name, least in (("Max open files", 256), ("Max processes", 256)):
        value = soft.get(name, "unlimited")
        number = whole(value)
        if number is not None and number < least:
            what = f"{name.lower()} of ssh sessions is {value}: docker commands may fail"
            yield warning(what, f"on {seen.host}: raise it in /etc/security/limits.conf, log in anew")


def _memory(seen: Seen, scene: Scene) -> Iterator[Finding]:
    now = memory(seen)
    total, free, shm = now.get("MemTotal", 0), now.get("MemAvailable", 0), scene.inventory.shm_bytes
    if not total or not free:
        yield unchecked("/proc/meminfo does not say what is available")
        return
    if free < GIB:
        what = f"{free / GIB:.1f} of {total / GIB:.0f} GiB of memory are available"
        yield warning(what, f"on {seen.host}: ps aux --sort=-rss | head; end what is not needed")
    if shm > total:
        what = f"/dev/shm of the containers may grow to {shm / GIB:.0f} GiB, the host has {total / GIB:.0f}"
        yield warning(what, "set shm_size: in the hosts file to half of the memory or less")


def _pressure(seen: Seen, scene: Scene) -> Iterator[Finding]:
    now = memory(seen)
    some = next(
        (line for line in files(seen).get("/proc/pressure/memory", ()) if line.startswith("some")), ""
    )
    waited = re.search(r"avg60=([\d.]+)", some)
    swapped = now.get("SwapTotal", 0) - now.get("SwapFree", 0)
    fix = f"on {seen.host}: ps aux --sort=-rss | head; end what is not needed"
    share = real(waited[1]) if waited else None
    if share is not None and share > 10:
        yield warning(f"for {share:.0f} % of the last minute programs waited for memory", fix)
    elif not now:
        yield unchecked("/proc/meminfo cannot be read")
    # What was swapped out long ago hurts nobody; much of it, and little memory left, does.
    elif share is None and swapped > 2 * GIB and now.get("MemAvailable", 0) < now.get("MemTotal", 0) / 10:
        yield warning(f"{swapped / GIB:.0f} GiB are swapped out, and memory is short", fix)


def _memory_faults(seen: Seen, scene: Scene) -> Iterator[Finding]:
    counts = [lines[0] for name, lines in files(seen).items() if name.endswith("/ue_count")]
    faults = sum(whole(count) or 0 for count in counts)
    if not counts:
        yield unchecked("the kernel does not count memory errors on this machine")
    elif faults:
        what = f"{faults} memory errors that could not be corrected since the host was started"
        yield warning(what, f"on {seen.host}: sudo dmesg | grep -i edac; replace the memory module")


def _load(seen: Seen, scene: Scene) -> Iterator[Finding]:
    words = _only(seen, "/proc/loadavg").split()
    count = processors(seen)
    load = real(words[1]) if len(words) > 2 else None
    if load is None or not count:
        yield unchecked("/proc/loadavg cannot be read")
    elif "container" in files(seen):
        yield unchecked("this host is a container, and sees the load of the machine around it")
    # The mean of five minutes: what starts and ends within seconds, such as this check, does not count.
    elif load > max(8, 2 * count) and not _our_job(seen):
        what = f"it is busy with other work: load {words[1]} on {count} processors"
        yield warning(what, f"on {seen.host}: top; the slowest host sets the pace of all")


def _our_job(seen: Seen) -> bool:
    return bool(seen.facts and any(c.state == "running" for c in seen.facts.containers))


def _governor(seen: Seen, scene: Scene) -> Iterator[Finding]:
    governor, driver = _only(seen, f"{_CPUFREQ}scaling_governor"), _only(seen, f"{_CPUFREQ}scaling_driver")
    wish = _only(seen, f"{_CPUFREQ}energy_performance_preference")
    # intel_pstate and amd_pstate raise the clock under "powersave" too, unless told to save power first.
    lowest = governor == "powersave" and ("pstate" not in driver or wish == "power")
    if not governor:
        yield unchecked("the kernel does not steer the processor's clock, as in virtual machines")
    elif lowest:
        what = f"the processors stay at their lowest clock (governor {governor}, driver {driver})"
        yield warning(what, f"on {seen.host}: sudo cpupower frequency-set -g performance")


def _numa(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    nodes = _counted(_only(seen, "/sys/devices/system/node/online"))
    # On for years as a default of distributions. It moves pages that GPUs copy from, which NVIDIA advises
    # against on Grace (https://docs.nvidia.com/grace-perf-tuning-guide/); elsewhere it matters little.
    if _only(seen, "/proc/sys/kernel/numa_balancing") not in ("", "0"):
        if nodes > 1 and seen.facts.gpus and image_arch(seen.facts.arch) == "arm64":
            what = f"the kernel moves memory between {nodes} nodes by itself, which stalls GPU copies"
            yield warning(what, f"on {seen.host}: sudo sysctl kernel.numa_balancing=0")
        elif nodes > 1:
            yield fine("the kernel moves memory between nodes by itself (kernel.numa_balancing=1)")


def _slots(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    slots, count = scene.inventory.host(seen.host).slots or 0, processors(seen)
    if not count:
        yield unchecked("the number of processors is not known")
    elif slots > count:
        what = f"{slots} slots on {count} processors: ranks wait for each other"
        yield warning(what, f"set hosts/{seen.host}/slots to {count} or less")


def _only(seen: Seen, path: str) -> str:
    return (files(seen).get(path) or [""])[0].strip()


def _counted(ranges: str) -> int:
    """How many there are in the kernel's notation, such as ``0-3,8``."""
    pieces = re.findall(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", ranges)
    return sum(max(0, int(last or first) - int(first) + 1) for first, last in pieces)


_HOST = (
    Check("arch", "the image is made for this processor", host=_arch),
    Check("programs", "the programs that we call are there", host=_programs, probes=(MACHINE,)),
    Check("limits", "ssh sessions may open files and start processes", host=_limits, probes=(MACHINE,)),
    Check("memory", "memory is available", host=_memory, probes=(MACHINE,)),
    Check("memory-pressure", "nobody waits for memory", host=_pressure, probes=(MACHINE,)),
    Check("memory-errors", "the memory makes no errors", host=_memory_faults, probes=(MACHINE,)),
    Check("load", "no other work keeps it busy", host=_load, probes=(MACHINE,)),
    Check("cpu-governor", "the processors may run fast", host=_governor, probes=(MACHINE,)),
    Check("numa-balancing", "the kernel leaves memory where it is", host=_numa, probes=(MACHINE,)),
    Check("slots", "no more slots than processors", host=_slots, probes=(MACHINE,)),
)
CHECKS = (
    Check("same-machine", "each name is a machine of its own", whole=_one_machine, probes=(MACHINE,)),
    Check("host-names", "host names are unique and lead out", whole=_names, probes=(MACHINE,)),
    *_HOST,
)
