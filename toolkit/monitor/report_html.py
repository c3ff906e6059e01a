"""A job's report as one HTML file: what ran where, what took how long, how fast it went, what broke."""

from __future__ import annotations

import html
import shlex

from toolkit.bench.network_html import network_parts
from toolkit.bench.scaling_fit import Scaling
from toolkit.bench.scaling_html import scaling_parts
from toolkit.html.page import cards, folded, page, section, table
from toolkit.monitor.charts import Line, chart, clock_text
from toolkit.monitor.job_report import JobReport, RankReport
from toolkit.monitor.report_hosts import host_part, versions_parts
from toolkit.monitor.report_times import times_parts
from toolkit.network.measured import Measured


def report_html(report: JobReport, when: str, measured: Measured | None, scaling: Scaling | None) -> str:
    """Return the page.

    Args:
        when: date and time at which it was made, as it is to be shown.
        measured: the network between the hosts, None where nobody has measured it.
        scaling: how the job's pace grows with hosts, None where nobody has measured it.
    """
    parts = {
        "time": section("time", "Where the time went", *times_parts(report)),
        "pace": section("pace", "Pace", *_pace(report)),
        "restarts": section("restarts", "Restarts", _attempts(report)) if len(report.attempts) > 1 else "",
        "ranks": section("ranks", "Ranks", _ranks(report)),
        "hosts": section("hosts", "Hosts", *(host_part(report, host) for host in report.hosts)),
        "scaling": section("scaling", "Scaling", *scaling_parts(scaling)) if scaling else "",
        "network": section("network", "Network", *_network(report, measured)),
        "versions": section("versions", "Environment and versions", *versions_parts(report)),
    }
    titles = {
        "time": "Time",
        "pace": "Pace",
        "restarts": "Restarts",
        "ranks": "Ranks",
        "hosts": "Hosts",
        "scaling": "Scaling",
        "network": "Network",
        "versions": "Versions",
    }
    links = [(name, titles[name]) for name, text in parts.items() if text]
    return page(
        f"Job {report.status.id}",
        f"{report.cluster}; report of {when}",
        [*_head(report), *parts.values()],
        links,
    )


def verdict(report: JobReport) -> str:
    """Return in one line how the job went and how fast.

    >>> # "succeeded after 3:12; 12.3 steps/s on 4 ranks of 3 hosts; 1 restart"
    """
    status = report.status
    text = f"{status.state} after {clock_text(report.seconds)}"
    where = f"{count(status.ranks, 'rank')} of {count(len(status.hosts), 'host')}"
    pace = report.typical("steps/s")
    text += f"; {pace:.3g} steps/s on {where}" if pace else f"; {where}"
    if number := len(report.attempts) - 1:
        text += f"; {count(number, 'restart')}"
    return text


def count(number: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def facts(report: JobReport) -> list[tuple[str, str]]:
    """Return the few numbers that a job is known by, names first."""
    samples, steps = report.typical("samples/s"), report.typical("steps/s")
    rows = [
        ("in all", clock_text(report.seconds)),
        ("to the first step", "-" if report.first_step is None else clock_text(report.first_step)),
        ("steps/s", f"{steps:.3g}" if steps else "-"),
        *([("samples/s", f"{samples:.4g}")] if samples else []),
        ("ranks", str(report.status.ranks)),
        ("hosts", str(len(report.status.hosts))),
        ("restarts", str(len(report.attempts) - 1)),
    ]
    busy = report.mean("CPU")
    gpus = [report.mean(f"GPU {index}") for index in range(16)]
    known = [value for value in gpus if value is not None]
    if known:
        rows.append(("GPUs busy", f"{sum(known) / len(known):.0f} %"))
    elif busy is not None:
        rows.append(("cores busy per host", f"{busy:.2g}"))
    return rows


def _head(report: JobReport) -> list[str]:
    status = report.status
    look = "good" if status.state == "succeeded" else "bad" if status.final else "soft"
    reason = f"<p class=bad>{html.escape(status.reason)}</p>" if status.reason and status.final else ""
    last = "".join(f"{html.escape(line)}\n" for line in status.last_lines)
    silent = "".join(f"<li>{html.escape(f'{name}: {why}')}" for name, why in report.silent)
    return [
        f"<p class='verdict {look}'>{html.escape(verdict(report))}</p>",
        reason,
        f"<pre>{last}</pre>" if last and status.state != "succeeded" else "",
        f"<p><code>{html.escape(shlex.join(status.command))}</code> by {html.escape(status.launcher)}"
        f"{html.escape(f', started by {status.owner}') if status.owner else ''}</p>",
        f"<p class=bad>Hosts that do not say anything:</p><ul>{silent}</ul>" if silent else "",
        cards(facts(report)),
    ]


def _pace(report: JobReport) -> list[str]:
    marks = [(attempt.end, attempt.reason) for attempt in report.attempts[:-1] if attempt.end is not None]
    window = (0.0, max(report.seconds, 1.0))
    parts = []
    for number, curve in enumerate(report.pace):
        name = {"steps/s": "Steps a second", "samples/s": "Samples a second"}[curve.name]
        typical = report.typical(curve.name)
        label = f"{name} over the job's time, {typical:.4g} in the middle" if typical else name
        parts += [
            f"<h3>{html.escape(label)}</h3>",
            chart([Line(curve, name, number)], label, 170, marks, window),
        ]
    if report.steps is not None and report.steps.top:
        label = f"Steps, up to {report.steps.top:g}"
        parts += [f"<h3>{label}</h3>", chart([Line(report.steps, "step", 2)], label, 130, marks, window)]
    if parts and marks:
        parts.append("<p class=soft>Upright lines: the job was started again.</p>")
    return parts or ["<p class=soft>The ranks print no steps; docs/top.md says how they are read.</p>"]


def _attempts(report: JobReport) -> str:
    rows = []
    for number, attempt in enumerate(report.attempts):
        end = "" if attempt.end is None else clock_text(attempt.end)
        rows.append((str(number), clock_text(attempt.begin), end, ", ".join(attempt.hosts), attempt.reason))
    return table(("attempt", "from", "to", "hosts", "ended by"), rows, "attempts", text=(0, 3, 4))


def _ranks(report: JobReport) -> str:
    def moment(at: float | None) -> str:
        return "-" if at is None else clock_text(at)

    def end(rank: RankReport) -> str:
        return rank.how or ("ok" if rank.exit_code == 0 else "runs" if not report.status.final else "-")

    rows = [
        (
            str(rank.rank),
            rank.host,
            moment(rank.starts[-1] if rank.starts else None),
            moment(rank.first_output),
            moment(rank.first_step),
            moment(rank.ended),
            end(rank),
        )
        for rank in report.ranks
    ]
    head = ("rank", "host", "last start", "first line", "first step", "end", "ended")
    shown = table(head, rows, "ranks", text=(1, 6))
    return shown if len(rows) <= 16 else folded(f"{len(rows)} ranks", shown)


def _network(report: JobReport, measured: Measured | None) -> list[str]:
    if measured is None:
        return ["<p class=soft>Not measured yet: <code>toolkit bench network</code>.</p>"]
    return [f"<p class=soft>Measured by job {html.escape(report.network[0])}.</p>", *network_parts(measured)]
