"""Where a job's time went: bars and numbers for the page of its report."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.core.report import HERE, Span
from toolkit.html.page import folded, table
from toolkit.monitor.charts import bars, clock_text
from toolkit.monitor.job_report import JobReport
from toolkit.network.units import seconds_text

# Of `run`, then of the ranks, in the order in which they come.
_PHASES = (
    *("connect", "look and plan", "code", "start", "daemons"),
    *("launch", "to the first line", "to the first step", "nothing printed"),
)
_UP_PHASES = (
    "connect",
    "look and plan",
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


def times_parts(report: JobReport) -> list[str]:
    """Return what each host did until the first step, then the attempts, and `up` before them."""
    first = [*report.preparation, *rank_spans(report)]
    hosts = [HERE, *(host.name for host in report.hosts)]
    last = max((span.end for span in first), default=0.0)
    parts = [
        "<h3>To the first step</h3>" if first else "",
        bars(first, hosts, _PHASES, f"what each host did until {clock_text(last)} after the start"),
        _numbers(first, hosts, _PHASES),
    ]
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
        parts += ["<h3>All attempts</h3>", bars(spans, hosts, tries, "attempts by host")]
    if report.up:
        before = report.up_before
        ago = f", {clock_text(before)} before this job" if before is not None and before >= 0 else ""
        there = list(dict.fromkeys([*hosts, *(span.host for span in report.up)]))
        parts += [
            f"<h3>The last toolkit up that changed something{ago}</h3>",
            bars(report.up, there, _UP_PHASES, "what up took its time with on each host"),
            _numbers(report.up, there, _UP_PHASES),
        ]
    return parts


def rank_spans(report: JobReport) -> list[Span]:
    """Return the first ranks' time by host: to their processes, to their first line, to the first step."""
    ended = report.attempts[0].end
    ended = report.seconds if ended is None else ended
    told = [rank.first_step for rank in report.ranks if rank.first_step is not None]
    last = min([*told, ended])
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
            # Of many scripts rank 0 alone prints.
            spans.append(Span("nothing printed", host.name, began, max(0.0, last - began)))
            continue
        spans.append(Span("to the first line", host.name, began, max(0.0, line - began)))
        if line < step < ended:
            spans.append(Span("to the first step", host.name, line, step - line))
    return spans


def _numbers(spans: Sequence[Span], hosts: Sequence[str], phases: Sequence[str]) -> str:
    """The same bars in numbers: seconds by host and phase."""
    seen = [phase for phase in phases if any(span.phase == phase for span in spans)]
    names = [host for host in hosts if any(span.host == host for span in spans)]
    rows = []
    for host in names:
        cells = []
        for phase in seen:
            own = [span.seconds for span in spans if span.host == host and span.phase == phase]
            cells.append(seconds_text(sum(own)) if own else "")
        rows.append((host, *cells))
    return folded("In numbers", table(("host", *seen), rows, "seconds by host and phase")) if rows else ""
