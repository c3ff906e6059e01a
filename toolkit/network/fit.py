"""A model fitted to measured all-reduces: what a message costs, and what a bit costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.network.cost import Wire
from toolkit.network.measured import Point


@dataclass(frozen=True)
class Fit:
    """A ring's all-reduce with the two numbers that come closest to what was measured.

    Args:
        message: seconds that each of the ring's steps costs besides its bytes.
        rate: bits of payload per second.
        points: how many measurements it is made from.
        worst: the largest distance from one of them, as a share of it.
    """

    message: float
    rate: float
    points: int
    worst: float

    @property
    def wire(self) -> Wire:
        return Wire(self.rate, self.message)


def fit_ring(points: Sequence[Point]) -> Fit | None:
    """Return the ring that explains the points best, None where they say nothing about a rate.

    Least squares of a x + b y with x = 2 (n - 1) messages and y = 2 (n - 1) / n of the bits, which is
    a + b · bytes for one number of ranks. Each point counts by its share of error, or the longest one
    would decide alone. Neither number may be negative.
    """
    rows = [
        (2 * (p.ranks - 1) / p.seconds, 16 * (p.ranks - 1) / p.ranks * p.size / p.seconds) for p in points
    ]
    if not rows:
        return None
    xx, yy = sum(x * x for x, _ in rows), sum(y * y for _, y in rows)
    xy, x1, y1 = sum(x * y for x, y in rows), sum(x for x, _ in rows), sum(y for _, y in rows)
    determinant = xx * yy - xy * xy
    # With one size only, both columns say the same: all of the time is the bytes' then.
    message = (x1 * yy - y1 * xy) / determinant if determinant > 1e-9 * xx * yy else 0.0
    per_bit = (y1 - message * xy) / yy
    if message < 0:
        message, per_bit = 0.0, y1 / yy
    if per_bit <= 0:
        return None
    worst = max(abs(message * x + per_bit * y - 1) for x, y in rows)
    return Fit(message, 1 / per_bit, len(points), worst)


def fits(points: Sequence[Point]) -> dict[int, Fit]:
    """Return a fit for each number of ranks that was measured, and one over all of them under 0."""
    groups: dict[int, list[Point]] = {0: list(points)}
    for point in points:
        groups.setdefault(point.ranks, []).append(point)
    made = {ranks: fit_ring(group) for ranks, group in groups.items()}
    return {ranks: fit for ranks, fit in made.items() if fit is not None}
