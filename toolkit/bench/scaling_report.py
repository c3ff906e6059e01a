"""Measured scaling of a training script: speedup, efficiency and summary, as JSON, table and HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.core.printable import counted
from toolkit.errors import BadInput, Problem
from toolkit.html.page import Table, single_page
from toolkit.network.units import seconds_text

# The batch size of a step counts for each rank (more ranks, more samples) or for all ranks together.
PER_RANK, IN_ALL = "rank", "all"
BATCHES = (PER_RANK, IN_ALL)
# An efficiency below _GOOD is called "fair", and below _FAIR "poor".
_GOOD, _FAIR = 0.9, 0.6
_WIDTH, _HEIGHT, _LEFT, _EDGE = 640, 340, 48, 36


@dataclass(frozen=True)
class Point:
    """Measurement on one number of hosts.

    Args:
        steps_per_s: throughput of all ranks, which are synchronous.
        seconds: duration of the measurement.
        steps: number of steps in that time.
    """

    hosts: int
    ranks: int
    steps_per_s: float
    seconds: float
    steps: int

    @property
    def step(self) -> float:
        """Seconds of one step."""
        return 1 / self.steps_per_s


@dataclass(frozen=True)
class Scaling:
    """Points by number of hosts; the first one is the baseline.

    Args:
        batch: one of ``BATCHES``.
        predicted: efficiency by number of hosts, all relative to the same number of hosts (`toolkit predict`:
            one host); empty without a prediction.
        faults: numbers of hosts that were not measured, each with the reason.
    """

    points: tuple[Point, ...]
    batch: str = PER_RANK
    predicted: tuple[tuple[int, float], ...] = ()
    faults: tuple[str, ...] = ()

    def speedup(self, point: Point) -> float:
        """Return the ratio of work per time to that of the first point."""
        first = self.points[0]
        more = point.ranks / first.ranks if self.batch == PER_RANK else 1.0
        return more * point.steps_per_s / first.steps_per_s

    def efficiency(self, point: Point) -> float:
        """Return the speedup as a share of the ideal speedup by ranks."""
        return self.speedup(point) * self.points[0].ranks / point.ranks

    def expected(self, point: Point) -> float | None:
        """Return the predicted efficiency relative to the first point, None without a prediction of both."""
        shares = dict(self.predicted)
        first, share = shares.get(self.points[0].hosts), shares.get(point.hosts)
        return share / first if first and share is not None else None

    @property
    def verdict(self) -> str:
        """One line that summarizes the measurement."""
        if not self.points:
            return "no job of the benchmark returned a result"
        first, last = self.points[0], self.points[-1]
        if first is last:
            return f"{counted(first.hosts, 'host')}: {first.steps_per_s:.3g} steps/s"
        gain, share = self.speedup(last), self.efficiency(last)
        many = counted(last.hosts, "host")
        few = counted(first.hosts, "host")
        hoped = self.expected(last)
        predicted = "" if hoped is None else f", predicted {hoped:.0%}"
        what = f"{many} have {gain:.2f} times the throughput of {few} (efficiency {share:.0%}{predicted})"
        best = max(self.points, key=self.speedup)
        if gain < 1:
            slower = f"{many} are slower than {few}"
            return f"{what}: {slower}; measure the links with toolkit bench network"
        if best is not last:
            gain = self.speedup(best)
            more = f"{counted(best.hosts, 'host')} have {gain:.2f} times the throughput of {few}"
            return f"{what}: {more}"
        if share < _FAIR:
            return f"{what}: the efficiency is poor; measure the links with toolkit bench network"
        return what if share >= _GOOD else f"{what}: the efficiency is fair"

    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the head and the cells of the printed table."""
        hoped = ("predicted",) if self.predicted else ()
        head = ("hosts", "ranks", "steps/s", "step", "speedup", "efficiency", *hoped)
        rows = []
        for point in self.points:
            share = self.expected(point)
            cells = (
                str(point.hosts),
                str(point.ranks),
                f"{point.steps_per_s:.3g}",
                seconds_text(point.step),
                f"{self.speedup(point):.2f}",
                f"{self.efficiency(point):.0%}",
            )
            rows.append((*cells, *(("-" if share is None else f"{share:.0%}",) if hoped else ())))
        return head, rows

    def as_json(self) -> dict[str, Any]:
        """Return the measurement as JSON values."""
        rows = [
            {
                **asdict(point),
                "step_s": point.step,
                "speedup": self.speedup(point),
                "efficiency": self.efficiency(point),
                "predicted_efficiency": self.expected(point),
            }
            for point in self.points
        ]
        return {"verdict": self.verdict, "batch": self.batch, "rows": rows, "faults": list(self.faults)}


