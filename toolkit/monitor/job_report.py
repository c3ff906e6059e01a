"""A job as its report shows it: what ran where, what took how long, how fast it went, what broke.

Gauges of its hosts are curves over time. All times are seconds since the job's supervisor was started, by
main's clock: negative before that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from toolkit.core.report import Span, parse_spans
from toolkit.jobs.status import JobStatus
from toolkit.protocol.account import Account, Phases, RankAccount
from toolkit.protocol.gauges import GpuGauge, Sample
from toolkit.protocol.jobs import Restart


@dataclass(frozen=True)
class Curve:
    """Values over time.

    Args:
        points: seconds since the job's start, and the value; None where it was not known.
        most: what the value cannot exceed, as a scale; None where nobody knows.
    """

    name: str
    unit: str
    points: tuple[tuple[float, float | None], ...]
    most: float | None = None

    @property
    def top(self) -> float:
        """The largest value, 0 where there is none."""
        return max((value for _, value in self.points if value is not None), default=0.0)


@dataclass(frozen=True)
class RankReport:
    """A rank's life; its end is that of its last attempt. None for what has not been or is not known.

    Args:
        starts: when its process was started, once for each attempt that it took part in.
        first_output, first_step: when it printed for the first time, and a step; to within 2 s.
        how: exit code, signal or lack of memory in words; empty while it runs and where it went well.
        last: what it printed last, where it failed.
    """

    rank: int
    host: str
    starts: tuple[float, ...]
    first_output: float | None = None
    first_step: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    how: str = ""
    last: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """The time from one start of the ranks to the next.

    Args:
        end: None while it runs.
        reason: why it ended.
        host: the one to blame, empty for none.
    """

    begin: float
    end: float | None
    hosts: tuple[str, ...]
    reason: str
    host: str = ""


@dataclass(frozen=True)
class HostReport:
    """A host of the job: curves of what it did meanwhile, and versions of what it has."""

    name: str
    curves: tuple[Curve, ...]
    versions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class JobReport:
    """All that is known of a job.

    Args:
        asked: when it was asked, since the job's start.
        preparation: of `run`, before the start and while it started.
        up: of the last `up` that changed something, from its own beginning on; ``up_before`` is how many
            seconds before the job's start that was written down, None where nobody has.
        pace: steps a second, and samples a second where ranks print them.
        steps: the number of the step that was reached.
        silent: hosts that do not say, and why.
        network: job and text of the newest measurement of the network, both empty for none.
    """

    cluster: str
    status: JobStatus
    asked: float
    preparation: tuple[Span, ...]
    up: tuple[Span, ...]
    up_before: float | None
    attempts: tuple[Attempt, ...]
    hosts: tuple[HostReport, ...]
    ranks: tuple[RankReport, ...]
    pace: tuple[Curve, ...]
    steps: Curve | None
    silent: tuple[tuple[str, str], ...] = ()
    network: tuple[str, str] = ("", "")

    @property
    def seconds(self) -> float:
        """How long it has taken, until now while it runs."""
        ended = self.status.ended
        return self.asked if ended is None else ended - self.status.started

    @property
    def first_step(self) -> float | None:
        """When the first rank printed its first step, counted from when `run` began; None where none has."""
        found = [rank.first_step for rank in self.ranks if rank.first_step is not None]
        began = min((span.begin for span in self.preparation), default=0.0)
        return min(found) - began if found else None

    def typical(self, name: str) -> float | None:
        """Return the median of a pace over the job's time, its first tenth left out; None without one."""
        for curve in self.pace:
            if curve.name == name and (values := [value for _, value in curve.points if value is not None]):
                return median(values[len(values) // 10 :])
        return None

    def mean(self, name: str) -> float | None:
        """Return the mean of a gauge over all hosts and their time; None where none has it."""
        values = [
            value
            for host in self.hosts
            for curve in host.curves
            if curve.name == name
            for _, value in curve.points
            if value is not None
        ]
        return sum(values) / len(values) if values else None

    def as_json(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            **asdict(self),
            "seconds": self.seconds,
            "first_step": self.first_step,
            "steps_per_s": self.typical("steps/s"),
            "samples_per_s": self.typical("samples/s"),
        }


def make_report(
    cluster: str,
    status: JobStatus,
    told: Mapping[str, Account],
    silent: Mapping[str, str],
    answered: Mapping[str, float],
) -> JobReport:
    """Return the report of a job.

    Args:
        status: how it stands, also where each host has a part of it.
        told: what job_facts.py reported on each host, main first, or the job's first where each has a part.
        silent: why others said nothing.
        answered: when each said it, in seconds since the epoch by this machine's clock: the hosts' clocks
            differ, and what they tell is moved by that.
    """
    first = next(iter(told))
    own = told[first]
    ahead = {host: said.clock - answered[host] for host, said in told.items()}

    def since(host: str, when: float | None) -> float | None:
        """A time of a host's clock as one of the job's."""
        return None if when is None else when - ahead[host] + ahead[first] - status.started

    ranks = sorted(
        (_rank(host, rank, since) for host, said in told.items() for rank in said.ranks),
        key=lambda rank: rank.rank,
    )
    paced = next((host for host, said in told.items() if any(r.rank == 0 for r in said.ranks)), first)
    rows = [(since(paced, row[0]) or 0.0, *row[1:]) for row in told[paced].pace]
    up = own.up or Phases()
    network = next((said.network for said in told.values() if said.network.job), own.network)
    return JobReport(
        cluster,
        status,
        own.clock - status.started,
        parse_spans(own.preparation.spans if own.preparation else None),
        parse_spans(up.spans),
        status.started - up.at if up.at else None,
        _attempts(own.status.restarts if own.status else None, status),
        tuple(
            HostReport(
                host,
                gauge_curves([(since(host, row.at) or 0.0, row) for row in said.gauges]),
                tuple(said.versions.items()),
            )
            for host, said in told.items()
            if said.ranks or said.gauges
        ),
        tuple(ranks),
        _pace(rows),
        Curve("step", "", tuple((at, step) for at, step, *_ in rows)) if rows else None,
        tuple(silent.items()),
        (network.job, network.text),
    )


def _rank(host: str, said: RankAccount, since: Callable[[str, float | None], float | None]) -> RankReport:
    code = said.exit_code
    how = ""
    if said.oom:
        how = "killed for lack of memory"
    elif said.signal:
        how = f"killed by signal {said.signal}"
    elif code:
        how = f"exit code {code}"
    return RankReport(
        said.rank,
        host,
        tuple(at for start in said.starts if (at := since(host, start)) is not None),
        since(host, said.first_output),
        since(host, said.first_step),
        since(host, said.ended),
        code,
        how,
        said.last,
    )


def _attempts(restarts: Sequence[Restart] | None, status: JobStatus) -> tuple[Attempt, ...]:
    found, begin = [], 0.0
    for restart in restarts or ():
        end = restart.at - status.started
        found.append(Attempt(begin, end, restart.hosts, restart.reason, restart.host))
        begin = end
    last = None if status.ended is None else status.ended - status.started
    names = tuple(name for name, _ in status.hosts)
    return (*found, Attempt(begin, last, names, status.reason or status.state))


def _pace(rows: Sequence[tuple[Any, ...]]) -> tuple[Curve, ...]:
    curves = []
    for name, column in (("steps/s", 2), ("samples/s", 3)):
        points = tuple((row[0], row[column]) for row in rows)
        if any(value is not None for _, value in points):
            curves.append(Curve(name, "", points))
    return tuple(curves)


def gauge_curves(rows: Sequence[tuple[float, Sample]]) -> tuple[Curve, ...]:
    """Return a host's curves from rows of container/monitor/gauge_log.py; what is never known is left out."""
    if not rows:
        return ()
    last = rows[-1][1]
    memory, mbit = last.memory.total, last.network.mbit
    found = [
        _curve("CPU", "cores", rows, lambda row: row.cpu.busy, last.cpu.cores),
        _curve(
            "memory",
            "GiB",
            rows,
            lambda row: _scaled(row.memory.used, 2**30),
            memory and memory / 2**30,
        ),
        _curve("network in", "Mbit/s", rows, lambda row: _scaled(row.network.received, 125e3), mbit),
        _curve("network out", "Mbit/s", rows, lambda row: _scaled(row.network.sent, 125e3), mbit),
        _curve("disk read", "MB/s", rows, lambda row: _scaled(row.disk.read, 1e6)),
        _curve("disk write", "MB/s", rows, lambda row: _scaled(row.disk.written, 1e6)),
    ]
    for index in sorted({gpu.index for _, row in rows for gpu in row.gpus}):
        of = f"GPU {index}"
        total = next((g.memory_total for _, row in rows for g in row.gpus if g.index == index), None)
        found += [
            _curve(of, "%", rows, _gpu(index, lambda gpu: gpu.utilization), 100),
            _curve(
                f"{of} memory",
                "GiB",
                rows,
                _gpu(index, lambda gpu: gpu.memory_used, 1024),
                total and total / 1024,
            ),
            _curve(f"{of} power", "W", rows, _gpu(index, lambda gpu: gpu.power)),
            _curve(f"{of} temperature", "°C", rows, _gpu(index, lambda gpu: gpu.temperature)),
            _curve(f"{of} clock", "MHz", rows, _gpu(index, lambda gpu: gpu.clock)),
        ]
    return tuple(curve for curve in found if any(value is not None for _, value in curve.points))


def _curve(
    name: str,
    unit: str,
    rows: Sequence[tuple[float, Sample]],
    value: Callable[[Sample], float | None],
    most: float | None = None,
) -> Curve:
    return Curve(name, unit, tuple((at, value(row)) for at, row in rows), most)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _gpu(
    index: int, gauge: Callable[[GpuGauge], float | None], unit: float = 1.0
) -> Callable[[Sample], float | None]:
    def value(row: Sample) -> float | None:
        found = next((gpu for gpu in row.gpus if gpu.index == index), None)
        return _scaled(gauge(found), unit) if found else None

    return value
