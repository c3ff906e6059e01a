"""Curves over time as SVG, and times of hosts as bars."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolkit.core.report import Span
from toolkit.html.page import COLOURS
from toolkit.monitor.job_report import Curve
from toolkit.network.units import seconds_text

_WIDTH, _LEFT, _RIGHT, _TOP, _FOOT = 520, 44, 8, 8, 22


@dataclass(frozen=True)
class Line:
    """A curve as it is to be drawn; ``colour`` is the number of one of the page's."""

    curve: Curve
    name: str
    colour: int


def chart(
    lines: Sequence[Line],
    label: str,
    height: int = 150,
    marks: Sequence[tuple[float, str]] = (),
    window: tuple[float, float] | None = None,
    scale: float | None = None,
) -> str:
    """Return curves over the same time; empty where there is no value at all.

    Args:
        label: what they show, for those who hear the page.
        marks: moments that are marked by an upright line, with what happened.
        window: the first and the last second; else as far as the curves go.
        scale: the value at the top; else a round one above all values.
    """
    points = [point for line in lines for point in line.curve.points if point[1] is not None]
    if not points:
        return ""
    begin, end = window or (min(at for at, _ in points), max(at for at, _ in points))
    span = max(end - begin, 1e-9)
    steps = ticks(scale or max(line.curve.top for line in lines))
    top = scale or steps[-1]
    low = height - _FOOT

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, (at - begin) / span))

    def y(value: float) -> float:
        return low - (low - _TOP) * min(1.0, value / top)

    parts = []
    for value in steps:
        if value > top:
            continue
        parts.append(
            f"<line x1={_LEFT} x2={_WIDTH - _RIGHT} y1={y(value):.1f} y2={y(value):.1f}"
            " stroke='var(--line)'/>"
            f"<text x={_LEFT - 6} y={y(value) + 4:.1f} text-anchor=end>{value:g}</text>"
        )
    for number, at in enumerate(moments(begin, end)):
        anchor = "start" if number == 0 else "end" if x(at) > _WIDTH - 40 else "middle"
        parts.append(f"<text x={x(at):.1f} y={height - 6} text-anchor={anchor}>{clock_text(at)}</text>")
    for at, what in marks:
        if begin <= at <= end:
            parts.append(
                f"<line x1={x(at):.1f} x2={x(at):.1f} y1={_TOP} y2={low} stroke='var(--bad)'"
                f" stroke-dasharray='4 3'><title>{html.escape(what)}</title></line>"
            )
    for line in lines:
        for piece in _pieces(line.curve):
            path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in piece)
            look = f"stroke='var(--c{line.colour})' stroke-width=1.8 fill=none stroke-linejoin=round"
            title = f"<title>{html.escape(line.name)}</title>"
            if len(piece) == 1:
                at, value = piece[0]
                dot = f"cx={x(at):.1f} cy={y(value):.1f} r=2.5 fill='var(--c{line.colour})'"
                parts.append(f"<circle {dot}>{title}</circle>")
            else:
                parts.append(f"<polyline points='{path}' {look}>{title}</polyline>")
    inner = "".join(parts)
    return f"<svg viewBox='0 0 {_WIDTH} {height}' role=img aria-label='{html.escape(label)}'>{inner}</svg>"


def legend(names: Iterable[tuple[int, str]]) -> str:
    """Return which colour is what."""
    rows = "".join(
        f"<li><i style='background:var(--c{colour})'></i>{html.escape(name)}" for colour, name in names
    )
    return f"<ul class=legend>{rows}</ul>"


def bars(spans: Sequence[Span], hosts: Sequence[str], colours: Sequence[str], label: str) -> str:
    """Return the spans as bars, a row for each host that has any, over one axis of time.

    Args:
        colours: phases, each in the colour of its place.
    """
    spans = [span for span in spans if span.phase in colours]
    if not spans:
        return ""
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    whole = max(end - begin, 1e-9)
    rows = []
    for host in hosts:
        own = [span for span in spans if span.host == host]
        pieces = "".join(
            f"<i style='left:{100 * (span.begin - begin) / whole:.2f}%;"
            f"width:{100 * span.seconds / whole:.2f}%;"
            f"background:var(--c{colours.index(span.phase) % COLOURS})'"
            f" title='{html.escape(f'{host}: {span.phase}, {seconds_text(span.seconds)}')}'></i>"
            for span in own
        )
        if own:
            name = html.escape(host)
            rows.append(
                f"<div class=row><span title='{name}'>{name}</span><div class=track>{pieces}</div></div>"
            )
    marks = "".join(
        f"<i style='left:{100 * (at - begin) / whole:.2f}%'>{clock_text(at - begin)}</i>"
        for at in moments(begin, end)
    )
    axis = f"<div class=row><span></span><div class=axis>{marks}</div></div>"
    seen = [phase for phase in colours if any(span.phase == phase for span in spans)]
    key = legend((colours.index(phase) % COLOURS, phase) for phase in seen)
    return f"<div role=img aria-label='{html.escape(label)}'>{''.join(rows)}{axis}</div>{key}"


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
    """A curve without the moments at which nothing was known."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for at, value in curve.points:
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((at, value))
    return [piece for piece in pieces if piece]
