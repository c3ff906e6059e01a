"""Measured scaling of a training script: speed-up, efficiency and verdict, as JSON, table and HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.core.text import counted
from toolkit.errors import BadInput, Problem
from toolkit.html.page import Table, single_page
from toolkit.network.units import seconds_text

# What a step is: as many samples for each rank (the more ranks, the more samples), or in all.
PER_RANK, IN_ALL = "rank", "all"
BATCHES = (PER_RANK, IN_ALL)
# Below this more hosts are worth little, below one they are worth nothing.
_GOOD, _FAIR = 0.9, 0.6
_WIDTH, _HEIGHT, _LEFT, _EDGE = 640, 340, 48, 36


@dataclass(frozen=True)
class Point:
    """What so many hosts did.

    Args:
        steps_per_s: of all ranks, which go in step with each other.
        seconds: how long it was measured.
        steps: how many were made in that time.
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
    """Points by number of hosts, the first of which is what the others are held against.

    Args:
        batch: one of ``BATCHES``.
        predicted: efficiency by number of hosts, as `toolkit predict` has it; empty for none.
        faults: numbers of hosts that were not measured, and why.
    """

    points: tuple[Point, ...]
    batch: str = PER_RANK
    predicted: tuple[tuple[int, float], ...] = ()
    faults: tuple[str, ...] = ()

    def speedup(self, point: Point) -> float:
        """Return how much more work is done in the same time than at the first point."""
        first = self.points[0]
        more = point.ranks / first.ranks if self.batch == PER_RANK else 1.0
        return more * point.steps_per_s / first.steps_per_s

    def efficiency(self, point: Point) -> float:
        """Return the speed-up as a share of what so many more ranks could give at best."""
        return self.speedup(point) * self.points[0].ranks / point.ranks

    def expected(self, point: Point) -> float | None:
        """Return the efficiency that was predicted, None where none was."""
        return dict(self.predicted).get(point.hosts)

    @property
    def verdict(self) -> str:
        """What it comes to, in one line."""
        if not self.points:
            return "nothing was measured"
        first, last = self.points[0], self.points[-1]
        if first is last:
            return f"{counted(first.hosts, 'host')}: {first.steps_per_s:.3g} steps/s"
        gain, share = self.speedup(last), self.efficiency(last)
        many = counted(last.hosts, "host")
        what = f"{many} do {gain:.2f} times the work of {first.hosts}, efficiency {share:.0%}"
        if (hoped := self.expected(last)) is not None:
            what += f", {hoped:.0%} predicted"
        best = max(self.points, key=self.speedup)
        if gain < 1:
            return f"{what}: slower than {first.hosts}; toolkit bench network, toolkit why"
        if best is not last:
            return f"{what}: {counted(best.hosts, 'host')} do more, {self.speedup(best):.2f} times"
        if share < _FAIR:
            return f"{what}: poor; toolkit bench network tells what the links give"
        return what if share >= _GOOD else f"{what}: fair"

    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the head and the cells of a table for people."""
        hoped = ("predicted",) if self.predicted else ()
        head = ("hosts", "ranks", "steps/s", "step", "speed-up", "efficiency", *hoped)
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
        """Return all of it for programs."""
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
    """Return efficiencies by number of hosts of what `toolkit predict --json` has printed.

    Raises:
        BadInput: it is something else, or was made without a step time.
    """
    rows = value.get("rows") if isinstance(value, Mapping) else None
    if not isinstance(rows, Sequence) or not rows:
        raise BadInput(source, (Problem("rows", "is not what toolkit predict --json prints"),))
    try:
        return tuple((int(row["hosts"]), float(row["efficiency"])) for row in rows)
    except (KeyError, TypeError, ValueError):
        what = "have no efficiency; toolkit predict with --step-time or --probe gives one"
        raise BadInput(source, (Problem("rows", what),)) from None


def parse_scaling(value: Any, source: str) -> Scaling:
    """Return what `toolkit bench scaling --json` has printed.

    Raises:
        BadInput: it is something else.
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
        what = "is not what toolkit bench scaling --json prints"
        raise BadInput(source, (Problem("", what),)) from None


def _one_of(batch: str) -> str:
    if batch not in BATCHES:
        raise ValueError(batch)
    return batch


def scaling_html(scaling: Scaling, title: str, when: str) -> str:
    """Return the page.

    Args:
        title: what was run, and where.
        when: date and time of the measurement, as it is to be shown.
    """
    return single_page("scaling", title, when, scaling=scaling_values(scaling))


def scaling_values(scaling: Scaling) -> dict[str, Any]:
    """Return what ``scaling.html.j2`` names, for other pages as well."""
    return {
        "verdict": scaling.verdict,
        "curve": _curve(scaling) if scaling.points else None,
        "table": Table(*scaling.rows(), "speed-up by number of hosts", text=()),
        "faults": scaling.faults,
    }


def _curve(scaling: Scaling) -> dict[str, Any]:
    """Speed-up over the number of ranks: measured, predicted, and in proportion."""
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
        what = f"{point.hosts} hosts, {point.ranks} ranks: {gain:.2f} times, {scaling.efficiency(point):.0%}"
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
