"""Results of measuring jobs, and the file with tuned settings on main."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from toolkit.protocol.decode import Number, Text

Algorithm = Annotated[str, Text(most=40, pattern="[0-9]{1,9}:[0-9]{1,15}")]  # NUMBER:SEGMENT
Bytes = Annotated[int, Number(0)]
Seconds = Annotated[float, Number(0, 1e9)]


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
    tuned: tuple[Tuned, ...]


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
