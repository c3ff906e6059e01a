"""What the hosts of a job did meanwhile, and what they have: curves and versions for its report."""

from __future__ import annotations

import html
from collections.abc import Sequence

from toolkit.html.page import COLOURS, table
from toolkit.monitor.charts import Line, chart, legend
from toolkit.monitor.job_report import HostReport, JobReport

# Curves of a host that are drawn into one picture.
_TOGETHER = (("CPU",), ("memory",), ("network in", "network out"), ("disk read", "disk write"))
_GPU_PARTS = ("", " memory", " power", " temperature", " clock")


def host_part(report: JobReport, host: HostReport) -> str:
    """Return the curves of one host."""
    curves = {curve.name: curve for curve in host.curves}
    window = (0.0, max(report.seconds, 1.0))
    parts = []
    for names in _TOGETHER:
        own = [curves[name] for name in names if name in curves]
        # Values beyond the link's speed, where that is known, are faults of the measurement.
        scale = own[0].most if own and own[0].most and names[0] in ("CPU", "memory") else None
        parts.append(
            _small(host.name, [Line(curve, curve.name, n) for n, curve in enumerate(own)], window, scale)
        )
    indexes = [name[4:] for name in curves if name.startswith("GPU ") and name[4:].isdigit()]
    for part in _GPU_PARTS:
        lines = [
            Line(curves[name], f"GPU {index}", number % COLOURS)
            for number, index in enumerate(indexes)
            if (name := f"GPU {index}{part}") in curves
        ]
        most = [line.curve.most for line in lines if line.curve.most]
        parts.append(_small(host.name, lines, window, max(most) if most else None, f"GPUs{part}"))
    inner = "".join(part for part in parts if part)
    said = inner and f"<div class=charts>{inner}</div>"
    return f"<h3>{html.escape(host.name)}</h3>{said or '<p class=soft>No gauges were kept.</p>'}"


def _small(
    host: str, lines: Sequence[Line], window: tuple[float, float], scale: float | None, title: str = ""
) -> str:
    if not lines:
        return ""
    names = title or " and ".join(line.name for line in lines)
    unit = lines[0].curve.unit
    text = f"{names}, {unit}" + (f" of {scale:.3g}" if scale and unit != "%" else "")
    key = legend((line.colour, line.name) for line in lines) if len(lines) > 1 else ""
    label = f"{text} on {host}"
    drawn = chart(lines, label, 120, window=window, scale=scale)
    return f"<div><h3>{html.escape(text)}</h3>{drawn}{key}</div>" if drawn else ""


def versions_parts(report: JobReport) -> list[str]:
    """Return what the hosts have, first what is the same on all."""
    names = list(dict.fromkeys(name for host in report.hosts for name, _ in host.versions))
    found = {host.name: dict(host.versions) for host in report.hosts}
    if not names:
        return []
    alike = [n for n in names if len({found[host].get(n, "-") for host in found}) == 1]
    others = [n for n in names if n not in alike]
    some = next(iter(found.values()))
    return [
        table(("on all hosts", "version"), [(n, some.get(n, "-")) for n in alike], "versions", text=(0, 1)),
        table(
            ("not the same", *found),
            [(n, *(found[host].get(n, "-") for host in found)) for n in others],
            "versions that differ",
        )
        if others
        else "",
    ]
