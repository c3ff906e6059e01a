"""What was done on which host, from when on and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from toolkit.protocol.decode import DecodeError, decode

_Row = tuple[str, str, float, float]
# In place of a host: the machine that the command runs on.
HERE = "this machine"


@dataclass(frozen=True)
class Span:
    """Some time of a host.

    Args:
        phase: what it was spent with, as a plan names it; or ``connect``.
        begin: seconds, from where all spans of the list count.
        seconds: for how long.
    """

    phase: str
    host: str
    begin: float
    seconds: float

    @property
    def end(self) -> float:
        return self.begin + self.seconds


def from_phase(spans: Iterable[Span], phase: str) -> tuple[Span, ...]:
    """Return the same spans, counted from when this phase began; from the first of all where none is it."""
    rows = tuple(spans)
    zero = min((span.begin for span in rows if span.phase == phase), default=None)
    if zero is None:
        zero = min((span.begin for span in rows), default=0.0)
    return tuple(Span(span.phase, span.host, span.begin - zero, span.seconds) for span in rows)


def spans_json(spans: Iterable[Span]) -> list[list[Any]]:
    """Return rows for a file; ``parse_spans`` reads them."""
    return [[span.phase, span.host, round(span.begin, 3), round(span.seconds, 3)] for span in spans]


def parse_spans(value: object) -> tuple[Span, ...]:
    """Return the spans of such rows; none where they are something else, as another version's may be."""
    try:
        return tuple(Span(*row) for row in decode(tuple[_Row, ...], value))
    except DecodeError:
        return ()
