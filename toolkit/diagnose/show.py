"""Result of `toolkit why`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from toolkit.core.printable import table, without_color
from toolkit.diagnose.evidence import Evidence
from toolkit.diagnose.known_errors import KnownError
from toolkit.diagnose.rank_activity import Doing, lead
from toolkit.diagnose.verdict import Verdict, doings
from toolkit.jobs.status import JobStatus, length

_LINE = 60
# Maximum number of rows in the table. The ranks that the verdict names take precedence.
_ROWS = 64


def why_text(job: JobStatus, evidence: Evidence, verdict: Verdict, known: Sequence[KnownError]) -> str:
    """Return the verdict, the activity of each rank, and the known errors with their fixes."""
    lines = [f"{job.id}: {verdict.what}"]
    lines += [f"  fix: {verdict.fix}"] if verdict.fix else []
    found = doings(evidence)
    order = sorted(found, key=lambda rank: (rank not in verdict.ranks, rank))
    rows = [_row(evidence, rank, found[rank]) for rank in sorted(order[:_ROWS])]
    lines += [
        "",
        table(("rank", "host", "state", "CPU", "no output for", "activity", "last line"), rows).rstrip(),
    ]
    if len(found) > _ROWS:
        lines.append(
            f"The table shows {_ROWS} of {len(found)} ranks. The bundle contains the state of every rank."
        )
    lines += [f"{host.name}: {gpu}" for host in evidence.hosts for gpu in host.gpus]
    lines += _notes(evidence)
    for one in known:
        lines += ["", f"known error {one.name}: {one.what}", f"  fix: {one.fix}"]
    return "\n".join(lines) + "\n"


def _row(evidence: Evidence, rank: int, one: Doing) -> tuple[str, ...]:
    seen = evidence.rank(rank)
    process = lead(seen) if seen else None
    line = without_color(seen.last_line) if seen else ""
    return (
        str(rank),
        evidence.placed[rank],
        process.state if process else "-",
        f"{process.cpu:.0%}" if process else "-",
        length(seen.age) if seen and seen.age is not None else "-",
        one.what,
        line if len(line) <= _LINE else f"{line[: _LINE - 1]}…",
    )


def _notes(evidence: Evidence) -> list[str]:
    """Return notes: the missing evidence, and facts that accompany the verdict."""
    notes = [
        f"nvidia-smi on {host.name} failed: {host.gpu_error}; for the fix, run toolkit check"
        for host in evidence.hosts
        if host.gpu_error
    ]
    running = [host for host in evidence.hosts if any(rank.processes for rank in host.ranks)]
    if without := [host.name for host in running if not host.py_spy]:
        notes.append(f"cannot read stacks on {', '.join(without)}: the image has no py-spy")
    unread: dict[str, list[str]] = {}
    for host in evidence.hosts:
        for process in (process for rank in host.ranks for process in rank.processes):
            if process.no_stack and host.py_spy:
                unread.setdefault(process.no_stack, []).append(f"process {process.pid} on {host.name}")
    notes += [f"cannot read the stack of {', '.join(places[:4])}: {why}" for why, places in unread.items()]
    for host in evidence.hosts:
        if host.oom_kills:
            killed = "1 process" if host.oom_kills == 1 else f"{host.oom_kills} processes"
            notes.append(
                f"since the start of the container, the kernel of {host.name} killed {killed} of the "
                "container, because the container or the host ran out of memory"
            )
    return notes


def why_json(
    job: JobStatus, evidence: Evidence, verdict: Verdict, known: Iterable[KnownError]
) -> dict[str, Any]:
    """Return the result for JSON, with all reports about ranks, hosts and connections."""
    found = doings(evidence)
    rows = []
    for rank, one in found.items():
        seen = evidence.rank(rank)
        process = lead(seen) if seen else None
        rows.append(
            {
                "rank": rank,
                "host": evidence.placed[rank],
                "doing": asdict(one),
                "state": process.state if process else None,
                "cpu": process.cpu if process else None,
                "silent_s": seen.age if seen else None,
                "exit_code": seen.exit_code if seen else None,
                "last_lines": list(seen.lines) if seen else [],
                "stack": [asdict(frame) for frame in process.frames] if process else [],
            }
        )
    return {
        "job": job.id,
        "state": job.state,
        "verdict": asdict(verdict),
        "ranks": rows,
        "hosts": [
            {
                "host": host.name,
                "error": host.error,
                "container": host.container,
                "oom_kills": host.oom_kills,
                "gpus": list(host.gpus),
                "gpu_error": host.gpu_error,
                "stacks": host.py_spy,
            }
            for host in evidence.hosts
        ],
        "connections": [asdict(c) for host in evidence.hosts for c in host.connections],
        "known": [{"name": one.name, "what": one.what, "fix": one.fix} for one in known],
    }
