"""Checks of the hosts as computers: processor, memory, load, programs, names, clock."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks.disk import GIB
from toolkit.checks.engine import engine_info
from toolkit.checks.model import Check, Probe, Scene, Seen, error, fine, unchecked, warning
from toolkit.core.finding import Finding
from toolkit.core.image import image_arch
from toolkit.core.printable import counted
from toolkit.protocol.decode import real, whole
from toolkit.protocol.frames import lines_of
from toolkit.protocol.host_list import host_list

# The programs that scripts of toolkit call on a host. Without base64, timeout or sh no probe works.
PROGRAMS = (
    *("base64", "cat", "chmod", "cut", "date", "grep", "gzip", "id", "ls", "mkdir", "mktemp", "mv", "rm"),
    *("rmdir", "sed", "sha256sum", "sleep", "sort", "stat", "tar", "timeout", "tr", "uname"),
)

# One grep reads all the small files and prints the name of each before its lines.
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
_LARGEST = "ps aux --sort=-rss | head  # then stop unneeded processes"


def files(seen: Seen) -> dict[str, list[str]]:
    """Return the lines of each small file that the host printed, by path.

    The key ``missing`` lists programs; the key ``container`` is present if the host is a container.
    """
    found: dict[str, list[str]] = {}
    for line in lines_of(seen.answer(MACHINE)):
        name, _, rest = line.partition(":")
        found.setdefault(name, []).append(rest)
    return found


def memory(seen: Seen) -> dict[str, int]:
    """Return /proc/meminfo in bytes; empty if it is not known."""
    rows = (line.partition(":") for line in files(seen).get("/proc/meminfo", ()))
    found = {name.strip(): re.match(r"\s*([0-9]{1,15}) kB", rest) for name, _, rest in rows}
    return {name: int(match[1]) * 1024 for name, match in found.items() if match}


def processors(seen: Seen) -> int:
    """Return the number of processors that are online, 0 if it is not known."""
    return _counted(_only(seen, "/sys/devices/system/cpu/online"))


def _arch(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    own = image_arch(seen.facts.arch)
    if scene.image is not None and scene.image.arch and scene.image.arch != own:
        what = f"the processor is {own}, but the image {scene.inventory.image} is for {scene.image.arch}"
        yield error(what, f"in hosts.yaml: remove {seen.host}, or set image: to an image for {own}")
    elif scene.image is None or not scene.image.arch:
        others = sorted({image_arch(facts.arch) for facts in scene.facts.values()} - {own})
        if others:
            what = (
                f"the processor architecture is {own}, but other hosts have {', '.join(others)}; "
                "all hosts of a cluster need the same image"
            )
            yield error(what, "create a separate hosts.yaml for each processor architecture")
        else:
            yield fine("the architecture of the image is not known")


def _one_machine(scene: Scene) -> Iterator[Finding]:
    groups: list[tuple[_Identity, list[str]]] = []
    for name, seen in scene.seen.items():
        if seen.facts is None:
            continue
        addresses = " ".join(sorted(i.address for i in seen.facts.interfaces))
        boot = _only(seen, "/proc/sys/kernel/random/boot_id")
        own = (seen.facts.hostname, boot, engine_info(seen).id, addresses)
        answers = [_same(other, own) for other, _ in groups]
        if True in answers:
            groups[answers.index(True)][1].append(name)
            continue
        if None in answers:
            who = f"{groups[answers.index(None)][1][0]} and {name} have the same host name {own[0]}"
            yield unchecked(f"{who}, and toolkit cannot compare their boot IDs and addresses", "", name)
        groups.append((own, [name]))
    for _, names in groups:
        if len(names) > 1:
            what = f"{' and '.join(names)} are the same host under {len(names)} names"
            yield error(
                what, f"in hosts.yaml: remove {names[1]}  # for more ranks on the host, set slots", names[1]
            )


# Host name, boot ID, ID of the engine, addresses; empty if the host did not report them.
_Identity = tuple[str, str, str, str]


def _same(one: _Identity, other: _Identity) -> bool | None:
    """Return True if both are the same host, None if this is not known.

    Hosts that are containers share a kernel; cloned hosts share the engine's ID and the name. Only equal
    values of all three identify one host. Podman has no ID, and the addresses replace it.
    """
    name, boot, engine, addresses = zip(one, other, strict=True)
    pairs = (name, boot, engine if all(engine) else addresses)
    if any(all(pair) and pair[0] != pair[1] for pair in pairs):
        return False
    return True if all(map(all, pairs)) else None


def _names(scene: Scene) -> Iterator[Finding]:
    by_name: dict[str, list[str]] = {}
    for name, facts in scene.facts.items():
        by_name.setdefault(facts.hostname, []).append(name)
    for hostname, names in by_name.items():
        if len(names) > 1:
            what = f"{host_list(names)} have the same host name {hostname}"
            yield fine(f"{what}, but containers use the names in hosts.yaml")
    for name, seen in scene.seen.items():
        own = seen.facts.hostname if seen.facts else ""
        lines = [line.split() for line in files(seen).get("/etc/hosts", ())]
        loop = next((words[0] for words in lines if own and own in words[1:]), "")
        if loop:
            known = f"{own} has the address {loop} in /etc/hosts of the host"
            what = f"{known}, but containers have a separate /etc/hosts"
            yield fine(what, name)


def _programs(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if not files(seen):
        yield unchecked("the host did not report its programs")
    if missing := files(seen).get("missing"):
        what = f"the PATH of SSH sessions contains no {' and no '.join(missing)}"
        yield error(what, f"on {seen.host}: install coreutils, grep, sed, tar and gzip")


def _limits(seen: Seen, scene: Scene) -> Iterator[Finding]:
    lines = files(seen).get("/proc/self/limits", ())
    soft = {line[:26].strip(): line[26:].split()[0] for line in lines if line[26:].strip()}
    if not soft:
        yield unchecked("toolkit cannot read /proc/self/limits")
    for name, least in (("Max open files", 256), ("Max processes", 256)):
        value = soft.get(name, "unlimited")
        number = whole(value)
        if number is not None and number < least:
            what = (
                f"the limit '{name.lower()}' of SSH sessions is {value}, so commands of the container engine "
                "can fail"
            )
            yield warning(
                what, f"on {seen.host}: in /etc/security/limits.conf, raise the limit to {least} or more"
            )


def _memory(seen: Seen, scene: Scene) -> Iterator[Finding]:
    now = memory(seen)
    total, free, shm = now.get("MemTotal", 0), now.get("MemAvailable", 0), scene.inventory.shm_bytes
    if not total or not free:
        yield unchecked("the host did not report its available memory")
        return
    if free < GIB:
        what = f"the host has only {free / GIB:.1f} of {total / GIB:.0f} GiB of memory available"
        yield warning(what, f"on {seen.host}: {_LARGEST}")
    if shm > total:
        what = (
            f"/dev/shm of the containers can grow to {shm / GIB:.1f} GiB, but the host has "
            f"{total / GIB:.1f} GiB of memory"
        )
        yield warning(what, "in hosts.yaml: set shm_size to at most half of the host's memory")


def _pressure(seen: Seen, scene: Scene) -> Iterator[Finding]:
    now = memory(seen)
    some = next(
        (line for line in files(seen).get("/proc/pressure/memory", ()) if line.startswith("some")), ""
    )
    waited = re.search(r"avg60=([\d.]+)", some)
    swapped = now.get("SwapTotal", 0) - now.get("SwapFree", 0)
    fix = f"on {seen.host}: {_LARGEST}"
    share = real(waited[1]) if waited else None
    if share is not None and share > 10:
        yield warning(f"programs waited for memory during {share:.0f} % of the last minute", fix)
    elif not now:
        yield unchecked("toolkit cannot read /proc/meminfo")
    # Memory that was swapped out long ago does no harm; much swap and little free memory does.
    elif share is None and swapped > 2 * GIB and now.get("MemAvailable", 0) < now.get("MemTotal", 0) / 10:
        yield warning(
            f"{swapped / GIB:.0f} GiB are swapped out, and less than 10 % of the memory is available", fix
        )


def _memory_faults(seen: Seen, scene: Scene) -> Iterator[Finding]:
    counts = [lines[0] for name, lines in files(seen).items() if name.endswith("/ue_count")]
    faults = sum(whole(count) or 0 for count in counts)
    if not counts:
        yield unchecked("the kernel does not count memory errors on this host")
    elif faults:
        what = f"the kernel has counted {counted(faults, 'uncorrectable memory error')} since the host booted"
        yield warning(what, f"on {seen.host}: sudo dmesg | grep -i edac  # then replace the memory module")


def _load(seen: Seen, scene: Scene) -> Iterator[Finding]:
    words = _only(seen, "/proc/loadavg").split()
    count = processors(seen)
    load = real(words[1]) if len(words) > 2 else None
    if load is None or not count:
        yield unchecked("the load or the number of processors of the host is not known")
    elif "container" in files(seen):
        yield unchecked("the host is a container, so its load includes programs outside the container")
    # The mean of five minutes, so that short programs such as this check have no influence.
    elif load > max(8, 2 * count) and not _our_job(seen):
        on = f"{words[1]} on {counted(count, 'processor')}"
        what = f"the 5-minute load average is {on}, although no container created by toolkit is running"
        yield warning(what, f"on {seen.host}: top  # then stop unneeded processes")


def _our_job(seen: Seen) -> bool:
    return bool(seen.facts and any(c.state == "running" for c in seen.facts.containers))


def _governor(seen: Seen, scene: Scene) -> Iterator[Finding]:
    governor, driver = _only(seen, f"{_CPUFREQ}scaling_governor"), _only(seen, f"{_CPUFREQ}scaling_driver")
    wish = _only(seen, f"{_CPUFREQ}energy_performance_preference")
    # intel_pstate and amd_pstate raise the clock under "powersave" too, unless they prefer to save power.
    lowest = governor == "powersave" and ("pstate" not in driver or wish == "power")
    if not governor:
        yield unchecked("the kernel does not control the processor clock (usual in virtual machines)")
    elif lowest:
        setting = f"governor {governor}, driver {driver or 'unknown'}"
        what = f"the processors save power at a low clock speed ({setting})"
        yield warning(what, f"on {seen.host}: sudo cpupower frequency-set -g performance")


def _numa(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    nodes = _counted(_only(seen, "/sys/devices/system/node/online"))
    # A default of distributions. It moves pages that GPUs copy from, which NVIDIA advises against on Grace
    # (https://docs.nvidia.com/grace-perf-tuning-guide/); on other processors it matters little.
    if _only(seen, "/proc/sys/kernel/numa_balancing") not in ("", "0"):
        if nodes > 1 and seen.facts.gpus and image_arch(seen.facts.arch) == "arm64":
            what = (
                f"automatic NUMA balancing moves memory between {nodes} NUMA nodes, "
                "which can stall GPU copies"
            )
            yield warning(what, f"on {seen.host}: sudo sysctl kernel.numa_balancing=0")
        elif nodes > 1:
            yield fine("automatic NUMA balancing is on (kernel.numa_balancing)")


def _slots(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    slots, count = scene.inventory.host(seen.host).slots or 0, processors(seen)
    if not count:
        yield unchecked("the host did not report its number of processors")
    elif slots > count:
        what = f"{slots} slots share {counted(count, 'processor')}, so ranks can wait for a processor"
        yield warning(what, f"in hosts.yaml: set hosts/{seen.host}/slots to {count} or less")


def _only(seen: Seen, path: str) -> str:
    return (files(seen).get(path) or [""])[0].strip()


def _counted(ranges: str) -> int:
    """Return the number of items in a range list of the kernel, such as ``0-3,8``."""
    pieces = re.findall(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", ranges)
    return sum(max(0, int(last or first) - int(first) + 1) for first, last in pieces)


_HOST = (
    Check("arch", "the image was built for the architecture of this host", host=_arch),
    Check("programs", "the host has the programs that toolkit calls", host=_programs, probes=(MACHINE,)),
    Check(
        "limits",
        "SSH sessions can open enough files and start enough processes",
        host=_limits,
        probes=(MACHINE,),
    ),
    Check("memory", "at least 1 GiB of memory is available", host=_memory, probes=(MACHINE,)),
    Check("memory-pressure", "programs rarely wait for memory", host=_pressure, probes=(MACHINE,)),
    Check(
        "memory-errors",
        "the kernel counted no uncorrectable memory errors",
        host=_memory_faults,
        probes=(MACHINE,),
    ),
    Check("load", "other programs do not overload the processors", host=_load, probes=(MACHINE,)),
    Check("cpu-governor", "the processors can run at full clock speed", host=_governor, probes=(MACHINE,)),
    Check(
        "numa-balancing", "automatic NUMA balancing does not stall GPU copies", host=_numa, probes=(MACHINE,)
    ),
    Check("slots", "the host has at least one processor per slot", host=_slots, probes=(MACHINE,)),
)


# Seconds. Above the first limit, logs are hard to sort. Minutes break rendezvous and certificates.
WARN_AHEAD, STOP_AHEAD = 1.0, 30.0


def clock_offset(sent: float, received: float, begun: str, ended: str) -> tuple[float | None, float]:
    """Return the seconds by which the host is ahead of the clock of this machine, and the error bound.

    As in RFC 5905 section 8: the host's times of beginning and end lie between this machine's times of
    sending and receiving, so the error is at most half of the round trip.

    Args:
        sent, received: this machine's clock in seconds since the epoch.
        begun, ended: the output of ``date +%s.%N`` on the host.
    """
    first, last = real(begun), real(ended)
    if first is None or last is None:  # a date without %N, or no answer
        return None, 0.0
    return ((first - sent) + (last - received)) / 2, max(0.0, (received - sent) - (last - first)) / 2


def _clock(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if seen.ahead is None:
        yield unchecked("the date command of the host prints no fractions of a second")
        return
    off = abs(seen.ahead) - seen.doubt
    if off > WARN_AHEAD:
        found = error if off > STOP_AHEAD else warning
        way = "ahead of" if seen.ahead > 0 else "behind"
        what = f"the clock of the host is {_span(abs(seen.ahead))} {way} the clock of your machine"
        yield found(what, f"on {seen.host}: sudo timedatectl set-ntp true  # or install chrony")


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


CHECKS = (
    Check(
        "same-machine",
        "each name in hosts.yaml belongs to a different host",
        whole=_one_machine,
        probes=(MACHINE,),
    ),
    Check(
        "host-names",
        "host names are unique and have no loopback address",
        whole=_names,
        probes=(MACHINE,),
    ),
    *_HOST,
    Check("clock", "the clock agrees with the clock of your machine", host=_clock),
)
