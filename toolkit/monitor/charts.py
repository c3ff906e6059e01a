"""Geometry of curves over time and of bars for each host, which ``charts.html.j2`` draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.core.report import Span
from toolkit.html.page import COLOURS
from toolkit.monitor.job_report import Curve
from toolkit.network.units import seconds_text

_WIDTH, _LEFT, _RIGHT, _TOP, _FOOT = 520, 44, 8, 8, 22


@dataclass(frozen=True)
class Line:
    """A curve with its name and color; ``colour`` is an index into the colors of the page."""

    curve: Curve
    name: str
    colour: int


@dataclass(frozen=True)
class Piece:
    """A part of a curve without unknown values; a single point is drawn as a dot."""

    color: int
    name: str
    points: Sequence[tuple[str, str]]

    @property
    def path(self) -> str:
        """Points for an SVG polyline."""
        return " ".join(f"{x},{y}" for x, y in self.points)


@dataclass(frozen=True)
class Chart:
    """Curves over the same time.

    Args:
        label: description for screen readers.
        grid: y of each line, y of its text, and the text.
        moments: x, anchor and text.
        marks: x, and the event.
        legend: index of a color, and the name of its curve.
    """

    label: str
    height: int
    grid: Sequence[tuple[str, str, str]]
    moments: Sequence[tuple[str, str, str]]
    marks: Sequence[tuple[str, str]]
    pieces: Sequence[Piece]
    legend: Sequence[tuple[int, str]]
    width: int = _WIDTH
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT
    top: int = _TOP

    @property
    def low(self) -> int:
        """The y of the value 0."""
        return self.height - _FOOT


def chart(
    lines: Sequence[Line],
    label: str,
    height: int = 150,
    marks: Sequence[tuple[float, str]] = (),
    window: tuple[float, float] | None = None,
    scale: float | None = None,
) -> Chart | None:
    """Return curves over the same time; None if they contain no value.

    Args:
        label: description for screen readers.
        marks: moments that get a vertical line, with the event.
        window: the first and the last second (default: the range of the curves).
        scale: the value at the top (default: a round value above all values).
    """
    points = [point for line in lines for point in line.curve.points if point[1] is not None]
    if not points:
        return None
    begin, end = window or (min(at for at, _ in points), max(at for at, _ in points))
    span = max(end - begin, 1e-9)
    steps = ticks(scale or max(line.curve.top for line in lines))
    top = scale or steps[-1]
    low = height - _FOOT

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, (at - begin) / span))

    def y(value: float) -> float:
        return low - (low - _TOP) * min(1.0, value / top)

    def anchor(number: int, at: float) -> str:
        return "start" if number == 0 else "end" if x(at) > _WIDTH - 40 else "middle"

    return Chart(
        label,
        height,
        [(f"{y(value):.1f}", f"{y(value) + 4:.1f}", f"{value:g}") for value in steps if value <= top],
        [
            (f"{x(at):.1f}", anchor(number, at), clock_text(at))
            for number, at in enumerate(moments(begin, end))
        ],
        [(f"{x(at):.1f}", what) for at, what in marks if begin <= at <= end],
        [
            Piece(line.colour, line.name, [(f"{x(at):.1f}", f"{y(value):.1f}") for at, value in piece])
            for line in lines
            for piece in _pieces(line.curve)
        ],
        [(line.colour, line.name) for line in lines],
    )


@dataclass(frozen=True)
class Bars:
    """Spans as bars, a row for each host that has any, over one axis of time.

    Args:
        label: description for screen readers.
        rows: host, and begin and length in percent, index of the color and title of each of its bars.
        moments: position in percent, and text.
        legend: index of a color, and its phase.
    """

    label: str
    rows: Sequence[tuple[str, Sequence[tuple[str, str, int, str]]]]
    moments: Sequence[tuple[str, str]]
    legend: Sequence[tuple[int, str]]


def bars(spans: Sequence[Span], hosts: Sequence[str], colours: Sequence[str], label: str) -> Bars | None:
    """Return the spans as bars; None if there are none.

    Args:
        colours: phases; the position of a phase selects its color.
    """
    spans = [span for span in spans if span.phase in colours]
    if not spans:
        return None
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    whole = max(end - begin, 1e-9)
    color = {phase: number % COLOURS for number, phase in enumerate(colours)}

    def percent(seconds: float) -> str:
        return f"{100 * seconds / whole:.2f}"

    def bar(span: Span) -> tuple[str, str, int, str]:
        title = f"{span.host}: {span.phase}, {seconds_text(span.seconds)}"
        return percent(span.begin - begin), percent(span.seconds), color[span.phase], title

    rows = [(host, [bar(span) for span in spans if span.host == host]) for host in hosts]
    return Bars(
        label,
        [(host, own) for host, own in rows if own],
        [(percent(at - begin), clock_text(at - begin)) for at in moments(begin, end)],
        [(color[phase], phase) for phase in colours if any(span.phase == phase for span in spans)],
    )


def ticks(top: float, most: int = 4) -> list[float]:
    """Return round values from 0 to the first that is not below ``top``.

    >>> ticks(7.3), ticks(0.21)
    ([0.0, 2.0, 4.0, 6.0, 8.0], [0.0, 0.1, 0.2, 0.3])
    """
    if not top > 0 or not math.isfinite(top):
        return [0.0, 1.0]
    rough = top / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    count = math.ceil(top / step * (1 - 1e-9))
    return [float(f"{number * step:.6g}") for number in range(max(1, count) + 1)]


def moments(begin: float, end: float, most: int = 5) -> list[float]:
    """Return some evenly spaced moments, the first and the last among them."""
    return [begin + (end - begin) * number / (most - 1) for number in range(most)]


def clock_text(seconds: float) -> str:
    """Return a moment of a job: ``4.2 s``, ``-3 s``, ``2:05``, ``1:02:05``.

    >>> [clock_text(x) for x in (4.234, -3, 125, 3725.4)]
    ['4.2 s', '-3 s', '2:05', '1:02:05']
    """
    if abs(seconds) < 60:
        return f"{seconds:.1f}".removesuffix(".0").replace("-0", "0", 1 if abs(seconds) < 0.05 else 0) + " s"
    sign, whole = ("-", -seconds) if seconds < 0 else ("", seconds)
    hours, rest = divmod(round(whole), 3600)
    minutes, left = divmod(rest, 60)
    return f"{sign}{hours}:{minutes:02}:{left:02}" if hours else f"{sign}{minutes}:{left:02}"


def _pieces(curve: Curve) -> list[list[tuple[float, float]]]:
    """Split a curve at its unknown values."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for at, value in curve.points:
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((at, value))
    return [piece for piece in pieces if piece]
