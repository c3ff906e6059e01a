"""A measured network as one self-contained HTML file: heat maps of pairs, a curve of all-reduce."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from toolkit.html.page import Table, single_page
from toolkit.network.measured import Measured, Pair, shown_bytes, shown_rate, shown_share, shown_time

_WIDTH, _HEIGHT, _EDGE = 640, 300, 56


def network_html(measured: Measured, cluster: str, when: str) -> str:
    """Return the page.

    Args:
        when: date and time of the measurement, as text.
    """
    return single_page("network", f"Network of {cluster}", when, network=network_values(measured))


def network_values(measured: Measured) -> dict[str, Any]:
    """Return the variables of ``network.html.j2``, also for other pages."""
    known = bool(measured.pairs)
    return {
        "verdict": measured.verdict(),
        "faults": measured.faults,
        "hosts": measured.hosts,
        "rates": known and _matrix(measured, lambda link: link.rate, shown_rate, high_is_good=True),
        "latencies": known and _matrix(measured, lambda link: link.latency, shown_time, high_is_good=False),
        "engine": measured.engine,
        "curve": _curve(measured) if measured.allreduce else None,
        "table": _points(measured),
    }


def _matrix(
    measured: Measured, value: Callable[[Pair], float], shown: Callable[[float], str], high_is_good: bool
) -> list[tuple[str, list[tuple[str | None, str]]]]:
    """Return rows of hue and text by host."""
    links = {(link.source, link.target): value(link) for link in measured.pairs}
    least, most = min(links.values(), default=0.0), max(links.values(), default=0.0)

    def cell(source: str, target: str) -> tuple[str | None, str]:
        found = links.get((source, target))
        if found is None:
            return None, "" if source == target else "?"
        share = (found - least) / (most - least) if most > least else 1.0 if high_is_good else 0.0
        return f"{120 * (share if high_is_good else 1 - share):.0f}", shown(found)

    return [(source, [cell(source, target) for target in measured.hosts]) for source in measured.hosts]


def _curve(measured: Measured) -> dict[str, Any]:
    """Return bus bandwidth over size, both logarithmic, with the rate of the slowest link as a line."""
    points = [(float(p.size), 8 * p.busbw) for p in measured.allreduce]
    limit = measured.slowest.rate if measured.slowest else 0.0
    values = [y for _, y in points] + ([limit] if limit else [])
    x, y = _axis([x for x, _ in points], _EDGE, _WIDTH - 12), _axis(values, _HEIGHT - 36, 14)
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "edge": _EDGE,
        "limit": (f"{y(limit):.1f}", f"{y(limit) - 4:.1f}", shown_rate(limit)) if limit else None,
        "path": " ".join(f"{'L' if i else 'M'}{x(a):.1f} {y(b):.1f}" for i, (a, b) in enumerate(points)),
        "points": [
            (f"{x(a):.1f}", f"{y(b):.1f}", f"{shown_bytes(int(a))}: {shown_rate(b)}") for a, b in points
        ],
        "sizes": [(f"{x(a):.1f}", shown_bytes(int(a))) for a, _ in points[:: max(1, len(points) // 6)]],
    }


def _axis(values: Sequence[float], begin: float, end: float) -> Callable[[float], float]:
    least, most = math.log(min(values)), math.log(max(values))
    span = most - least or 1.0
    return lambda value: begin + (end - begin) * (math.log(value) - least) / span


def _points(measured: Measured) -> Table:
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
    head = ("size", "time", "algbw GB/s", "busbw GB/s", "share of the slowest link's rate")
    return Table(head, rows, "all-reduce by size", text=())
