"""Data of a job's report: placement, duration of each phase, throughput, failures and gauges.

Gauges of the hosts are curves over time. All times are seconds since the start of the job's supervisor, by
the clock of the main container; earlier times are negative.
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
        points: seconds since the job's start, and the value; None for an unknown value.
        most: upper limit of the value, for the scale; None if it is unknown.
    """

    name: str
    unit: str
    points: tuple[tuple[float, float | None], ...]
    most: float | None = None

    @property
    def top(self) -> float:
        """The largest value, 0 without a value."""
        return max((value for _, value in self.points if value is not None), default=0.0)


@dataclass(frozen=True)
class RankReport:
    """Times and result of a rank in its last attempt; None for an event that has not happened or is unknown.

    Args:
        starts: start of its process in each attempt that it took part in.
        first_output, first_step: time of its first line and of its first step, accurate to 2 s.
        how: exit code, signal or "out of memory" in words; empty while it runs and after success.
        last: its last lines, if it failed.
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
        end: None while the attempt runs.
        reason: why the attempt ended.
        host: the host that caused the end; empty without one.
    """

    begin: float
    end: float | None
    hosts: tuple[str, ...]
    reason: str
    host: str = ""


@dataclass(frozen=True)
class HostReport:
    """A host of the job: curves of its gauges during the job, and versions of its software."""

    name: str
    curves: tuple[Curve, ...]
    versions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class JobReport:
    """Contents of a job's report.

    Args:
        queried: time of the query, since the job's start.
        preparation: spans of `run`, before and during the start.
        up: spans of the last `up` that changed something, counted from its own start. ``up_before`` is the
            time from its record to the job's start in seconds, None without a record.
        throughput: steps per second, and samples per second, that rank 0 prints.
        steps: the number of the reached step.
        silent: hosts that did not report, each with the reason.
        network: job and text of the newest measurement of the network; both empty without one.
        last: the last moment, since the job's start, at which a host or rank is known to have worked.
    """

    cluster: str
    status: JobStatus
    queried: float
    preparation: tuple[Span, ...]
    up: tuple[Span, ...]
    up_before: float | None
    attempts: tuple[Attempt, ...]
    hosts: tuple[HostReport, ...]
    ranks: tuple[RankReport, ...]
    throughput: tuple[Curve, ...]
    steps: Curve | None
    silent: tuple[tuple[str, str], ...] = ()
    network: tuple[str, str] = ("", "")
    last: float = 0.0

    def __repr__(self) -> str:
        return f"JobReport({self.status.id!r}, {self.status.state!r}, {self.seconds:.1f} s)"

    @property
    def seconds(self) -> float:
        """Duration of the job, until now if it runs; until its last known moment if its end is not known."""
        if self.status.ended is not None:
            return self.status.ended - self.status.started
        return self.last if self.status.final else self.queried

    @property
    def first_step(self) -> float | None:
        """Time from the start of `run` to the first step of any rank; None without a step."""
        found = [rank.first_step for rank in self.ranks if rank.first_step is not None]
        began = min((span.begin for span in self.preparation), default=0.0)
        return min(found) - began if found else None

    def typical(self, name: str) -> float | None:
        """Return the median of a throughput over the job, without its first tenth; None without a value."""
        for curve in self.throughput:
            if curve.name == name and (values := [value for _, value in curve.points if value is not None]):
                return median(values[len(values) // 10 :])
        return None

    def mean(self, name: str) -> float | None:
        """Return the mean of a gauge over all hosts and times; None if no host has the gauge."""
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
        """Return the report as JSON values."""
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
    accounts: Mapping[str, Account],
    silent: Mapping[str, str],
    answered: Mapping[str, float],
) -> JobReport:
    """Return the report of a job.

    Args:
        status: status of the job, also if each host has a part of the job.
        accounts: report of job_facts.py on each host: main first, or the job's first host if each host has a
            part.
        silent: hosts that did not report, each with the reason.
        answered: time of each answer, in seconds since the epoch by the clock of your machine. The clocks of
            the hosts differ, and reported times are corrected by the difference.
    """
    first = next(iter(accounts))
    own = accounts[first]
    ahead = {host: account.clock - answered[host] for host, account in accounts.items()}

    def since(host: str, when: float | None) -> float | None:
        """Convert a time of a host's clock to seconds since the job's start."""
        return None if when is None else when - ahead[host] + ahead[first] - status.started

    ranks = sorted(
        (_rank(host, rank, since) for host, account in accounts.items() for rank in account.ranks),
        key=lambda rank: rank.rank,
    )
    source = next((host for host, one in accounts.items() if any(r.rank == 0 for r in one.ranks)), first)
    rows = [(since(source, row[0]) or 0.0, *row[1:]) for row in accounts[source].throughput]
    attempts = _attempts(own.status.restarts if own.status else None, status)
    gauges = {
        host: [(since(host, row.at) or 0.0, row) for row in account.gauges]
        for host, account in accounts.items()
    }
    moments = [
        *(attempt.begin for attempt in attempts),
        *(at for rank in ranks for at in (*rank.starts, rank.first_output, rank.first_step, rank.ended)),
        *(at for at, *_ in rows),
        *(at for found in gauges.values() for at, _ in found),
    ]
    up = own.up or Phases()
    network = next((one.network for one in accounts.values() if one.network.job), own.network)
    return JobReport(
        cluster,
        status,
        own.clock - status.started,
        parse_spans(own.preparation.spans if own.preparation else None),
        parse_spans(up.spans),
        status.started - up.at if up.at else None,
        attempts,
        tuple(
            HostReport(host, gauge_curves(gauges[host]), tuple(account.versions.items()))
            for host, account in accounts.items()
            if account.ranks or account.gauges
        ),
        tuple(ranks),
        _throughput(rows),
        Curve("step", "", tuple((at, step) for at, step, *_ in rows)) if rows else None,
        tuple(silent.items()),
        (network.job, network.text),
        max(at for at in moments if at is not None),
    )


def _rank(host: str, account: RankAccount, since: Callable[[str, float | None], float | None]) -> RankReport:
    code = account.exit_code
    how = ""
    if account.oom:
        how = "killed by the out-of-memory killer"
    elif account.signal:
        how = f"killed by signal {account.signal}"
    elif code:
        how = f"exit code {code}"
    return RankReport(
        account.rank,
        host,
        tuple(at for start in account.starts if (at := since(host, start)) is not None),
        since(host, account.first_output),
        since(host, account.first_step),
        since(host, account.ended),
        code,
        how,
        account.last,
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


def _throughput(rows: Sequence[tuple[Any, ...]]) -> tuple[Curve, ...]:
    curves = []
    for name, column in (("steps/s", 2), ("samples/s", 3)):
        points = tuple((row[0], row[column]) for row in rows)
        if any(value is not None for _, value in points):
            curves.append(Curve(name, "", points))
    return tuple(curves)


def gauge_curves(rows: Sequence[tuple[float, Sample]]) -> tuple[Curve, ...]:
    """Return a host's curves from rows of container/monitor/gauge_log.py; unknown curves are left out."""
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
