"""Gauges of a host over a job's time, as curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.protocol.gauges import GpuGauge, Sample


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
