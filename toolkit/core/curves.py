"""Gauges of a host over a job's time, as curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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


_Row = Mapping[str, Any]


def gauge_curves(rows: Sequence[tuple[float, _Row]]) -> tuple[Curve, ...]:
    """Return a host's curves from rows of toolkit/inside/gauge_log.py; what is never known is left out."""
    if not rows:
        return ()
    last = rows[-1][1]
    cores, memory = last["cpu"]["cores"], last["memory"]["total"]
    mbit = last["network"]["mbit"]
    found = [
        _curve("CPU", "cores", rows, lambda row: row["cpu"]["busy"], cores),
        _curve(
            "memory",
            "GiB",
            rows,
            lambda row: _scaled(row["memory"]["used"], 2**30),
            memory and memory / 2**30,
        ),
        _curve("network in", "Mbit/s", rows, lambda row: _scaled(row["network"]["in"], 125e3), mbit),
        _curve("network out", "Mbit/s", rows, lambda row: _scaled(row["network"]["out"], 125e3), mbit),
        _curve("disk read", "MB/s", rows, lambda row: _scaled(row["disk"]["read"], 1e6)),
        _curve("disk write", "MB/s", rows, lambda row: _scaled(row["disk"]["written"], 1e6)),
    ]
    for index in sorted({gpu["index"] for _, row in rows for gpu in row["gpus"]}):
        of = f"GPU {index}"
        total = next((g["memory_total"] for _, row in rows for g in row["gpus"] if g["index"] == index), None)
        found += [
            _curve(of, "%", rows, _gpu(index, "utilization"), 100),
            _curve(f"{of} memory", "GiB", rows, _gpu(index, "memory_used", 1024), total and total / 1024),
            _curve(f"{of} power", "W", rows, _gpu(index, "power")),
            _curve(f"{of} temperature", "°C", rows, _gpu(index, "temperature")),
            _curve(f"{of} clock", "MHz", rows, _gpu(index, "clock")),
        ]
    return tuple(curve for curve in found if any(value is not None for _, value in curve.points))


def _curve(
    name: str,
    unit: str,
    rows: Sequence[tuple[float, _Row]],
    value: Callable[[_Row], float | None],
    most: float | None = None,
) -> Curve:
    return Curve(name, unit, tuple((at, value(row)) for at, row in rows), most)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _gpu(index: int, name: str, unit: float = 1.0) -> Callable[[_Row], float | None]:
    def value(row: _Row) -> float | None:
        found: _Row = next((gpu for gpu in row["gpus"] if gpu["index"] == index), {})
        return _scaled(found.get(name), unit)

    return value
