"""Jobs as tables and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from toolkit.jobs.status import JobStatus
from toolkit.plan.show import table

_COMMAND = 48


def jobs_table(jobs: Sequence[JobStatus]) -> str:
    """Return one line for each job."""
    head = ("job", "owner", "state", "exit", "ranks", "hosts", "started", "took", "command", "reason")
    return table(head, [_row(job) for job in jobs])


def job_json(job: JobStatus) -> dict[str, Any]:
    """Return a job as JSON has it."""
    found = asdict(job) | {"ranks": job.ranks, "hosts": {name: list(slots) for name, slots in job.hosts}}
    del found["failed_rank"], found["lost_host"]  # `reason` has them, for people
    return found


def _row(job: JobStatus) -> tuple[str, ...]:
    command = shlex.join(job.command)
    started = datetime.fromtimestamp(job.started).strftime("%m-%d %H:%M") if job.started else ""
    return (
        job.id,
        job.owner,
        job.state,
        "" if job.exit_code is None else str(job.exit_code),
        str(job.ranks),
        ",".join(name for name, _ in job.hosts),
        started,
        length(job.ended - job.started) if job.ended else "",
        command if len(command) <= _COMMAND else f"{command[: _COMMAND - 1]}…",
        job.reason or (f"started again after: {job.restarts[-1]}" if job.restarts else ""),
    )


def length(seconds: float) -> str:
    """Return a length of time in its two greatest units.

    >>> length(7.04), length(3725), length(200000)
    ('7.0 s', '1 h 2 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
