"""Results of measuring jobs, and the file with tuned settings on main."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from toolkit.protocol.decode import Number, Text

Algorithm = Annotated[str, Text(most=40, pattern="[0-9]{1,9}:[0-9]{1,15}")]  # NUMBER:SEGMENT
Bytes = Annotated[int, Number(0)]
Seconds = Annotated[float, Number(0, 1e9)]

# Characters of a result in one line: longer lines of a rank are split at 4096 bytes, prefix included.
_PIECE = 3000


def result_lines(mark: str, text: str) -> list[str]:
    """Return the lines that a rank prints for an ASCII text: ``MARK NUMBER/TOTAL PIECE``."""
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    return [f"{mark} {number}/{len(pieces)} {piece}" for number, piece in enumerate(pieces, 1)]


def result_of(mark: str, lines: Iterable[str]) -> str:
    """Return the last complete text in the output of a job; empty without one."""
    result = ""
    pieces: list[str] = []
    for line in lines:
        if found := re.search(rf"{mark} (\d{{1,9}})/(\d{{1,9}}) (.*)", line):
            number, total = int(found[1]), int(found[2])
            if number == 1:
                pieces = []
            pieces.append(found[3])
            if number == total == len(pieces):
                result = "".join(pieces)
        elif found := re.search(rf"{mark} (\{{.*)", line):
            result = found[1]  # as earlier versions of toolkit printed it
    return result


@dataclass(frozen=True)
class AlgorithmTime:
    """A row of toolkit/container/bench/algorithms.py."""

    algorithm: Algorithm
    bytes: Bytes
    seconds: Seconds


@dataclass(frozen=True)
class MeasuredAbout:
    """The part of a measured network that is no measurement; see ``toolkit.network.measured``."""

    engine: str = ""
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tuned:
    """One tuning; the rows are explained in ``toolkit.network.tuning``."""

    engine: str
    hosts: tuple[tuple[str, str, Annotated[int, Number(0, 4096)]], ...]
    when: str
    env: dict[str, str]
    rules: tuple[tuple[Bytes, Annotated[int, Number(0, 10**9)], Bytes], ...]
    why: tuple[str, ...]
    timings: tuple[tuple[str, Algorithm, Bytes, Seconds], ...]


@dataclass(frozen=True)
class TunedFile:
    """The file; each item is a ``Tuned``, and one that is not valid does not spoil the others."""

    tuned: tuple[object, ...]


@dataclass(frozen=True)
class Steps:
    """A line of toolkit/container/bench/step_time.py; ``gradients`` are bytes by dtype."""

    parameters: Bytes
    gradients: dict[str, Bytes]
    seconds: Annotated[float, Number(1e-9, 1e9)]
    least: Seconds
    most: Seconds
    steps: Bytes
    device: str
