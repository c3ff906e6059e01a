"""A measured network as one HTML file that needs nothing else: heat maps of pairs, a curve of all-reduce."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from toolkit.html.page import page, scroll, table
from toolkit.network.measured import Measured, Pair, shown_bytes, shown_rate, shown_share, shown_time

_WIDTH, _HEIGHT, _EDGE = 640, 300, 56


def network_html(measured: Measured, cluster: str, when: str) -> str:
    """Return the page.

    Args:
        when: date and time of the measurement, as it is to be shown.
    """
    return page(f"Network of {cluster}", when, network_parts(measured))


def network_parts(measured: Measured) -> list[str]:
    """Return what such a page says, for other pages as well."""
    faults = "".join(f"<li>{html.escape(fault)}</li>" for fault in measured.faults)
    parts = [
        f"<p class=verdict>{html.escape(measured.verdict())}</p>",
        f"<h3>Not measured</h3><ul>{faults}</ul>" if faults else "",
    ]
    if measured.pairs:
        parts += [
            "<h3>Rate, from the row's host to the column's</h3>",
            _matrix(measured, lambda link: link.rate, shown_rate, "rates of links", high_is_good=True),
            "<h3>One-way latency</h3>",
            _matrix(measured, lambda link: link.latency, shown_time, "latencies", high_is_good=False),
        ]
    if measured.allreduce:
        parts += [
            f"<h3>All-reduce ({html.escape(measured.engine)})</h3>",
            _curve(measured),
            _points(measured),
        ]
    return parts


def _matrix(
    measured: Measured,
    value: Callable[[Pair], float],
    shown: Callable[[float], str],
    label: str,
    high_is_good: bool,
) -> str:
    links = {(link.source, link.target): value(link) for link in measured.pairs}
    least, most = min(links.values(), default=0.0), max(links.values(), default=0.0)
    head = "".join(f"<th scope=col>{html.escape(name)}" for name in measured.hosts)
    rows = []
    for source in measured.hosts:
        cells = []
        for target in measured.hosts:
            found = links.get((source, target))
            if found is None:
                cells.append("<td class=none>" + ("" if source == target else "?"))
                continue
            share = (found - least) / (most - least) if most > least else 1.0 if high_is_good else 0.0
            hue = 120 * (share if high_is_good else 1 - share)
            cells.append(f"<td class=cell style='background:hsl({hue:.0f} 60% 75%)'>{shown(found)}")
        rows.append(f"<tr><th scope=row>{html.escape(source)}{''.join(cells)}")
    return scroll(f"<table><tr><th>{head}{''.join(rows)}</table>", label)


def _curve(measured: Measured) -> str:
    """Bus bandwidth over size, both logarithmic, with the slowest link's rate as a line."""
    points = [(float(p.size), 8 * p.busbw) for p in measured.allreduce]
    limit = measured.slowest.rate if measured.slowest else 0.0
    values = [y for _, y in points] + ([limit] if limit else [])
    x, y = _axis([x for x, _ in points], _EDGE, _WIDTH - 12), _axis(values, _HEIGHT - 36, 14)
    path = " ".join(f"{'L' if i else 'M'}{x(a):.1f} {y(b):.1f}" for i, (a, b) in enumerate(points))
    dots = "".join(
        f"<circle cx={x(a):.1f} cy={y(b):.1f} r=3.5 fill='var(--c0)'>"
        f"<title>{shown_bytes(int(a))}: {shown_rate(b)}</title></circle>"
        for a, b in points
    )
    names = "".join(
        f"<text x={x(a):.1f} y={_HEIGHT - 14} text-anchor=middle>{shown_bytes(int(a))}</text>"
        for a, _ in points[:: max(1, len(points) // 6)]
    )
    wire = ""
    if limit:
        wire = (
            f"<line x1={_EDGE} x2={_WIDTH - 12} y1={y(limit):.1f} y2={y(limit):.1f} stroke='var(--bad)'"
            f" stroke-dasharray='5 4'/><text x={_EDGE + 4} y={y(limit) - 4:.1f}>slowest link"
            f" {shown_rate(limit)}</text>"
        )
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='bus bandwidth by size'>"
        f"{wire}<path d='{path}' fill=none stroke='var(--c0)' stroke-width=2 />{dots}{names}"
        f"<text x=4 y=12>busbw</text></svg>"
    )


def _axis(values: Sequence[float], begin: float, end: float) -> Callable[[float], float]:
    least, most = math.log(min(values)), math.log(max(values))
    span = most - least or 1.0
    return lambda value: begin + (end - begin) * (math.log(value) - least) / span


def _points(measured: Measured) -> str:
    rows = []
    for point in measured.allreduce:
        share = measured.wire_share(point)
        cells = (
            shown_bytes(point.size),
            shown_time(point.seconds),
            f"{point.algbw / 1e9:.3g}",
            f"{point.busbw / 1e9:.3g}",
            shown_share(share),
        )
        rows.append(cells)
    head = ("size", "time", "algbw GB/s", "busbw GB/s", "of the slowest link")
    return table(head, rows, "all-reduce by size", text=())
