"""What was measured on a network: the JSON that `bench network` prints, and a model fitted to it.

    {"hosts": ["gpu1", "gpu2"],
     "pairs": [{"from": "gpu1", "to": "gpu2", "mbit": 941.2, "latency_us": 61.0}, …],
     "allreduce": [{"bytes": 1048576, "ranks": 2, "seconds": 0.0093}, …]}

``mbit`` is payload in millions of bits per second, ``latency_us`` the way in one direction: half of what a
message takes there and back. ``bytes`` is one rank's buffer. Keys besides these may stand there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.errors import BadInput, Problem
from toolkit.network.cost import Wire
from toolkit.spec.fields import HOST_NAME
from toolkit.spec.words import shown


@dataclass(frozen=True)
class Pair:
    """One direction between two hosts: bits of payload per second, seconds one way."""

    source: str
    target: str
    rate: float
    latency: float


@dataclass(frozen=True)
class Point:
    """One measured all-reduce: bytes of a rank's buffer, number of ranks, seconds."""

    size: int
    ranks: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """Everything in the file; ``pairs`` or ``allreduce`` may be empty, not both."""

    hosts: tuple[str, ...]
    pairs: tuple[Pair, ...]
    allreduce: tuple[Point, ...]


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


def parse_measured(text: str, source: str) -> Measured:
    """Return what such a file says.

    Args:
        source: the file's name, for messages.

    Raises:
        BadInput: names everything that is wrong in it.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(source, (Problem("", f"is not JSON: {error}"),), _FIX) from error
    if not isinstance(data, dict):
        raise BadInput(source, (Problem("", f"should be a mapping, found {shown(data)}"),), _FIX)
    reader = _Reader()
    hosts = reader.hosts(data.get("hosts"))
    pairs = tuple(reader.each(data, "pairs", lambda place, row: reader.pair(place, row, hosts)))
    points = tuple(reader.each(data, "allreduce", reader.point))
    if not reader.problems and not pairs and not points:
        reader.problems.append(Problem("", "holds neither pairs nor allreduce: nothing was measured"))
    if reader.problems:
        raise BadInput(source, tuple(reader.problems), _FIX)
    return Measured(hosts, pairs, points)


_MOST = 10**15  # of anything that is measured here; larger ones would only overflow
_FIX = "give it the JSON that bench network prints, whole"


class _Reader:
    """Collects every problem on the way, so that all are told at once."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def _bad(self, place: str, should: str, value: object) -> None:
        self.problems.append(Problem(place, f"should be {should}, found {shown(value)}"))

    def hosts(self, value: object) -> tuple[str, ...]:
        names = value if isinstance(value, list) else []
        right = [name for name in names if isinstance(name, str) and re.fullmatch(HOST_NAME, name)]
        if not names or len(set(right)) < len(names):
            self._bad("hosts", "a list of different names of hosts", value)
            return ()
        return tuple(right)

    def each(
        self, data: Mapping[str, Any], key: str, read: Callable[[str, Mapping[str, Any]], Any]
    ) -> Iterable[Any]:
        rows = data.get(key, [])
        if not isinstance(rows, list):
            self._bad(key, "a list", rows)
            return
        for index, row in enumerate(rows):
            place = f"{key}/{index}"
            if not isinstance(row, dict):
                self._bad(place, "a mapping", row)
            else:
                yield read(place, row)

    def number(self, place: str, row: Mapping[str, Any], key: str) -> float:
        value = row.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 <= value <= _MOST:
            return float(value)
        self._bad(f"{place}/{key}", "a number from 1e-9 to 1e15", value)
        return 1.0

    def pair(self, place: str, row: Mapping[str, Any], hosts: tuple[str, ...]) -> Pair:
        ends = []
        for key in ("from", "to"):
            name = row.get(key)
            if hosts and name not in hosts:
                self._bad(f"{place}/{key}", f"one of {', '.join(hosts)}", name)
            ends.append(str(name))
        if ends[0] == ends[1]:
            self._bad(f"{place}/to", "another host than from", ends[1])
        latency = row.get("latency_us")
        seconds = 0.0 if latency == 0 else self.number(place, row, "latency_us") / 1e6
        return Pair(ends[0], ends[1], self.number(place, row, "mbit") * 1e6, seconds)

    def point(self, place: str, row: Mapping[str, Any]) -> Point:
        counts = []
        for key, least in (("bytes", 1), ("ranks", 2)):
            value = row.get(key)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
                self._bad(f"{place}/{key}", f"a whole number from {least} to 1e15", value)
                value = least
            counts.append(value)
        return Point(counts[0], counts[1], self.number(place, row, "seconds"))
