"""Two jobs beside each other as one HTML file: numbers, pace, hosts, versions."""

from __future__ import annotations

import html
import shlex

from toolkit.html.page import page, section, table
from toolkit.monitor.charts import Line, chart, clock_text, legend
from toolkit.monitor.curves import Curve
from toolkit.monitor.job_report import JobReport
from toolkit.monitor.report_html import facts, verdict


def compare_html(one: JobReport, other: JobReport, when: str) -> str:
    """Return the page.

    Args:
        when: date and time at which it was made, as it is to be shown.
    """
    names = (one.status.id, other.status.id)
    parts = {
        "numbers": section("numbers", "Numbers", _numbers(one, other)),
        "pace": section("pace", "Pace", *_paces(one, other)),
        "hosts": section("hosts", "Hosts", _hosts(one, other)),
        "versions": section("versions", "Versions that differ", _versions(one, other)),
    }
    titles = {"numbers": "Numbers", "pace": "Pace", "hosts": "Hosts", "versions": "Versions"}
    links = [(name, titles[name]) for name, text in parts.items() if text]
    head = [f"<p class=verdict>{html.escape(comparison(one, other))}</p>"]
    for report in (one, other):
        words = shlex.join(report.status.command)
        head.append(
            f"<p><b>{html.escape(report.status.id)}</b>: {html.escape(verdict(report))}<br>"
            f"<code>{html.escape(words)}</code></p>"
        )
    return page(
        f"Jobs {names[0]} and {names[1]}", f"{one.cluster}; made {when}", [*head, *parts.values()], links
    )


def comparison(one: JobReport, other: JobReport) -> str:
    """Return in one line which of two jobs was faster."""
    for name in ("samples/s", "steps/s"):
        first, second = one.typical(name), other.typical(name)
        if first and second:
            return f"{other.status.id} makes {second / first:.2f} times the {name} of {one.status.id}"
    if one.seconds > 0 and one.status.final and other.status.final:
        return f"{other.status.id} took {other.seconds / one.seconds:.2f} times as long as {one.status.id}"
    return "neither has printed its pace"


def _numbers(one: JobReport, other: JobReport) -> str:
    sides = [dict(facts(report)) for report in (one, other)]
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [
        ("state", one.status.state, other.status.state),
        ("launcher", one.status.launcher, other.status.launcher),
        *((name, sides[0].get(name, "-"), sides[1].get(name, "-")) for name in names),
    ]
    return table(("", one.status.id, other.status.id), rows, "both jobs in numbers")


def _paces(one: JobReport, other: JobReport) -> list[str]:
    parts = []
    end = max(one.seconds, other.seconds, 1.0)
    for name in ("steps/s", "samples/s"):
        lines = [
            Line(curve, report.status.id, number)
            for number, report in enumerate((one, other))
            if (curve := _curve(report, name)) is not None
        ]
        drawn = chart(lines, f"{name} of both jobs, {clock_text(end)} at most", 170, window=(0.0, end))
        if drawn:
            parts += [f"<h3>{name}</h3>", drawn, legend((line.colour, line.name) for line in lines)]
    return parts


def _curve(report: JobReport, name: str) -> Curve | None:
    return next((curve for curve in report.pace if curve.name == name), None)


def _hosts(one: JobReport, other: JobReport) -> str:
    def slots(report: JobReport) -> dict[str, str]:
        return {name: str(len(taken)) for name, taken in report.status.hosts}

    sides = [slots(report) for report in (one, other)]
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [(name, sides[0].get(name, "-"), sides[1].get(name, "-")) for name in names]
    return table(("ranks on", one.status.id, other.status.id), rows, "ranks by host")


def _versions(one: JobReport, other: JobReport) -> str:
    """Versions that some host of one job has and some host of the other has not."""

    def of(report: JobReport) -> dict[str, str]:
        found: dict[str, dict[str, None]] = {}
        for host in report.hosts:
            for name, version in host.versions:
                found.setdefault(name, {})[version] = None
        return {name: ", ".join(known) for name, known in found.items()}

    sides = [of(report) for report in (one, other)]
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [
        (name, sides[0].get(name, "-"), sides[1].get(name, "-"))
        for name in names
        if sides[0].get(name) != sides[1].get(name)
    ]
    if not rows:
        return "<p class=soft>None.</p>"
    return table(("", one.status.id, other.status.id), rows, "versions that differ", text=(0, 1, 2))
