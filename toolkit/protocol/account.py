"""The answer of toolkit/container/monitor/job_facts.py: what a host knows of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from toolkit.protocol.decode import Key, Number, OrEmpty, Text
from toolkit.protocol.gauges import Sample
from toolkit.protocol.jobs import ExitCode, Line, Lines, Moment, Record, Status

Rank = Annotated[int, Number(0, 10**6)]
# When, step, steps a second, samples a second.
ThroughputRow = tuple[Moment, int | None, float | None, float | None]


@dataclass(frozen=True)
class Phases:
    """Time spent with phases, see ``toolkit.core.report``; ``at`` is when that was written down."""

    spans: object = None
    at: Moment | None = None


@dataclass(frozen=True)
class RankAccount:
    """A rank's life by its files; None for what has not been."""

    rank: Rank
    starts: tuple[Moment, ...] = ()
    first_output: Moment | None = None
    first_step: Moment | None = None
    ended: Moment | None = None
    exit_code: ExitCode | None = None
    signal: int | None = None
    oom: bool | None = None
    last: Lines = ()


@dataclass(frozen=True)
class Measurement:
    """The newest measurement of the network: the job, and the text that it printed."""

    job: str = ""
    text: Annotated[str, Text(most=1 << 22, any=True)] = ""


@dataclass(frozen=True)
class Account:
    """All that a host has of a job; what belongs to main alone is None elsewhere.

    Args:
        clock: the time there, in seconds since the epoch.
    """

    clock: Annotated[Moment, Key("now")]
    record: Annotated[Record | None, OrEmpty()] = None
    status: Status | None = None
    alive: bool = False
    preparation: Phases | None = None
    up: Phases | None = None
    ranks: tuple[RankAccount, ...] = ()
    throughput: tuple[ThroughputRow, ...] = ()
    gauges: tuple[Sample, ...] = ()
    versions: dict[str, Line] = field(default_factory=dict)
    network: Measurement = Measurement()
