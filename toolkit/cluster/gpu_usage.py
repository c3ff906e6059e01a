"""Holders of GPUs: jobs of every user's clusters by their claims, and all other processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from toolkit.core.facts import Claim, Facts, GpuProcess
from toolkit.errors import NotReady
from toolkit.plan.show import table
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_OWNER

# The server of NVIDIA's Multi-Process Service computes nothing itself, and its clients are listed too. Apart
# from it every process in nvidia-smi's list of those that compute counts, however little it holds: a context
# alone takes hundreds of MiB, a job that has just begun looks as small as one that is harmless, and drivers
# that give no figure would make all look so. Desktops are in another list, which nobody asks for.
_SERVICE = "nvidia-cuda-mps"
_MOST = 4


@dataclass(frozen=True)
class Holder:
    """Somebody who holds a GPU.

    Args:
        user: whose processes they are on the host.
        owner, cluster, job: of the toolkit; empty for a stranger's process. ``owner`` started the job.
        since: seconds since the epoch by the host's clock, 0 for unknown.
        vouched: whether the claim is of a process of the ssh user; any user can make one of any content.
        pid, program, memory_mib: of a process that belongs to no claim; 0 and empty for a claim.
    """

    user: str = ""
    owner: str = ""
    cluster: str = ""
    job: str = ""
    since: float = 0.0
    vouched: bool = True
    pid: int = 0
    program: str = ""
    memory_mib: int = 0

    def __str__(self) -> str:
        since = f" since {moment(self.since)}" if self.since else ""
        if self.job and not self.pid:
            said = "" if self.vouched else f", says user {self.user or 'unknown'}"
            return f"job {self.job} of cluster {self.cluster} ({self.owner or self.user}{said}){since}"
        of = f" in cluster {self.cluster}" if self.cluster else ""
        return f"{self.program or 'a process'} (pid {self.pid}, user {self.user or 'unknown'}){of}"


@dataclass(frozen=True)
class GpuUse:
    """One GPU of a host, or one part of a GPU that is split, and who holds it; nobody when it is free."""

    host: str
    index: int
    uuid: str
    name: str
    holders: tuple[Holder, ...] = ()

    @property
    def free(self) -> bool:
        return not self.holders


def moment(seconds: float) -> str:
    """Return a time for people, to the minute."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


def holders(facts: Facts) -> tuple[GpuUse, ...]:
    """Return every GPU of a host that a process can compute on, with those who hold it."""
    return tuple(
        GpuUse(facts.host, gpu.index, uuid, gpu.name, tuple(_holders(facts, gpu.uuid, uuid)))
        for gpu in facts.gpus
        for uuid in gpu.usable
    )


def _holders(facts: Facts, whole: str, uuid: str) -> Iterator[Holder]:
    # Who claims all of a GPU that has been split since holds each of its parts.
    claims = [claim for claim in facts.claims if {uuid, whole} & {*claim.gpus}]
    for claim in claims:
        own = claim.user == facts.user
        yield Holder(claim.user, claim.owner, claim.cluster, claim.job, claim.since, own)
    for process in facts.gpu_processes:
        # Of a GPU that is split, the driver may name the whole alone: no part is refused for that.
        if process.gpu != uuid or process.program == _SERVICE:
            continue
        cluster, owner = _cluster(process, facts)
        if not any(_belongs(process, cluster, claim) for claim in claims):
            yield Holder(
                process.user,
                owner,
                cluster,
                process.job,
                pid=process.pid,
                program=process.program,
                memory_mib=process.memory_mib,
            )


def _cluster(process: GpuProcess, facts: Facts) -> tuple[str, str]:
    """The cluster in whose container a process runs, and that one's owner; empty for a stranger's."""
    found = next((c for c in facts.containers if process.container and c.id == process.container), None)
    return (found.labels.get(LABEL_CLUSTER, ""), found.labels.get(LABEL_OWNER, "")) if found else ("", "")


def _belongs(process: GpuProcess, cluster: str, claim: Claim) -> bool:
    if process.job:
        return process.job == claim.job
    # Which job it is of is hidden from other users; which container it is in is not.
    return bool(cluster) and cluster == claim.cluster


def refuse_held(
    facts: Mapping[str, Facts],
    wanted: Mapping[str, Collection[str]],
    cluster: str = "",
    jobs: Collection[str] = (),
) -> None:
    """Refuse GPUs that somebody else holds.

    Args:
        facts: by host.
        wanted: UUIDs of the GPUs, or parts of them, that are to be used on each host; see ``usable_uuids``.
        cluster, jobs: own cluster, and those of its jobs that the caller takes care of itself.

    Raises:
        NotReady: names hosts, GPUs and holders.
    """
    held = [
        (use, holder)
        for host, uuids in wanted.items()
        if host in facts
        for use in holders(facts[host])
        if use.uuid in uuids
        for holder in use.holders
        if not (holder.job in jobs and holder.user == facts[host].user and cluster == holder.cluster)
    ]
    if held:
        names = list(dict.fromkeys(use.host for use, _ in held))
        out = " ".join(f"--exclude {name}" for name in names)
        fix = f"wait for it (toolkit status), or leave out what is held: {out}; to compute beside it: --share"
        raise NotReady(_sentence(held), fix, names[0] if len(names) == 1 else "")


def _sentence(held: Iterable[tuple[GpuUse, Holder]]) -> str:
    # One holder of eight GPUs is one reason and not eight.
    reasons: dict[tuple[str, Holder], list[str]] = {}
    for use, holder in held:
        reasons.setdefault((use.host, holder), []).append(f"{use.index} ({use.uuid})")
    several = len({host for host, _ in reasons}) > 1
    said = [
        f"GPU {', '.join(gpus)}{f' on {host}' if several else ''} is held by {holder}"
        for (host, holder), gpus in reasons.items()
    ]
    more = f"; and {len(said) - _MOST} more" if len(said) > _MOST else ""
    return "; ".join(said[:_MOST]) + more


def gpu_uses(facts: Iterable[Facts]) -> tuple[GpuUse, ...]:
    """Return every GPU of these hosts with those who hold it."""
    return tuple(use for one in facts for use in holders(one))


def gpus_json(facts: Iterable[Facts]) -> list[dict[str, Any]]:
    """Return one object for each GPU; ``holders`` is empty for one that is free."""
    return [{**asdict(use), "free": use.free} for use in gpu_uses(facts)]


def gpus_text(facts: Iterable[Facts]) -> str:
    """Return one line for each holder of each GPU; empty where no host has any."""
    rows = [
        (use.host, str(use.index), use.name, str(holder))
        for use in gpu_uses(facts)
        for holder in use.holders or ("free",)
    ]
    return table(("host", "gpu", "model", "held by"), rows) if rows else ""
