"""Readings of gauges: the lines of container/monitor/gauges.py, and the rows that gauge_log.py keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from toolkit.protocol.decode import Key
from toolkit.protocol.jobs import Line, Lines, Moment


@dataclass(frozen=True)
class Processors:
    """Processors, how many of them were in use, and the load."""

    cores: int = 0
    busy: float | None = None
    load: float | None = None


@dataclass(frozen=True)
class MemoryUse:
    """Bytes."""

    used: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class NetworkUse:
    """Bytes a second on the data interface, whose link has ``mbit`` Mbit/s."""

    interface: str = ""
    received: Annotated[float | None, Key("in")] = None
    sent: Annotated[float | None, Key("out")] = None
    mbit: int | None = None


@dataclass(frozen=True)
class DiskUse:
    """Bytes a second of all disks, and free bytes."""

    read: float | None = None
    written: float | None = None
    free: int | None = None


@dataclass(frozen=True)
class GpuGauge:
    """One GPU; None for what its driver does not know.

    Args:
        utilization: percent of the time in which a kernel ran.
        memory_used, memory_total: MiB.
        power: W.
        temperature: degrees Celsius.
        clock, clock_max: MHz of its multiprocessors.
    """

    index: int
    uuid: str = ""
    utilization: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    power: float | None = None
    temperature: float | None = None
    clock: float | None = None
    clock_max: float | None = None


@dataclass(frozen=True)
class RankGauge:
    """One rank that runs; None for what is not known (yet).

    Args:
        cpu: processors in use, by it and what it has started.
        memory: bytes.
        silent: seconds since it last printed.
        line: what it printed last.
        step, steps_per_s, samples_per_s: as it prints them.
    """

    job: str
    rank: int
    cpu: float | None = None
    memory: int | None = None
    silent: float | None = None
    line: Line = ""
    step: int | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None


@dataclass(frozen=True)
class GaugedJob:
    """A job that has ranks on a host; None for what its record does not have."""

    world_size: int | None = None
    launcher: str | None = None
    command: Lines | None = None
    owner: Line | None = None


@dataclass(frozen=True)
class Sample:
    """One reading of a host; ``at`` in seconds since the epoch, by its own clock."""

    at: Moment
    cpu: Processors
    memory: MemoryUse
    network: NetworkUse
    disk: DiskUse
    gpus: tuple[GpuGauge, ...] = ()


@dataclass(frozen=True)
class Reading(Sample):
    """One reading with the ranks and the jobs of the host."""

    ranks: tuple[RankGauge, ...] = ()
    jobs: dict[str, GaugedJob] = field(default_factory=dict)
