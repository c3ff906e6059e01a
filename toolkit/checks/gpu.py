"""Checks of GPU health: memory errors, lost cards, heat, links, and other processes on the GPUs.

One probe queries the driver, the PCI bus and the kernel log; the checks of ``gpu_setup`` read its output too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps

from toolkit.checks.leftovers import MARKS, marked, strays
from toolkit.checks.model import (
    Check,
    HostJudge,
    Probe,
    Scene,
    Seen,
    error,
    fine,
    grouped,
    groups_text,
    unchecked,
    warning,
)
from toolkit.cluster.gpus import SMI_SECONDS, given_gpus, service_gpus
from toolkit.core.command import quoted
from toolkit.core.facts import Facts, Gpu
from toolkit.core.finding import Finding
from toolkit.core.printable import counted
from toolkit.errors import NotReady
from toolkit.hostsfile.inventory import Host, Service
from toolkit.protocol.decode import hexadecimal, whole
from toolkit.protocol.frames import ROW, lines_of, rows

# These columns exist since driver 418 (with 580, the last one has two names).
_ALWAYS = (
    "index,uuid,pci.bus_id,name,driver_version,persistence_mode,compute_mode,display_active,memory.used,"
    "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "ecc.errors.uncorrected.volatile.total,retired_pages.pending,clocks_throttle_reasons.active"
)
# Some drivers lack one or more of these: 580 has no reset_status, and old drivers have none of the three.
# nvidia-smi then prints only an error that names its first unknown column; the probe asks again without it.
_SOMETIMES = ("compute_cap", "gpu_recovery_action", "reset_status.reset_required")

# A faulty driver can make nvidia-smi hang: after a time-out the probe does not call it again. ``USES`` of
# ``toolkit.cluster.probe`` sets $smi and defines `ask_gpus`. The kernel log, which can contain the reason, is
# read first. The probe counts equal errors, because one crash of a program can add many lines to the log.
GPUS = Probe(
    "gpu-health",
    ROW
    + rf"""
