"""What hosts say about their GPUs: one question to the driver, the PCI bus and the kernel's log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps

from toolkit.checks.model import HostJudge, Probe, Scene, Seen, fine
from toolkit.core.finding import Finding
from toolkit.protocol.frames import CELL, lines_of, rows
from toolkit.protocol.numbers import whole

# nvidia-smi answers nothing at all when it does not know one of the columns. These it has had since 418.
_ALWAYS = (
    "index,uuid,pci.bus_id,name,driver_version,persistence_mode,compute_mode,display_active,memory.used,"
    "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "ecc.errors.uncorrected.volatile.total,retired_pages.pending"
)
# Since driver 535, and before.
_NEW = f"{_ALWAYS},clocks_event_reasons.active,compute_cap,reset_status.reset_required"
_OLD = f"{_ALWAYS},clocks_throttle_reasons.active"

# A driver in trouble can make nvidia-smi hang: then it is asked no second time.
GPUS = Probe(
    "gpu-health",
    CELL
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
smi() {{ timeout -k 2 20 nvidia-smi "$@" 2>&1; }}
out=$(smi --query-gpu={_NEW} --format=csv,nounits)
case $? in 124|137) echo "no answer within 20 s"; exit ;; esac
case $out in *"not a valid field"*) out=$(smi --query-gpu={_OLD} --format=csv,nounits) ;; esac
printf '%s\n' "$out"
# Not process_name: a process chooses it, and nvidia-smi prints a newline in it as it is.
smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits |
while IFS=, read -r gpu pid memory; do
  pid=${{pid# }}
  case $gpu in GPU-*) ;; *) continue ;; esac
  state=gone; rest=; name=
  read -r line 2>/dev/null <"/proc/$pid/stat" && rest=${{line##*) }} && state=${{rest%% *}}
  read -r name 2>/dev/null <"/proc/$pid/comm"
  printf 'app|%s|%s|%s|%s|' "$(cell "$gpu")" "$(cell "$pid")" "$(cell "${{memory# }}")" "$(cell "$state")"
  printf '%s|%s\n' "$(cell "$(stat -c %U "/proc/$pid" 2>/dev/null)")" "$(cell "$name")"
done
smi --query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure --format=csv,noheader |
grep '^GPU-' | named rows
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
log=dmesg; $log >/dev/null || log='journalctl -k -b -q --no-pager -o cat'
[ -z "$($log | head -n 1)" ] || echo log:
$log | grep 'NVRM: Xid' | tail -n 40 | named log
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
    """What a host said about its GPUs.

    Args:
        cards: one mapping per GPU, by nvidia-smi's own names of columns, without units.
        trouble: everything that nvidia-smi said besides; empty when all is well.
        pci: NVIDIA's display devices on the bus, with the kernel driver that holds each, empty for none.
        other: everything else by the word in front of it.
    """

    cards: tuple[Mapping[str, str], ...] = ()
    trouble: str = ""
    pci: tuple[tuple[str, str], ...] = ()
    apps: tuple[App, ...] = ()
    other: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def said(self, word: str) -> tuple[str, ...]:
        """Return the lines that came with this word in front, in order."""
        return self.other.get(word, ())


_WORDS = ("pci", "rows", "fabric", "chars", "tool", "cdi", "module", "kernel", "running", "log")


def answers(seen: Seen) -> Answers:
    """Return what the host said about its GPUs."""
    told: dict[str, list[str]] = {}
    rest: list[str] = []
    apps: list[App] = []
    for line in lines_of(seen.answer(GPUS)):
        word, _, after = line.partition(":")
        if line.startswith("app|"):
            apps += (app for _, cells in rows(line) if (app := _app(cells)))
        elif word in _WORDS:
            told.setdefault(word, []).append(after)
        elif line.strip():
            rest.append(line.strip())
    cards, trouble = _table(rest)
    pci = tuple((bus, driver) for bus, _, driver in (line.partition(" ") for line in told.get("pci", ())))
    return Answers(cards, trouble, pci, tuple(apps), {word: tuple(lines) for word, lines in told.items()})


def _table(lines: list[str]) -> tuple[tuple[Mapping[str, str], ...], str]:
    head = next((line for line in lines if line.startswith("index, uuid,")), "")
    # "memory.used [MiB]": the unit is in the head, and the values go without.
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
    """Whether the hosts file says that no GPU of this host is to be used."""
    return scene.inventory.host(seen.host).gpus == 0


def of_cards(judge: HostJudge) -> HostJudge:
    """Return the judge of GPUs as one that says so where there are none to be judged."""

    @wraps(judge)
    def judged(seen: Seen, scene: Scene) -> Iterable[Finding]:
        if unwanted(seen, scene):
            return (fine("the hosts file uses no GPU of this host"),)
        return judge(seen, scene) if answers(seen).cards else (fine("nvidia-smi lists no GPU here"),)

    return judged


def number(card: Mapping[str, str], column: str) -> int | None:
    """Return a count, None where nvidia-smi gives none (``[N/A]``, ``[Not Supported]``)."""
    return whole(card.get(column, ""))


def label(card: Mapping[str, str]) -> str:
    """Return what to call a GPU in a message."""
    return f"GPU {card.get('index', '?')}"
