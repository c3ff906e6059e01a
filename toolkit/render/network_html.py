"""A measured network as one HTML file that needs nothing else: heat maps of pairs, a curve of all-reduce."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from toolkit.network.measured import Measured, Pair, shown_bytes, shown_rate, shown_share, shown_time

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.3rem .6rem;text-align:right;border:1px solid #ccc}
th{background:#f6f8fa;font-weight:600}td.none{background:#f6f8fa}.verdict{font-size:1.15rem;font-weight:600}
svg{max-width:100%;height:auto}text{font:12px system-ui,sans-serif;fill:#57606a}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}th,td.none{background:#161b22}
td,th{border-color:#30363d}td.cell{color:#0d1117}text{fill:#9198a1}}
"""
_WIDTH, _HEIGHT, _EDGE = 640, 300, 56


def network_html(measured: Measured, cluster: str, when: str) -> str:
    """Return the page.

    Args:
        when: date and time of the measurement, as it is to be shown.
    """
    title = html.escape(f"Network of {cluster}")
    faults = "".join(f"<li>{html.escape(fault)}</li>" for fault in measured.faults)
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<style>{_STYLE}</style><h1>{title}</h1><p>{html.escape(when)}</p>",
        f"<p class=verdict>{html.escape(measured.verdict())}</p>",
        f"<h2>Not measured</h2><ul>{faults}</ul>" if faults else "",
        "<h2>Rate, from the row's host to the column's</h2>",
        _matrix(measured, lambda link: link.rate, shown_rate, high_is_good=True),
        "<h2>One-way latency</h2>",
        _matrix(measured, lambda link: link.latency, shown_time, high_is_good=False),
    ]
    if measured.allreduce:
        parts += [
            f"<h2>All-reduce ({html.escape(measured.engine)})</h2>",
            _curve(measured),
            _points(measured),
        ]
    return "\n".join(part for part in parts if part) + "\n"


def _matrix(
    measured: Measured, value: Callable[[Pair], float], shown: Callable[[float], str], high_is_good: bool
) -> str:
    links = {(link.source, link.target): value(link) for link in measured.pairs}
    least, most = min(links.values(), default=0.0), max(links.values(), default=0.0)
    head = "".join(f"<th>{html.escape(name)}" for name in measured.hosts)
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
        rows.append(f"<tr><th>{html.escape(source)}{''.join(cells)}")
    return f"<table><tr><th>{head}{''.join(rows)}</table>"


def _curve(measured: Measured) -> str:
    """Bus bandwidth over size, both logarithmic, with the slowest link's rate as a line."""
    points = [(float(p.size), 8 * p.busbw) for p in measured.allreduce]
    limit = measured.slowest.rate if measured.slowest else 0.0
    values = [y for _, y in points] + ([limit] if limit else [])
    x, y = _axis([x for x, _ in points], _EDGE, _WIDTH - 12), _axis(values, _HEIGHT - 36, 14)
    path = " ".join(f"{'L' if i else 'M'}{x(a):.1f} {y(b):.1f}" for i, (a, b) in enumerate(points))
    dots = "".join(
        f"<circle cx={x(a):.1f} cy={y(b):.1f} r=3.5 fill=#0969da>"
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
            f"<line x1={_EDGE} x2={_WIDTH - 12} y1={y(limit):.1f} y2={y(limit):.1f} stroke=#cf222e"
            f" stroke-dasharray='5 4'/><text x={_EDGE + 4} y={y(limit) - 4:.1f}>slowest link"
            f" {shown_rate(limit)}</text>"
        )
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='bus bandwidth by size'>"
        f"{wire}<path d='{path}' fill=none stroke=#0969da stroke-width=2 />{dots}{names}"
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
        rows.append("<tr>" + "".join(f"<td>{cell}" for cell in cells))
    head = "<tr><th>size<th>time<th>algbw GB/s<th>busbw GB/s<th>of the slowest link"
    return f"<table>{head}{''.join(rows)}</table>"