for d in /sys/bus/pci/devices/*; do
  read -r vendor <"$d/vendor" && [ "$vendor" = 0x10de ] || continue
  read -r class <"$d/class"
  case $class in 0x0300*|0x0302*) ;; *) continue ;; esac
  driver=$(readlink "$d/driver")
  echo "pci:${{d##*/}} ${{driver##*/}}"
done
PATH=$PATH:/usr/sbin:/sbin
named() {{ while read -r line; do echo "$1:$line"; done; }}
command -v nvidia-smi >/dev/null || exit 0
log=dmesg; $log >/dev/null || log='journalctl -k -b -q --no-pager -o cat'
[ -z "$($log | head -n 1)" ] || echo log:
$log | sed -n 's/.*\(NVRM: Xid (PCI:[^)]*): [0-9]*\).*/\1/p' | sort | uniq -c | head -n 400 | named log
[ "$smi" != hangs ] || {{ echo "no answer within {SMI_SECONDS} s"; exit; }}
told=$(ask_gpus 'columns={",".join((_ALWAYS, *_SOMETIMES))}
for again in 1 2 3 4; do
  out=$(nvidia-smi --query-gpu=$columns --format=csv,nounits 2>&1)
  case $out in *"not a valid field"*) ;; *) break ;; esac
  unknown=${{out#*\"}}; unknown=,${{unknown%%\"*}},
  case ,$columns, in *"$unknown"*) ;; *) break ;; esac
  columns=,$columns,; columns=${{columns%%"$unknown"*}},${{columns#*"$unknown"}}
  columns=${{columns#,}}; columns=${{columns%,}}
done
printf "%s\n" "$out"
nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits |
sed -n "s/^GPU-/uses:&/p"
nvidia-smi --query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure --format=csv,noheader |
sed -n "s/^GPU-/rows:&/p"') || smi=hangs
# Not process_name: a process chooses it, and nvidia-smi prints a newline in it as it is.
set -f; IFS='
'
for line in $told; do
  case $line in uses:*) line=${{line#uses:}} ;; *) printf '%s\n' "$line"; continue ;; esac
  gpu=${{line%%,*}} memory=${{line##*, }} pid=${{line#*, }}; pid=${{pid%%,*}}
  state=gone; rest=; name=
  read -r line 2>/dev/null <"/proc/$pid/stat" && rest=${{line##*) }} && state=${{rest%% *}}
  read -r name 2>/dev/null <"/proc/$pid/comm"
  row app "$gpu" "$pid" "$memory" "$state" "$(stat -c %U "/proc/$pid" 2>/dev/null)" "$name"
done
set +f; unset IFS
[ "$smi" != hangs ] || exit 0
for d in /proc/driver/nvidia-nvswitch/devices/*; do
  [ -e "$d" ] || continue
  echo "fabric:$(systemctl is-active nvidia-fabricmanager)"; break
done
for link in /dev/char/195:*; do [ ! -e "$link" ] || {{ echo chars:yes; break; }}; done
for program in nvidia-container-runtime-hook nvidia-container-runtime nvidia-ctk; do
  command -v $program >/dev/null && echo "tool:$program"
done
grep -sl nvidia.com/gpu /etc/cdi/* /var/run/cdi/* | named cdi
for d in /lib/modules/*; do
  [ -e "$d/modules.dep" ] && modinfo -k "${{d##*/}}" -F version nvidia >/dev/null && echo "module:${{d##*/}}"
  [ ! -e "$d/modules.dep" ] || echo "kernel:${{d##*/}}"
done
echo "running:$(uname -r)"
""",
)


@dataclass(frozen=True)
class App:
    """A process that computes on a GPU; ``state`` as in /proc (R, S, D …), memory in MiB."""

    gpu: str
    pid: int
    memory: str
    state: str
    user: str
    name: str


@dataclass(frozen=True)
class Answers:
    """A host's report about its GPUs.

    Args:
        cards: one mapping per GPU, by the column names of nvidia-smi, without units.
        trouble: everything else that nvidia-smi printed; empty without a problem.
        pci: NVIDIA's display devices on the bus, with the kernel driver that holds each, empty for none.
        other: all other lines by their first word.
    """

    cards: tuple[Mapping[str, str], ...] = ()
    trouble: str = ""
    pci: tuple[tuple[str, str], ...] = ()
    apps: tuple[App, ...] = ()
    other: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def tagged(self, word: str) -> tuple[str, ...]:
        """Return the lines that began with this word, in order."""
        return self.other.get(word, ())


NO_GPU_USED = "the cluster uses no GPU of this host"
_NO_GPU_LISTED = "nvidia-smi is missing on this host, or lists no GPU"
_WORDS = ("pci", "rows", "fabric", "chars", "tool", "cdi", "module", "kernel", "running", "log")


def answers(seen: Seen) -> Answers:
    """Return the host's report about its GPUs."""
    report: dict[str, list[str]] = {}
    rest: list[str] = []
    apps: list[App] = []
    for line in lines_of(seen.answer(GPUS)):
        word, _, after = line.partition(":")
        if line.startswith("app|"):
            apps += (app for _, cells in rows(line) if (app := _app(cells)))
        elif word in _WORDS:
            report.setdefault(word, []).append(after)
        elif line.strip():
            rest.append(line.strip())
    cards, trouble = _table(rest)
    pci = tuple((bus, driver) for bus, _, driver in (line.partition(" ") for line in report.get("pci", ())))
    return Answers(cards, trouble, pci, tuple(apps), {word: tuple(lines) for word, lines in report.items()})


def _table(lines: list[str]) -> tuple[tuple[Mapping[str, str], ...], str]:
    head = next((line for line in lines if line.startswith("index, uuid,")), "")
    # "memory.used [MiB]": the unit is in the header, the values have none.
    names = [name.partition(" [")[0].strip() for name in head.split(",")]
    cards: list[Mapping[str, str]] = []
    other: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if head and len(cells) == len(names) and whole(cells[0]) is not None:
            cards.append(dict(zip(names, cells, strict=True)))
        elif line != head and line not in other:
            other.append(line)
    return tuple(cards), " ".join(other)


def _app(cells: tuple[str, ...]) -> App | None:
    pid = whole(cells[1]) if len(cells) == 6 else None
    return None if pid is None else App(cells[0], pid, *cells[2:])


def unwanted(seen: Seen, scene: Scene) -> bool:
    """Return True if the hosts file uses no GPU of this host: ``gpus: 0``, and no service with a GPU."""
    services = scene.inventory.services_on(seen.host)
    return scene.inventory.host(seen.host).gpus == 0 and not any(service.gpus for service in services)


def used_gpus(host: Host, facts: Facts, services: Iterable[Service] = ()) -> tuple[Gpu, ...]:
    """Return the GPUs that hosts.yaml gives to ranks and these services, completely or as MIG devices.

    All GPUs if the host does not have the declared GPUs.
    """
    try:
        given = {*given_gpus(host, facts), *(gpu for s in services for gpu in service_gpus(host, s, facts))}
    except NotReady:
        return facts.gpus
    return tuple(gpu for gpu in facts.gpus if given & {str(gpu.index), gpu.uuid, *gpu.usable})


def used_answers(seen: Seen, scene: Scene, services: Iterable[Service] | None = None) -> Answers:
    """Return the host's report about its GPUs, without the GPUs that the cluster does not use.

    Args:
        services: the GPUs of ranks and of these services are used; None for all services of the host.
    """
    assert seen.facts is not None
    if services is None:
        services = scene.inventory.services_on(seen.host)
    report, used = answers(seen), used_gpus(scene.inventory.host(seen.host), seen.facts, services)
    unused = {gpu.uuid for gpu in seen.facts.gpus if gpu not in used}
    remapped = tuple(line for line in report.tagged("rows") if line.partition(",")[0].strip() not in unused)
    places = [card.get("pci.bus_id", "")[-12:] for card in report.cards if card.get("uuid") in unused]
    log = tuple(line for line in report.tagged("log") if not _is_about(line, places))
    return replace(
        report,
        cards=tuple(card for card in report.cards if card.get("uuid") not in unused),
        apps=tuple(app for app in report.apps if app.gpu not in unused),
        other={**report.other, "rows": remapped, "log": log},
    )


def only_services(judge: HostJudge) -> HostJudge:
    """Return the judge with warnings instead of errors about GPUs that only services use: no job fails."""

    @wraps(judge)
    def judged(seen: Seen, scene: Scene) -> Iterable[Finding]:
        if not scene.inventory.services_on(seen.host):
            return judge(seen, scene)
        without_ranks = scene.inventory.host(seen.host).gpus == 0
        cards = {label(card) for card in answers(seen).cards}
        cards -= {label(card) for card in used_answers(seen, scene, ()).cards}
        return tuple(
            replace(one, verdict="warning")
            if one.verdict == "error" and (without_ranks or one.subject in cards)
            else one
            for one in judge(seen, scene)
        )

    return judged


def of_cards(judge: HostJudge) -> HostJudge:
    """Return the judge, extended by findings for hosts without a used GPU, and for a failed nvidia-smi."""

    @wraps(judge)
    def judged(seen: Seen, scene: Scene) -> Iterable[Finding]:
        if unwanted(seen, scene):
            return (fine(NO_GPU_USED),)
        report = answers(seen)
        if report.trouble and not report.cards:
            return (unchecked("nvidia-smi lists no GPU on this host [gpu-driver]"),)
        return only_services(judge)(seen, scene) if report.cards else (fine(_NO_GPU_LISTED),)

    return judged


def number(card: Mapping[str, str], column: str) -> int | None:
    """Return a count, None if nvidia-smi prints none (``[N/A]``, ``[Not Supported]``)."""
    return whole(card.get(column, ""))


def label(card: Mapping[str, str]) -> str:
    """Return the name of a GPU in messages."""
    return f"GPU {card.get('index', '?')}"


# Xid errors that point to the hardware and not to a program, with NVIDIA's words for them:
# https://docs.nvidia.com/deploy/xid-errors/.
XIDS: Mapping[int, str] = {
    48: "double-bit memory error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "memory row remapped",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "many corrected memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP does not respond",
    120: "GSP error",
    140: "unrecovered memory error",
    **dict.fromkeys(range(144, 151), "NVLink error"),  # since NVLink 5
}
_XID = re.compile(r"Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


def xid_of(line: str) -> tuple[str, int] | None:
    """Return the PCI address and the number of an Xid error in a line of the kernel log, None without one."""
    found = _XID.search(line)
    code = whole(found[2]) if found else None
    return (found[1], code) if found and code is not None else None


def _is_about(line: str, places: Iterable[str]) -> bool:
    """Return whether a line of the kernel log is an Xid error of a GPU at one of these PCI addresses."""
    found = xid_of(line)
    # The kernel omits the function of the address.
    return found is not None and any(place.lower().startswith(found[0].lower()) for place in places)


# Reasons for a reduced clock, as bits of clocks_throttle_reasons.active (nvml.h). Idling, a configured power
# limit and the request of an application are no faults.
_SLOWED = ((0x80, "by the power supply"), (0x60, "because of the temperature"), (0x8, "by the hardware"))


def _index(card: Mapping[str, str]) -> str:
    """Return the number of a GPU as a word of a command line."""
    return quoted(str(card.get("index")))


def _requires_reset(card: Mapping[str, str]) -> bool:
    # https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
    action = card.get("gpu_recovery_action") in ("Reset", "Drain and Reset")
    return action or card.get("reset_status.reset_required") in ("Yes", "1")


@of_cards
def _memory(seen: Seen, scene: Scene) -> Iterator[Finding]:
    report = used_answers(seen, scene)
    reset = (
        "sudo nvidia-smi --gpu-reset -i {}"
        "  # run this command while no process uses the GPU; if the errors return, replace the GPU"
    )
    for card in report.cards:
        who, fix = label(card), f"on {seen.host}: {reset.format(_index(card))}"
        errors = number(card, "ecc.errors.uncorrected.volatile.total") or 0
        if card.get("gpu_recovery_action") == "Reboot":
            what, reboot = "the GPU reports an error that requires a reboot of the host", "sudo reboot"
            yield error(what, f"on {seen.host}: {reboot}", subject=who)
        elif _requires_reset(card):
            yield error("the GPU reports an error that requires a reset", fix, subject=who)
        elif errors:
            count = counted(errors, "uncorrectable memory error")
            yield error(f"the GPU has counted {count} since its driver was loaded", fix, subject=who)
        elif card.get("retired_pages.pending") == "Yes":
            what = "the GPU has bad memory pages, and retires the pages at its next reset"
            yield warning(what, fix, subject=who)
    by_uuid = {card.get("uuid"): card for card in report.cards}
    for line in report.tagged("rows"):
        uuid, pending, failed = (cell.strip() for cell in f"{line},,".split(",")[:3])
        card = by_uuid.get(uuid, {})
        fix = f"on {seen.host}: {reset.format(_index(card))}"
        if failed in ("Yes", "1"):
            fix = f"toolkit run --exclude {seen.host} SCRIPT  # until the GPU is replaced"
            yield error("the GPU could not remap a bad memory row", fix, subject=label(card))
        elif pending in ("Yes", "1"):
            yield warning(
                "the GPU has a bad memory row, and remaps the row at its next reset", fix, subject=label(card)
            )


def _xid(seen: Seen, scene: Scene) -> Iterator[Finding]:
    report = used_answers(seen, scene)
    if unwanted(seen, scene) or not (answers(seen).cards or report.trouble):
        yield fine(NO_GPU_USED if unwanted(seen, scene) else _NO_GPU_LISTED)
        return
    lines = report.tagged("log")
    if not lines:
        yield unchecked(
            "the SSH user cannot read the kernel log", f"on {seen.host}: sudo dmesg | grep -i xid"
        )
    counts: dict[tuple[str, int], int] = {}
    for line in lines:
        found = xid_of(line)
        if found and found[1] in XIDS:
            counts[found] = counts.get(found, 0) + (whole(line.split()[0]) or 1)
    for (bus, code), count in counts.items():
        times = f" at least {count} times" if count > 1 else ""
        what = f"the GPU at {bus} has reported Xid {code} ({XIDS[code]}){times} since the host booted"
        yield warning(
            what,
            f"on {seen.host}: sudo dmesg | grep -i xid  # then check the power, cooling and slot of the GPU",
        )


@of_cards
def _throttled(seen: Seen, scene: Scene) -> Iterator[Finding]:
    for card in used_answers(seen, scene).cards:
        text = card.get("clocks_event_reasons.active") or card.get("clocks_throttle_reasons.active") or ""
        mask = hexadecimal(text[2:], 2**64 - 1) if text.startswith("0x") else None
        why = next((word for bit, word in _SLOWED if mask and mask & bit), "")
        if mask is None:
            yield unchecked("nvidia-smi does not report clock throttle reasons", subject=label(card))
        elif why:
            query = f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {_index(card)}"
            fix = f"on {seen.host}: {query}  # then check power and cooling"
            yield warning(f"the clock of the GPU is throttled {why}", fix, subject=label(card))


def others(seen: Seen, scene: Scene) -> tuple[App, ...]:
    """Return the processes on the GPUs of ranks that belong to no running job of this cluster."""
    over = {pid for stray in strays(scene) if stray.host == seen.host for pid in stray.pids}
    own = {one.pid for one in marked(seen) if one.cluster == scene.inventory.cluster} - over
    return tuple(app for app in used_answers(seen, scene, ()).apps if app.pid not in own)


@of_cards
def _busy(seen: Seen, scene: Scene) -> Iterator[Finding]:
    report = used_answers(seen, scene, ())
    cards = {card.get("uuid"): card for card in report.cards}
    over = {pid: stray.job for stray in strays(scene) if stray.host == seen.host for pid in stray.pids}
    for app in others(seen, scene):
        card = cards.get(app.gpu, {})
        held = f"{app.memory.strip()} MiB of GPU memory" if app.memory.strip().isdigit() else "GPU memory"
        who = f"{app.name.rpartition('/')[2] or 'a process'} (pid {app.pid}, user {app.user or 'unknown'})"
        if app.pid in over:
            what = f"{who} uses {held} for job {over[app.pid]}, which has ended"
            yield warning(what, "toolkit gc  # stops the process", subject=label(card))
        elif app.state == "D":
            what = f"{who} uses {held} and is in uninterruptible sleep (state D)"
            fix = f"on {seen.host}: ps -o stat {app.pid}  # if the state is still D, reboot the host"
            yield warning(what, fix, subject=label(card))
        elif card.get("compute_mode", "").startswith("Exclusive"):
            what = f"{who} uses the GPU, which allows no other process in its exclusive compute mode"
            fix = f"on {seen.host}: sudo nvidia-smi -i {_index(card)} -c DEFAULT  # or stop the process"
            yield error(what, fix, subject=label(card))
        else:
            fix = f"toolkit run --exclude {seen.host} SCRIPT  # or wait until the process exits"
            yield warning(f"{who} uses {held}", fix, subject=label(card))


@of_cards
def _mode(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    ranks, host = used_answers(seen, scene, ()).cards, scene.inventory.host(seen.host)
    slots, devices = host.slots or 0, sum(len(gpu.usable) for gpu in used_gpus(host, seen.facts))
    for card in used_answers(seen, scene).cards:
        mode = card.get("compute_mode", "")
        fix = f"on {seen.host}: sudo nvidia-smi -i {_index(card)} -c DEFAULT"
        if mode == "Prohibited":
            what = "no CUDA program can use the GPU, because its compute mode is Prohibited"
            yield error(what, fix, subject=label(card))
        elif mode.startswith("Exclusive") and card in ranks and slots > devices:
            what = f"{slots} slots cannot share {counted(len(ranks), 'GPU')} in the compute mode {mode}"
            yield error(what, fix, subject=label(card))


@of_cards
def _persistence(seen: Seen, scene: Scene) -> Iterator[Finding]:
    cards = answers(seen).cards
    # If a screen is attached, its server keeps the driver loaded.
    held = any("Enabled" in (card.get("persistence_mode"), card.get("display_active")) for card in cards)
    if any(card.get("persistence_mode") == "Disabled" for card in cards) and not held:
        what = (
            "persistence mode is off, so the driver is unloaded and its error counts are lost when no "
            "program uses the GPU"
        )
        yield warning(what, f"on {seen.host}: sudo nvidia-smi -pm 1  # or enable nvidia-persistenced")


@of_cards
def _link(seen: Seen, scene: Scene) -> Iterator[Finding]:
    for card in used_answers(seen, scene).cards:
        # NVLink-C2C connects the GPU to the processor, and the values of its PCIe link mean nothing.
        if re.search(r"\b(GB10|GH200|GB[23]00)\b", card.get("name", "")):
            continue
        now, most = number(card, "pcie.link.width.current"), number(card, "pcie.link.width.max")
        awake = card.get("pcie.link.gen.current") == card.get("pcie.link.gen.max")
        if now is None or most is None:
            yield unchecked("nvidia-smi does not report the width of the PCIe link", subject=label(card))
        elif now < most and not awake:
            # An idle GPU can narrow its link to save power.
            what = "the PCIe link is in a low-power state, so toolkit cannot check its width"
            yield unchecked(what, "toolkit check  # while a job uses the GPU", subject=label(card))
        elif now < most:
            slower = f"copies to and from the GPU can take {most / now:.2g} times as long"
            what = f"the PCIe link has {now} of {most} lanes, so {slower}"
            fix = f"on {seen.host}: nvidia-smi -q -i {_index(card)}  # then reseat the card or check its slot"
            yield warning(what, fix, subject=label(card))


def _alike(scene: Scene) -> Iterator[Finding]:
    ranks = {h.name for h in scene.inventory.hosts if h.slots != 0 and h.gpus != 0}
    used = {name: used_gpus(scene.inventory.host(name), facts) for name, facts in scene.facts.items()}
    with_gpus = {name: gpus for name, gpus in used.items() if gpus and name in ranks}
    without = [name for name in scene.facts if name not in with_gpus and name in ranks]
    if not with_gpus:
        yield fine("ranks use no GPU")
    elif without:
        what = (
            f"ranks on {', '.join(without)} (no GPU) compute on the CPU, but ranks on {', '.join(with_gpus)} "
            "compute on GPUs"
        )
        # Only the main host can have 0 slots.
        main = scene.inventory.main
        fixes = [f"in hosts.yaml: set hosts/{main}/slots to 0"] if main in without else []
        if others := [name for name in without if name != main]:
            fixes.append(f"toolkit run --exclude {','.join(others)} SCRIPT")
        yield warning(what, f"{'; '.join(fixes)}  # or set gpus: 0 for every host in hosts.yaml")
    for title, fix, words in (
        (
            "the GPU models differ",
            "toolkit run --exclude HOST SCRIPT  # the slowest GPU limits all ranks",
            "name",
        ),
        (
            "the GPU drivers differ",
            "on every host: nvidia-smi  # then install the same driver version",
            "driver",
        ),
    ):
        groups = grouped(
            (name, word)
            for name, gpus in with_gpus.items()
            for word in sorted({str(getattr(gpu, words)) for gpu in gpus})
        )
        if len(groups) > 1:
            yield warning(f"{title}: {groups_text(groups)}", fix)


CHECKS = (
    Check("gpu-memory", "the GPUs report no uncorrectable memory errors", host=_memory, probes=(GPUS,)),
    Check("gpu-xid", "the kernel log has no GPU hardware errors", host=_xid, probes=(GPUS,)),
    Check(
        "gpu-throttle",
        "no heat, hardware or power problem throttles the GPUs",
        host=_throttled,
        probes=(GPUS,),
    ),
    Check(
        "gpu-busy",
        "all GPU processes belong to running jobs of the cluster",
        host=_busy,
        probes=(GPUS, MARKS),
    ),
    Check("gpu-mode", "the compute mode lets ranks use the GPUs", host=_mode, probes=(GPUS,)),
    Check("gpu-persistence", "the GPU driver stays loaded", host=_persistence, probes=(GPUS,)),
    Check("gpu-link", "PCIe links of GPUs have their full width", host=_link, probes=(GPUS,)),
    Check("gpu-alike", "GPUs and drivers are the same on all hosts", whole=_alike),
)
