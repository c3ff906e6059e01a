"""Report of a job, or a comparison of two jobs, as one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from toolkit.bench.network_html import network_values
from toolkit.bench.scaling_report import Scaling, scaling_values
from toolkit.core.report import HERE, Span
from toolkit.html.page import COLOURS, Table, page
from toolkit.monitor.charts import Bars, Chart, Line, bars, chart, clock_text
from toolkit.monitor.job_report import Curve, HostReport, JobReport, RankReport
from toolkit.network.measured import Measured
from toolkit.network.units import seconds_text
from toolkit.protocol.host_list import host_list

# Phases of `run`, then of the ranks, in their order.
_PHASES = (
    *("connect", "query and plan", "code", "start", "daemons"),
    *("launch", "to the first line", "to the first step", "no output"),
)
_UP_PHASES = (
    "connect",
    "query and plan",
    "pull",
    "image",
    "data",
    "files",
    "keys",
    "trust",
    "containers",
    "sshd",
    "login",
)
# Curves of a host that share one chart.
_TOGETHER = (("CPU",), ("memory",), ("network in", "network out"), ("disk read", "disk write"))
_GPU_PARTS = ("", " memory", " power", " temperature", " clock")


def report_html(report: JobReport, when: str, measured: Measured | None, scaling: Scaling | None) -> str:
    """Return the page.

    Args:
        when: date and time of the page, as text.
        measured: measurement of the network between the hosts, None without one.
        scaling: measured throughput by number of hosts, None without a measurement.
    """
    status = report.status
    alike, differing = _versions_of(report)
    return page(
        "report",
        f"Job {status.id}",
        f"{report.cluster}; report of {when}",
        status=status,
        look="good" if status.state == "succeeded" else "bad" if status.final else "soft",
        verdict=verdict(report),
        command=shlex.join(status.command),
        silent=report.silent,
        facts=facts(report),
        times=_times(report),
        throughput=_throughput(report),
        restarted=bool(_marks(report)),
        attempts=_attempts(report) if len(report.attempts) > 1 else None,
        ranks=_ranks(report),
        hosts=[(host.name, _gauges(report, host)) for host in report.hosts],
        scaling=scaling and scaling_values(scaling),
        network=measured and network_values(measured),
        network_job=report.network[0],
        alike=alike,
        differing=differing,
    )


def verdict(report: JobReport) -> str:
    """Return one line with the job's result and throughput.

    >>> # "succeeded after 3:12; 12.3 steps/s on 4 ranks of 3 hosts; 1 restart"
    """
    status = report.status
    text = f"{status.state} after {clock_text(report.seconds)}" if report.seconds else status.state
    where = f"{count(status.ranks, 'rank')} of {count(len(status.hosts), 'host')}"
    throughput = report.typical("steps/s")
    text += f"; {throughput:.3g} steps/s on {where}" if throughput else f"; {where}"
    if number := len(report.attempts) - 1:
        text += f"; {count(number, 'restart')}"
    return text


def count(number: int, what: str) -> str:
    """Return a number with its noun in the singular or plural."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def facts(report: JobReport) -> list[tuple[str, str]]:
    """Return the key figures of a job, each with its name first."""
    samples, steps = report.typical("samples/s"), report.typical("steps/s")
    rows = [
        ("total time", clock_text(report.seconds) if report.seconds else "-"),
        ("time to the first step", "-" if report.first_step is None else clock_text(report.first_step)),
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
        rows.append(("GPU utilization", f"{sum(known) / len(known):.0f} %"))
    elif busy is not None:
        rows.append(("CPU cores in use per host", f"{busy:.2g}"))
    return rows


def _marks(report: JobReport) -> list[tuple[float, str]]:
    """Return the times of restarts, each with its reason."""
    return [(attempt.end, attempt.reason) for attempt in report.attempts[:-1] if attempt.end is not None]


def _throughput(report: JobReport) -> list[tuple[str, Chart | None]]:
    marks, window = _marks(report), (0.0, max(report.seconds, 1.0))
    parts = []
    for number, curve in enumerate(report.throughput):
        name = {"steps/s": "Steps per second", "samples/s": "Samples per second"}[curve.name]
        typical = report.typical(curve.name)
        label = f"{name} over time (median {typical:.4g})" if typical else name
        parts.append((label, chart([Line(curve, name, number)], label, 170, marks, window)))
    if report.steps is not None and report.steps.top:
        label = f"Steps over time (highest step {report.steps.top:g})"
        parts.append((label, chart([Line(report.steps, "step", 2)], label, 130, marks, window)))
    return parts


def _attempts(report: JobReport) -> Table:
    rows = []
    for number, attempt in enumerate(report.attempts):
        end = "" if attempt.end is None else clock_text(attempt.end)
        rows.append((str(number), clock_text(attempt.begin), end, host_list(attempt.hosts), attempt.reason))
    return Table(("attempt", "start", "end", "hosts", "reason for the end"), rows, "attempts", text=(0, 3, 4))


def _ranks(report: JobReport) -> Table:
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
    head = ("rank", "host", "last start", "first line", "first step", "end", "result")
    return Table(head, rows, "ranks", text=(1, 6))


def _times(report: JobReport) -> list[tuple[str, Bars | None, Table | None]]:
    """Return titled charts: activity of each host until the first step, the attempts, and the last `up`."""
    first = [*report.preparation, *rank_spans(report)]
    hosts = [HERE, *(host.name for host in report.hosts)]
    parts = []
    if first:
        last = max(span.end for span in first)
        label = f"activity of each host in the first {clock_text(last)}"
        drawn = bars(first, hosts, _PHASES, label)
        parts.append(("Time to the first step", drawn, _numbers(first, hosts, _PHASES)))
    if len(report.attempts) > 1:
        tries = tuple(f"attempt {number}" for number in range(len(report.attempts)))
        spans = [
            Span(
                name,
                host,
                attempt.begin,
                (report.seconds if attempt.end is None else attempt.end) - attempt.begin,
            )
            for name, attempt in zip(tries, report.attempts, strict=True)
            for host in attempt.hosts
        ]
        parts.append(("All attempts", bars(spans, hosts, tries, "attempts by host"), None))
    if report.up:
        before = report.up_before
        ago = f", {clock_text(before)} before this job" if before is not None and before >= 0 else ""
        title = f"Last toolkit up that made changes{ago}"
        there = list(dict.fromkeys([*hosts, *(span.host for span in report.up)]))
        drawn = bars(report.up, there, _UP_PHASES, "phases of toolkit up on each host")
        parts.append((title, drawn, _numbers(report.up, there, _UP_PHASES)))
    return parts


def rank_spans(report: JobReport) -> list[Span]:
    """Return the spans of the first attempt by host: launch, to the first line, to the first step."""
    ended = report.attempts[0].end
    ended = report.seconds if ended is None else ended
    firsts = [rank.first_step for rank in report.ranks if rank.first_step is not None]
    last = min([*firsts, ended])
    spans = []
    for host in report.hosts:
        own = [rank for rank in report.ranks if rank.host == host.name and rank.starts]
        if not own:
            continue
        began = min(rank.starts[0] for rank in own)
        line = min((rank.first_output for rank in own if rank.first_output is not None), default=ended)
        step = min((rank.first_step for rank in own if rank.first_step is not None), default=ended)
        spans.append(Span("launch", host.name, 0.0, max(0.0, began)))
        if line >= ended:
            # In many scripts only rank 0 prints.
            spans.append(Span("no output", host.name, began, max(0.0, last - began)))
            continue
        spans.append(Span("to the first line", host.name, began, max(0.0, line - began)))
        if line < step < ended:
            spans.append(Span("to the first step", host.name, line, step - line))
    return spans


def _numbers(spans: Sequence[Span], hosts: Sequence[str], phases: Sequence[str]) -> Table | None:
    """Return the bars as a table: seconds by host and phase."""
    seen = [phase for phase in phases if any(span.phase == phase for span in spans)]
    names = [host for host in hosts if any(span.host == host for span in spans)]
    rows = []
    for host in names:
        cells = []
        for phase in seen:
            own = [span.seconds for span in spans if span.host == host and span.phase == phase]
            cells.append(seconds_text(sum(own)) if own else "")
        rows.append((host, *cells))
    return Table(("host", *seen), rows, "seconds by host and phase") if rows else None


def _gauges(report: JobReport, host: HostReport) -> list[tuple[str, Chart]]:
    """Return the charts of one host that contain a value."""
    curves = {curve.name: curve for curve in host.curves}
    window = (0.0, max(report.seconds, 1.0))
    parts = []
    for names in _TOGETHER:
        own = [curves[name] for name in names if name in curves]
        # Values above the known speed of the link are errors of the measurement.
        scale = own[0].most if own and own[0].most and names[0] in ("CPU", "memory") else None
        lines = [Line(curve, curve.name, n) for n, curve in enumerate(own)]
        parts.append(_gauge(host.name, lines, window, scale))
    indexes = [name[4:] for name in curves if name.startswith("GPU ") and name[4:].isdigit()]
    for part in _GPU_PARTS:
        lines = [
            Line(curves[name], f"GPU {index}", number % COLOURS)
            for number, index in enumerate(indexes)
            if (name := f"GPU {index}{part}") in curves
        ]
        most = [line.curve.most for line in lines if line.curve.most]
        parts.append(_gauge(host.name, lines, window, max(most) if most else None, f"GPUs{part}"))
    return [(title, drawn) for title, drawn in parts if drawn]


def _gauge(
    host: str, lines: Sequence[Line], window: tuple[float, float], scale: float | None, title: str = ""
) -> tuple[str, Chart | None]:
    names = title or " and ".join(line.name for line in lines)
    unit = lines[0].curve.unit if lines else ""
    text = f"{names}, {unit}" + (f" of {scale:.3g}" if scale and unit != "%" else "")
    return text, chart(lines, f"{text} on {host}", 120, window=window, scale=scale)


def _versions_of(report: JobReport) -> tuple[Table | None, Table | None]:
    """Return two tables of versions: equal on all hosts, and different."""
    names = list(dict.fromkeys(name for host in report.hosts for name, _ in host.versions))
    found = {host.name: dict(host.versions) for host in report.hosts}
    if not names:
        return None, None
    alike = [n for n in names if len({found[host].get(n, "-") for host in found}) == 1]
    others = [n for n in names if n not in alike]
    some = next(iter(found.values()))
    same = [(n, some.get(n, "-")) for n in alike]
    rows = [(n, *(found[host].get(n, "-") for host in found)) for n in others]
    return (
        Table(("on all hosts", "version"), same, "versions", text=(0, 1)),
        Table(("differs between hosts", *found), rows, "versions that differ") if rows else None,
    )


def compare_html(one: JobReport, other: JobReport, when: str) -> str:
    """Return the page.

    Args:
        when: date and time of the page, as text.
    """
    return page(
        "compare",
        f"Jobs {one.status.id} and {other.status.id}",
        f"{one.cluster}; report of {when}",
        comparison=comparison(one, other),
        jobs=[(job.status.id, verdict(job), shlex.join(job.status.command)) for job in (one, other)],
        numbers=_compared_numbers(one, other),
        throughputs=_throughputs(one, other),
        hosts=_hosts(one, other),
        versions=_versions(one, other),
    )


def comparison(one: JobReport, other: JobReport) -> str:
    """Return one line that compares the speed of two jobs."""
    for name in ("samples/s", "steps/s"):
        first, second = one.typical(name), other.typical(name)
        if first and second:
            return f"job {other.status.id} has {second / first:.2f} times the {name} of job {one.status.id}"
    if one.seconds > 0 and None not in (one.status.ended, other.status.ended):
        ratio = other.seconds / one.seconds
        return f"job {other.status.id} took {ratio:.2f} times as long as job {one.status.id}"
    return (
        "cannot compare the speed of the jobs: the jobs have no common metric (samples/s or steps/s), "
        "and at least one job has no recorded end"
    )


def _compared_numbers(one: JobReport, other: JobReport) -> Table:
    sides = [dict(facts(report)) for report in (one, other)]
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [
        ("state", one.status.state, other.status.state),
        ("launcher", one.status.launcher, other.status.launcher),
        *((name, sides[0].get(name, "-"), sides[1].get(name, "-")) for name in names),
    ]
    return Table(("", one.status.id, other.status.id), rows, "both jobs in numbers")


def _throughputs(one: JobReport, other: JobReport) -> list[tuple[str, Chart]]:
    parts = []
    end = max(one.seconds, other.seconds, 1.0)
    for name in ("steps/s", "samples/s"):
        lines = [
            Line(curve, report.status.id, number)
            for number, report in enumerate((one, other))
            if (curve := _curve(report, name)) is not None
        ]
        drawn = chart(lines, f"{name} of both jobs in the first {clock_text(end)}", 170, window=(0.0, end))
        if drawn:
            parts.append((name, drawn))
    return parts


def _curve(report: JobReport, name: str) -> Curve | None:
    return next((curve for curve in report.throughput if curve.name == name), None)


def _hosts(one: JobReport, other: JobReport) -> Table:
    def slots(report: JobReport) -> dict[str, str]:
        return {name: str(len(taken)) for name, taken in report.status.hosts}

    sides = [slots(report) for report in (one, other)]
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [(name, sides[0].get(name, "-"), sides[1].get(name, "-")) for name in names]
    return Table(("ranks on", one.status.id, other.status.id), rows, "ranks by host")


def _versions(one: JobReport, other: JobReport) -> Table:
    """Return a table of the versions that differ between the hosts of two jobs."""

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
    return Table(("", one.status.id, other.status.id), rows, "versions that differ", text=(0, 1, 2))
