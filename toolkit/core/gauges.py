"""Resource use of hosts and ranks, and throughput of ranks, as reported by container/monitor/gauges.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from toolkit.core.answers import answer_of
from toolkit.protocol.decode import DecodeError, decode, load_json
from toolkit.protocol.gauges import GaugedJob, GpuGauge, RankGauge, Reading

# A rank whose throughput is below this share of the median of its job is slow.
_SLOW = 0.8
# Seconds without output after which a rank counts as silent, if the other ranks print.
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
    """Parse a line of gauges.py; return None for another line, such as a message of the engine.

    Raises:
        ToolkitError: the line is from gauges.py and cannot be decoded.
    """
    try:
        value = load_json(line)
    except DecodeError:
        return None
    if not isinstance(value, dict):
        return None
    with answer_of(host, "the measured load"):
        reading = decode(Reading, value)
    cpu, memory, network, disk = reading.cpu, reading.memory, reading.network, reading.disk
    return HostGauges(
        host,
        reading.at,
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
        reading.gpus,
        reading.ranks,
        reading.jobs,
    )


@dataclass(frozen=True)
class JobGauges:
    """A job, summarized from its ranks on all hosts.

    Args:
        world_size: None if the job's record is missing.
        step: step of the rank that is furthest ahead.
        steps_per_s: the median of its ranks, which run in lockstep.
        samples_per_s: of the first rank that reports it, as in the job's report; many trainers print the
            value of the complete job on each rank.
        ranks: by number, each with the gauges of its host from the same reading.
        behind: stragglers, each with the reason.
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
    """Return the running jobs, by id, from the ranks on the hosts."""
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
    throughputs = [rank.steps_per_s for rank in own if rank.steps_per_s is not None]
    samples = [rank.samples_per_s for rank in own if rank.samples_per_s is not None]
    return JobGauges(
        job,
        about.world_size,
        about.launcher or "",
        about.command or (),
        tuple(found),
        max(steps, default=None),
        median(throughputs) if throughputs else None,
        samples[0] if samples else None,
        _behind(own),
    )


def _behind(ranks: Sequence[RankGauge]) -> dict[int, str]:
    """Return the stragglers as far as the output of the ranks shows them, each with the reason."""
    found: dict[int, str] = {}
    steps = sorted(rank.step for rank in ranks if rank.step is not None)
    throughputs = [rank.steps_per_s for rank in ranks if rank.steps_per_s]
    # Ranks without throughput are ignored: often only rank 0 prints.
    talking = [rank.silent for rank in ranks if rank.silent is not None and _has_throughput(rank)]
    for rank in ranks:
        if len(steps) > 1 and rank.step is not None and rank.step < median(steps) - 1:
            found[rank.rank] = f"at step {rank.step}, but the fastest rank is at step {steps[-1]}"
        elif len(throughputs) > 1 and rank.steps_per_s and rank.steps_per_s < _SLOW * median(throughputs):
            middle = median(throughputs)
            found[rank.rank] = (
                f"{rank.steps_per_s:.3g} steps/s, but the median of the ranks that print steps is "
                f"{middle:.3g} steps/s"
            )
        elif (
            len(talking) > 1 and _has_throughput(rank) and (rank.silent or 0) > _SILENT_S + 10 * min(talking)
        ):
            found[rank.rank] = f"no output for {rank.silent:.0f} s"
    return found


def _has_throughput(rank: RankGauge) -> bool:
    return rank.step is not None or rank.steps_per_s is not None or rank.samples_per_s is not None
