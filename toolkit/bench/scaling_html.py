"""A measured scaling as one HTML file that needs nothing else: the curve, the ideal, what was predicted."""

from __future__ import annotations

import html

from toolkit.bench.scaling_fit import Scaling
from toolkit.html.page import page, table

_WIDTH, _HEIGHT, _LEFT, _EDGE = 640, 340, 48, 36


def scaling_html(scaling: Scaling, title: str, when: str) -> str:
    """Return the page.

    Args:
        title: what was run, and where.
        when: date and time of the measurement, as it is to be shown.
    """
    return page(title, when, scaling_parts(scaling))


def scaling_parts(scaling: Scaling) -> list[str]:
    """Return what such a page says, for other pages as well."""
    faults = "".join(f"<li>{html.escape(fault)}</li>" for fault in scaling.faults)
    return [
        f"<p class=verdict>{html.escape(scaling.verdict)}</p>",
        _curve(scaling) if scaling.points else "",
        table(*scaling.rows(), "speed-up by number of hosts", text=()) if scaling.points else "",
        f"<h3>Not measured</h3><ul>{faults}</ul>" if faults else "",
    ]


def _curve(scaling: Scaling) -> str:
    """Speed-up over the number of ranks: measured, predicted, and in proportion."""
    first = scaling.points[0]
    most = max(point.ranks for point in scaling.points) / first.ranks
    top = max(most, *(scaling.speedup(point) for point in scaling.points)) * 1.05

    def x(ratio: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 16) * (ratio / most)

    def y(speedup: float) -> float:
        return _HEIGHT - _EDGE - (_HEIGHT - _EDGE - 12) * (speedup / top)

    def line(points: list[tuple[float, float]], look: str) -> str:
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        return f"<polyline points='{path}' fill=none {look} />"

    ratios = [point.ranks / first.ranks for point in scaling.points]
    measured = [(ratio, scaling.speedup(point)) for ratio, point in zip(ratios, scaling.points, strict=True)]
    hoped = [
        (ratio, share * ratio)
        for ratio, point in zip(ratios, scaling.points, strict=True)
        if (share := scaling.expected(point)) is not None
    ]
    parts = [line([(0.0, 0.0), (most, most)], "stroke='var(--line)' stroke-width=1.5")]
    if hoped:
        parts.append(line(hoped, "stroke='var(--c1)' stroke-width=2 stroke-dasharray='6 4'"))
    parts.append(line(measured, "stroke='var(--c0)' stroke-width=2.5"))
    for (ratio, gain), point in zip(measured, scaling.points, strict=True):
        what = f"{point.hosts} hosts, {point.ranks} ranks: {gain:.2f} times, {scaling.efficiency(point):.0%}"
        parts.append(
            f"<circle cx={x(ratio):.1f} cy={y(gain):.1f} r=4 fill='var(--c0)'><title>{what}</title></circle>"
            f"<text x={x(ratio):.1f} y={_HEIGHT - _EDGE + 16} text-anchor=middle>{point.ranks}</text>"
        )
    for tick in range(int(top) + 1):
        if top < 12 or tick % max(1, int(top) // 6) == 0:
            parts.append(f"<text x={_LEFT - 8} y={y(tick) + 4:.1f} text-anchor=end>{tick}</text>")
    legend = "measured" + (", predicted dashed" if hoped else "") + ", in proportion grey"
    parts.append(f"<text x={_WIDTH / 2} y={_HEIGHT - 4} text-anchor=middle>ranks; speed-up {legend}</text>")
    label = f"Speed-up over ranks: {html.escape(scaling.verdict)}"
    return f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='{label}'>{''.join(parts)}</svg>"
