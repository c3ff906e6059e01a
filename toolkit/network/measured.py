"""A measured network: every ordered pair of hosts, and all-reduce by size; and its JSON.

`toolkit bench network --json` prints the JSON, and the ranks report it:

    {"hosts": ["gpu1", "gpu2"],
     "pairs": [{"from": "gpu1", "to": "gpu2", "mbit": 941.2, "latency_us": 61.0}, …],
     "allreduce": [{"bytes": 1048576, "ranks": 2, "seconds": 0.0093}, …]}

``mbit`` is payload in millions of bits per second, ``latency_us`` the time in one direction: half of a round
trip. ``bytes`` is one rank's buffer. ``engine`` and ``faults`` are optional; other keys are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.errors import shown
from toolkit.hostsfile.fields import HOST_NAME
from toolkit.protocol.bench import MeasuredAbout
from toolkit.protocol.decode import DecodeError, decode, load_json

# From this size on the cost of bytes exceeds that of messages, so that the link determines the time.
WIRE_BYTES = 1024**2
_MOST = 10**15  # the limit of every measured number; larger ones would only overflow
_FIX = "toolkit bench network --json > FILE  # the file must contain the complete output of this command"


@dataclass(frozen=True)
class Pair:
    """One direction between two hosts: ``rate`` in bit/s of payload, ``latency`` one way in seconds."""

    source: str
    target: str
    rate: float
    latency: float


@dataclass(frozen=True)
class Point:
    """The median all-reduce of ``size`` bytes over ``ranks`` ranks, in seconds of the slowest rank."""

    size: int
    ranks: int
    seconds: float

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in byte/s: size over time.

        As nccl-tests define it: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
        """
        return self.size / self.seconds

    @property
    def busbw(self) -> float:
        """Bus bandwidth in byte/s: ``algbw`` x 2 (n - 1) / n, what each rank's link carries each way."""
        return self.algbw * 2 * (self.ranks - 1) / self.ranks


@dataclass(frozen=True)
class Measured:
    """The result of `toolkit bench network`.

    Args:
        hosts: in the job's order.
        engine: the backend of the all-reduce: ``mpi``, ``gloo`` or ``nccl``.
        faults: descriptions of pairs that could not be measured.
    """

    hosts: tuple[str, ...]
    pairs: tuple[Pair, ...]
    allreduce: tuple[Point, ...] = ()
    engine: str = ""
    faults: tuple[str, ...] = ()

    @property
    def slowest(self) -> Pair | None:
        """The link with the lowest rate, which limits a ring."""
        return min(self.pairs, key=lambda link: link.rate, default=None)

    def wire_share(self, point: Point) -> float | None:
        """Return the share of the slowest link's rate that an all-reduce reached, 1.0 for all of it.

        Ranks of one host share its link, and a ring in host order crosses it once each way, so that a
        host's link carries 2 (n - 1) / n of the bytes for any number of ranks. None for sizes at which the
        cost of messages, or buffers on the way, determine the time.
        """
        slowest = self.slowest
        if slowest is None or not slowest.rate or point.size < WIRE_BYTES:
            return None
        return 8 * point.busbw / slowest.rate

    def verdict(self) -> str:
        """Return one sentence with the slowest link and its cost."""
        slowest = self.slowest
        if slowest is None:
            why = "the job ran on one host, so " if len(self.hosts) == 1 else ""
            return f"{why}toolkit measured no link between hosts"
        rates = sorted(link.rate for link in self.pairs)
        median = rates[len(rates) // 2]
        text = f"the slowest link, from {slowest.source} to {slowest.target}, has {shown_rate(slowest.rate)}"
        if slowest.rate < 0.8 * median:
            times = median / slowest.rate
            text += (
                f"; a large ring all-reduce takes about {times:.1f} times as long as at the median rate of "
                f"{shown_rate(median)}"
            )
        return text

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that ``parse_measured`` reads, with derived values."""
        return {
            "hosts": list(self.hosts),
            "pairs": [
                {"from": k.source, "to": k.target, "mbit": k.rate / 1e6, "latency_us": k.latency * 1e6}
                for k in self.pairs
            ],
            "engine": self.engine,
            "allreduce": [
                {
                    "bytes": p.size,
                    "ranks": p.ranks,
                    "seconds": p.seconds,
                    "algbw": p.algbw,
                    "busbw": p.busbw,
                    "wire_share": self.wire_share(p),
                }
                for p in self.allreduce
            ],
            "faults": list(self.faults),
            "verdict": self.verdict(),
        }


def shown_rate(rate: float) -> str:
    """Return bit/s as text: ``95.6 Mb/s``, ``9.41 Gb/s``."""
    for unit, size in (("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.0f} b/s"


def shown_bytes(size: int) -> str:
    """Return a power-of-two size as text: ``64 KiB``, ``256 MiB``."""
    for unit, one in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size >= one:
            return f"{size / one:g} {unit}"
    return f"{size} B"


def shown_time(seconds: float) -> str:
    """Return a duration as text: ``12 us``, ``1.35 ms``, ``2.79 s``."""
    for unit, one in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= one:
            return f"{seconds / one:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def shown_share(share: float | None) -> str:
    """Return a share as text, empty for None: ``64 %``."""
    return "" if share is None else f"{100 * share:.0f} %"


def parse_measured(text: str, source: str) -> Measured:
    """Parse a file with the JSON of `toolkit bench network`.

    Args:
        source: the file's name, for messages.

    Raises:
        BadInput: lists every problem of the file.
    """
    try:
        data = load_json(text)
    except DecodeError as error:
        raise BadInput(source, (Problem("", f"the file is not valid JSON: {error}"),), _FIX) from error
    if not isinstance(data, dict):
        raise BadInput(
            source, (Problem("", f"the file should contain a mapping, found {shown(data)}"),), _FIX
        )
    reader = _Reader()
    hosts = reader.hosts(data.get("hosts"))
    pairs = tuple(reader.each(data, "pairs", lambda place, row: reader.pair(place, row, hosts)))
    points = tuple(reader.each(data, "allreduce", reader.point))
    # Between the ranks of one slot or host, or if every pair failed, nothing could be measured.
    if not reader.problems and not pairs and not points and len(hosts) > 1 and not data.get("faults"):
        reader.problems.append(
            Problem("", "the file has no measurements: both pairs and allreduce are missing or empty")
        )
    if reader.problems:
        raise BadInput(source, tuple(reader.problems), _FIX)
    try:
        about = decode(MeasuredAbout, data)
    except DecodeError as error:
        raise BadInput(source, (Problem(error.path, error.what),), _FIX) from error
    return Measured(hosts, pairs, points, about.engine, about.faults)


class _Reader:
    """Reader that collects every problem, so that all are reported at once."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def _bad(self, place: str, should: str, value: object) -> None:
        self.problems.append(Problem(place, f"should be {should}, found {shown(value)}"))

    def hosts(self, value: object) -> tuple[str, ...]:
        names = value if isinstance(value, list) else []
        right = [name for name in names if isinstance(name, str) and re.fullmatch(HOST_NAME, name)]
        if not names or len(set(right)) < len(names):
            self._bad("hosts", "a list of different host names", value)
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
            self._bad(f"{place}/to", "a host other than 'from'", ends[1])
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
