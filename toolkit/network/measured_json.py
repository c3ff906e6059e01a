"""A measured network from JSON, as `toolkit bench network --json` prints it and the ranks report it.

    {"hosts": ["gpu1", "gpu2"],
     "pairs": [{"from": "gpu1", "to": "gpu2", "mbit": 941.2, "latency_us": 61.0}, …],
     "allreduce": [{"bytes": 1048576, "ranks": 2, "seconds": 0.0093}, …]}

``mbit`` is payload in millions of bits per second, ``latency_us`` the way in one direction: half of what a
message takes there and back. ``bytes`` is one rank's buffer. ``engine`` and ``faults`` may stand there; keys
besides these are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.errors import shown
from toolkit.hostsfile.fields import HOST_NAME
from toolkit.network.measured import Measured, Pair, Point
from toolkit.protocol.bench import MeasuredAbout
from toolkit.protocol.decode import DecodeError, decode, load_json


def parse_measured(text: str, source: str) -> Measured:
    """Return what such a file says.

    Args:
        source: the file's name, for messages.

    Raises:
        BadInput: names everything that is wrong in it.
    """
    try:
        data = load_json(text)
    except DecodeError as error:
        raise BadInput(source, (Problem("", f"is not JSON that toolkit reads: {error}"),), _FIX) from error
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
    try:
        about = decode(MeasuredAbout, data)
    except DecodeError as error:
        raise BadInput(source, (Problem(error.path, error.what),), _FIX) from error
    return Measured(hosts, pairs, points, about.engine, about.faults)


_MOST = 10**15  # of anything that is measured here; larger ones would only overflow
_FIX = "give it the JSON that toolkit bench network --json prints, whole"


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
