"""What the probe asks about the use of a host: what computes on its GPUs, which jobs claim them."""

from __future__ import annotations

from toolkit.cluster.ownership import OWN_PROCESSES
from toolkit.cluster.probe_cluster import begun
from toolkit.core.facts import Claim, GpuProcess
from toolkit.protocol.frames import rows
from toolkit.protocol.names import program
from toolkit.protocol.numbers import whole

# Its arguments say what a running job uses, in /proc, where every user of the host may read them.
LEASE = program("job.lease")[1:]

# The probe defines `cell`.
# A process that ended meanwhile is left out; where /proc hides those of others, kill still knows them.
# The innermost container is the last to be named by the control group's path.
QUESTIONS = (
    OWN_PROCESSES
    + r"""
owner_of() {
  owner=$(stat -c %U "$1" 2>/dev/null)
  [ "$owner" != UNKNOWN ] || owner=$(stat -c %u "$1" 2>/dev/null)
}
apps() {
[ "$smi" = hangs ] || ! command -v nvidia-smi >/dev/null 2>&1 ||
timeout -k 2 10 nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits \
  2>/dev/null | while IFS=' ,' read -r gpu pid memory _; do
  case $pid in ''|*[!0-9]*) continue ;; esac
  case $(kill -0 "$pid" 2>&1) in *[Nn]'o such process'*) continue ;; esac
  owner_of "/proc/$pid"; name= job=
  read -r name 2>/dev/null <"/proc/$pid/comm"
  inside=$(sed -n 's/.*\([0-9a-f]\{64\}\).*/\1/p' "/proc/$pid/cgroup" 2>/dev/null | head -n 1)
  [ -z "$(echo "/proc/$pid/environ" | of_this_user)" ] ||
    job=$(tr '\0\n' '\n ' 2>/dev/null <"/proc/$pid/environ" | sed -n 's/^TOOLKIT_JOB=//p' | head -n 1)
  printf 'app|%s|%s|%s|%s|' "$(cell "$gpu")" "$pid" "$(cell "$memory")" "$(cell "$owner")"
  printf '%s|%s|%s\n' "$inside" "$(cell "$job")" "$(cell "$name")"
done
}
say apps "$(apps)"
claims() {
for f in $(grep -slzFx @lease@ /proc/[0-9]*/cmdline 2>/dev/null); do
  line=; read -r line 2>/dev/null <"${f%/cmdline}/stat" || continue
  pid=${f#/proc/}; owner_of "${f%/cmdline}"
  # A variable holds no zero bytes, so the command line is encoded as it is.
  printf 'claim|%s|%s|%s|=%s\n' "${pid%/*}" "$(cell "$owner")" "${line##*) }" \
    "$(base64 2>/dev/null <"$f" | tr -d '\n')"
done
}
say claims "$(claims)"
""".replace("@lease@", LEASE[1])
)


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """Return the lines of the section ``apps``."""
    found = []
    for word, cells in rows(text):
        if word == "app" and len(cells) == 7 and (pid := whole(cells[1])) is not None:
            gpu, _, memory, user, container, job, program = cells
            # "[N/A]" and "[Not Supported]" are how drivers say that they do not know.
            found.append(GpuProcess(gpu, pid, whole(memory) or 0, user, program, container, job))
    return tuple(found)


def parse_claims(text: str, boot: str) -> tuple[Claim, ...]:
    """Return the claims that processes of the host make.

    Args:
        text: lines of the section ``claims``; of each the argv decides whether it is one.
        boot: with the line ``btime`` of /proc/stat.
    """
    found = (_claim(cells, boot) for word, cells in rows(text) if word == "claim" and len(cells) == 4)
    return tuple(claim for claim in found if claim)


def _claim(cells: tuple[str, ...], boot: str) -> Claim | None:
    pid, user, stat, argv = whole(cells[0]), *cells[1:]
    words = argv.split("\0")
    if pid is None or len(words) < 4 or tuple(words[1:3]) != LEASE or not words[3]:
        return None
    if not words[0].rpartition("/")[2].startswith("python"):
        return None
    said = dict(zip(words[4::2], words[5::2], strict=False))
    return Claim(
        job=words[3],
        cluster=said.get("--cluster", ""),
        owner=said.get("--owner", ""),
        slots=tuple(
            slot for word in said.get("--slots", "").split(",") if (slot := whole(word, 65535)) is not None
        ),
        gpus=tuple(filter(None, said.get("--gpus", "").split(","))),
        user=user,
        pid=pid,
        since=begun(boot, stat),
    )
