"""What hosts and ranks use and how fast ranks go, as toolkit/container/monitor/gauges.py says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from toolkit.core.answers import answer_of
from toolkit.protocol.decode import DecodeError, decode, load_json
from toolkit.protocol.gauges import GaugedJob, GpuGauge, RankGauge, Reading

# A rank below so much of the median of its job's ranks is slow.
_SLOW = 0.8
# A rank that has printed nothing for so long, in seconds, while the others have.
_SILENT_S = 60.0


@dataclass(frozen=True)
class HostGauges:
    """One host.

    Args:
        at: seconds since the epoch, by its own clock.
        cores: its processors; ``busy`` how many of them were in use.
        memory_used, memory_total, disk_free: bytes.
        received, sent: bytes a second on ``interface``, the data interface, whose link has ``mbit`` Mbit/s.
        disk_read, disk_written: bytes a second of all disks.
        jobs: by id: world size, launcher, command and owner.
    """

    host: str
    at: float
    cores: int = 0
    busy: float | None = None
    load: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    interface: str = ""
    received: float | None = None
    sent: float | None = None
    mbit: int | None = None
    disk_read: float | None = None
    disk_written: float | None = None
    disk_free: int | None = None
    gpus: tuple[GpuGauge, ...] = ()
    ranks: tuple[RankGauge, ...] = ()
    jobs: Mapping[str, GaugedJob] = field(default_factory=dict)


def parse_gauges(host: str, line: bytes) -> HostGauges | None:
    """Return a line of gauges.py; None for what is none: an engine may say a word in between.

    Raises:
        ToolkitError: it is a line of gauges.py that cannot be read.
    """
    try:
        value = load_json(line)
    except DecodeError:
        return None
    if not isinstance(value, dict):
        return None
    with answer_of(host, "its gauges"):
        said = decode(Reading, value)
    cpu, memory, network, disk = said.cpu, said.memory, said.network, said.disk
    return HostGauges(
        host,
        said.at,
        cpu.cores,
        cpu.busy,
        cpu.load,
        memory.used,
        memory.total,
        network.interface,
        network.received,
        network.sent,
        network.mbit,
        disk.read,
        disk.written,
        disk.free,
        said.gpus,
        said.ranks,
        said.jobs,
    )


@dataclass(frozen=True)
class JobGauges:
    """A job as its ranks on all hosts show it.

    Args:
        world_size: None where its record is not there.
        step: that of the rank that has come furthest.
        steps_per_s: the median of its ranks, which go in step with each other.
        samples_per_s: what all its ranks say together, or what one says where it alone does.
        ranks: by number, each with what its host was when it was read.
        behind: ranks that hold the others up, each with why.
    """

    id: str
    world_size: int | None
    launcher: str
    command: tuple[str, ...]
    ranks: tuple[tuple[HostGauges, RankGauge], ...]
    step: int | None
    steps_per_s: float | None
    samples_per_s: float | None
    behind: Mapping[int, str]


def job_gauges(hosts: Sequence[HostGauges]) -> tuple[JobGauges, ...]:
    """Return the jobs that run, by id, from what the hosts show of their ranks."""
    ranks: dict[str, list[tuple[HostGauges, RankGauge]]] = {}
    about: dict[str, GaugedJob] = {}
    for host in hosts:
        about |= host.jobs
        for rank in host.ranks:
            ranks.setdefault(rank.job, []).append((host, rank))
    return tuple(_job(job, about.get(job, GaugedJob()), ranks[job]) for job in sorted(ranks))


def _job(job: str, about: GaugedJob, found: list[tuple[HostGauges, RankGauge]]) -> JobGauges:
    found = sorted(found, key=lambda placed: placed[1].rank)
    own = [rank for _, rank in found]
    steps = [rank.step for rank in own if rank.step is not None]
    paces = [rank.steps_per_s for rank in own if rank.steps_per_s is not None]
    samples = [rank.samples_per_s for rank in own if rank.samples_per_s is not None]
    return JobGauges(
        job,
        about.world_size,
        about.launcher or "",
        about.command or (),
        tuple(found),
        max(steps, default=None),
        median(paces) if paces else None,
        sum(samples) if samples else None,
        _behind(own),
    )


def _behind(ranks: Sequence[RankGauge]) -> dict[int, str]:
    """The ranks that hold the others up, as far as that can be told from outside."""
    found: dict[int, str] = {}
    steps = sorted(rank.step for rank in ranks if rank.step is not None)
    paces = [rank.steps_per_s for rank in ranks if rank.steps_per_s]
    # Of the others nothing is expected: often rank 0 alone prints.
    talking = [rank.silent for rank in ranks if rank.silent is not None and _has_a_pace(rank)]
    for rank in ranks:
        if len(steps) > 1 and rank.step is not None and rank.step < median(steps) - 1:
            found[rank.rank] = f"at step {rank.step}, the others at {steps[-1]}"
        elif len(paces) > 1 and rank.steps_per_s and rank.steps_per_s < _SLOW * median(paces):
            found[rank.rank] = f"{rank.steps_per_s:.3g} steps/s, the others {median(paces):.3g}"
        elif len(talking) > 1 and _has_a_pace(rank) and (rank.silent or 0) > _SILENT_S + 10 * min(talking):
            found[rank.rank] = f"silent for {rank.silent:.0f} s"
    return found


def _has_a_pace(rank: RankGauge) -> bool:
    return rank.step is not None or rank.steps_per_s is not None or rank.samples_per_s is not None
