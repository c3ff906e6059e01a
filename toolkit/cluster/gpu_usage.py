"""Users of GPUs: jobs of all users' clusters by their reservations, and all other processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from toolkit.core.facts import Claim, Facts, GpuProcess
from toolkit.core.printable import table
from toolkit.errors import NotReady
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_OWNER

# The server of NVIDIA's Multi-Process Service computes nothing itself, and its clients are listed too. Every
# other process in nvidia-smi's list of compute processes counts, even with little memory: a context alone
# takes hundreds of MiB, a job that has just started uses as little as a harmless process, and some drivers
# report no size. Desktops are in another list, which toolkit does not query.
_SERVICE = "nvidia-cuda-mps"
_MOST = 4


@dataclass(frozen=True)
class Holder:
    """A job or a process that uses a GPU.

    Args:
        user: the owner of the processes on the host.
        owner, cluster, job: of toolkit; empty for other processes. ``owner`` started the job.
        since: seconds since the epoch by the host's clock, 0 for unknown.
        vouched: a process of the SSH user made the reservation; any user can make one with any content.
        pid, program, memory_mib: of a process without a reservation; 0 and empty for a reservation.
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
            user = self.user or "unknown"
            claimed = "" if self.vouched else f", according to user {user}"
            return f"job {self.job} of cluster {self.cluster} ({self.owner or self.user}{claimed}){since}"
        of = f" in cluster {self.cluster}" if self.cluster else ""
        return f"{self.program or 'a process'} (pid {self.pid}, user {self.user or 'unknown'}){of}"


@dataclass(frozen=True)
class GpuUse:
    """One GPU of a host, or one part of a split GPU, with its users; empty if it is free."""

    host: str
    index: int
    uuid: str
    name: str
    holders: tuple[Holder, ...] = ()

    @property
    def free(self) -> bool:
        return not self.holders


def moment(seconds: float) -> str:
    """Return a time as text, to the minute."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


def holders(facts: Facts) -> tuple[GpuUse, ...]:
    """Return every GPU of a host that a process can compute on, with its users."""
    return tuple(
        GpuUse(facts.host, gpu.index, uuid, gpu.name, tuple(_holders(facts, gpu.uuid, uuid)))
        for gpu in facts.gpus
        for uuid in gpu.usable
    )


def _holders(facts: Facts, whole: str, uuid: str) -> Iterator[Holder]:
    # A reservation of a complete GPU that was split later applies to each of its parts.
    claims = [claim for claim in facts.claims if {uuid, whole} & {*claim.gpus}]
    for claim in claims:
        own = claim.user == facts.user
        yield Holder(claim.user, claim.owner, claim.cluster, claim.job, claim.since, own)
    for process in facts.gpu_processes:
        # For a split GPU the driver can name only the complete GPU: no part is refused for that.
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
    """Return cluster and owner of the container in which a process runs; empty if it is none of toolkit."""
    found = next((c for c in facts.containers if process.container and c.id == process.container), None)
    return (found.labels.get(LABEL_CLUSTER, ""), found.labels.get(LABEL_OWNER, "")) if found else ("", "")


def _belongs(process: GpuProcess, cluster: str, claim: Claim) -> bool:
    if process.job:
        return process.job == claim.job
    # The job of a process is hidden from other users; its container is not.
    return bool(cluster) and cluster == claim.cluster


def refuse_held(
    facts: Mapping[str, Facts],
    wanted: Mapping[str, Collection[str]],
    cluster: str = "",
    jobs: Mapping[str, Mapping[str, Collection[str]]] = {},
) -> None:
    """Refuse GPUs that another job or process uses.

    Args:
        facts: by host.
        wanted: UUIDs of the requested GPUs, or parts of them, on each host; see ``usable_uuids``.
        cluster: own cluster.
        jobs: its jobs whose slots the caller has compared, with the GPUs of their slots by host. A job that
            started before a change of ``slots:`` can hold other GPUs, which are refused. On a host that is
            not listed, the job has no slots, and its reservation is for a restart.

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
        if not (
            holder.job in jobs
            and holder.user == facts[host].user
            and cluster == holder.cluster
            and use.uuid in jobs[holder.job].get(host, uuids)
        )
    ]
    if held:
        names = list(dict.fromkeys(use.host for use, _ in held))
        out = " ".join(f"--exclude {name}" for name in names)
        fix = (
            "toolkit status  # lists the users of GPUs; wait until the GPUs are free, or add "
            f"{out} or --share to `toolkit run`"
        )
        raise NotReady(_sentence(held), fix, names[0] if len(names) == 1 else "")


def _sentence(held: Iterable[tuple[GpuUse, Holder]]) -> str:
    # A job that uses eight GPUs is one reason, not eight.
    reasons: dict[tuple[str, Holder], list[str]] = {}
    for use, holder in held:
        reasons.setdefault((use.host, holder), []).append(f"{use.index} ({use.uuid})")
    several = len({host for host, _ in reasons}) > 1
    texts = [
        f"{'GPU' if len(gpus) == 1 else 'GPUs'} {', '.join(gpus)}{f' on {host}' if several else ''} "
        f"{'is held by' if len(gpus) == 1 else 'are held by'} {holder}"
        for (host, holder), gpus in reasons.items()
    ]
    left = len(texts) - _MOST
    noun = "job or process holds" if left == 1 else "jobs or processes hold"
    more = f"; and {left} more {noun} GPUs" if left > 0 else ""
    return "; ".join(texts[:_MOST]) + more


def gpu_uses(facts: Iterable[Facts]) -> tuple[GpuUse, ...]:
    """Return every GPU of these hosts with its users."""
    return tuple(use for one in facts for use in holders(one))


def gpus_json(facts: Iterable[Facts]) -> list[dict[str, Any]]:
    """Return one object for each GPU; ``holders`` is empty if it is free."""
    return [{**asdict(use), "free": use.free} for use in gpu_uses(facts)]


def gpus_text(facts: Iterable[Facts]) -> str:
    """Return one line for each user of each GPU; empty without GPUs."""
    rows = [
        (use.host, str(use.index), use.name, str(holder))
        for use in gpu_uses(facts)
        for holder in use.holders or ("free",)
    ]
    return table(("host", "gpu", "model", "held by"), rows) if rows else ""