def parse_prediction(value: Any, source: str) -> tuple[tuple[int, float], ...]:
    """Return efficiencies by number of hosts from the output of `toolkit predict --json`.

    Raises:
        BadInput: the value is not such an output, or the prediction had no step time.
    """
    rows = value.get("rows") if isinstance(value, Mapping) else None
    if not isinstance(rows, Sequence) or not rows:
        raise BadInput(
            source, (Problem("rows", "should be the list of rows from the output of toolkit predict --json"),)
        )
    try:
        return tuple((int(row["hosts"]), float(row["efficiency"])) for row in rows)
    except (KeyError, TypeError, ValueError):
        what = "the rows do not contain the efficiency; run toolkit predict with --step-time or --probe"
        raise BadInput(source, (Problem("rows", what),)) from None


def parse_scaling(value: Any, source: str) -> Scaling:
    """Parse the output of `toolkit bench scaling --json`.

    Raises:
        BadInput: the value is not such an output.
    """
    names = ("hosts", "ranks", "steps_per_s", "seconds", "steps")
    try:
        points = tuple(Point(*(row[name] for name in names)) for row in value["rows"])
        hoped = [(row["hosts"], row["predicted_efficiency"]) for row in value["rows"]]
        predicted = tuple((int(hosts), float(share)) for hosts, share in hoped if share is not None)
        if not all(0 < point.steps_per_s < float("inf") and point.ranks > 0 for point in points):
            raise ValueError
        return Scaling(points, _one_of(value["batch"]), predicted, tuple(map(str, value["faults"])))
    except (KeyError, TypeError, ValueError):
        what = "the input is not the output of toolkit bench scaling --json"
        raise BadInput(source, (Problem("", what),)) from None


def _one_of(batch: str) -> str:
    if batch not in BATCHES:
        raise ValueError(batch)
    return batch


def scaling_html(scaling: Scaling, title: str, when: str) -> str:
    """Return the page.

    Args:
        title: script and cluster of the measurement.
        when: date and time of the measurement, as text.
    """
    return single_page("scaling", title, when, scaling=scaling_values(scaling))


def scaling_values(scaling: Scaling) -> dict[str, Any]:
    """Return the variables of ``scaling.html.j2``, also for other pages."""
    return {
        "verdict": scaling.verdict,
        "curve": _curve(scaling) if scaling.points else None,
        "table": Table(*scaling.rows(), "speedup by number of hosts", text=()),
        "faults": scaling.faults,
    }


def _curve(scaling: Scaling) -> dict[str, Any]:
    """Return speedup over the number of ranks: measured, predicted, and ideal."""
    first = scaling.points[0]
    most = max(point.ranks for point in scaling.points) / first.ranks
    top = max(most, *(scaling.speedup(point) for point in scaling.points)) * 1.05

    def x(ratio: float) -> str:
        return f"{_LEFT + (_WIDTH - _LEFT - 16) * (ratio / most):.1f}"

    def y(speedup: float, below: float = 0) -> str:
        return f"{_HEIGHT - _EDGE - (_HEIGHT - _EDGE - 12) * (speedup / top) + below:.1f}"

    def line(points: list[tuple[float, float]]) -> str:
        return " ".join(f"{x(a)},{y(b)}" for a, b in points)

    ratios = [point.ranks / first.ranks for point in scaling.points]
    measured = [(ratio, scaling.speedup(point)) for ratio, point in zip(ratios, scaling.points, strict=True)]
    hoped = [
        (ratio, share * ratio)
        for ratio, point in zip(ratios, scaling.points, strict=True)
        if (share := scaling.expected(point)) is not None
    ]
    points = []
    for (ratio, gain), point in zip(measured, scaling.points, strict=True):
        size = f"{counted(point.hosts, 'host')}, {counted(point.ranks, 'rank')}"
        what = f"{size}: {gain:.2f} times, {scaling.efficiency(point):.0%}"
        points.append((x(ratio), y(gain), what, point.ranks))
    every = 1 if top < 12 else max(1, int(top) // 6)
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "proportion": line([(0.0, 0.0), (most, most)]),
        "predicted": line(hoped),
        "measured": line(measured),
        "points": points,
        "ticks": [(y(tick, 4), tick) for tick in range(0, int(top) + 1, every)],
    }
