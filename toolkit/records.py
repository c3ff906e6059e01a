"""What main knows of the cluster's jobs: their records and how they stand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.api import Session
from toolkit.core.command import Command
from toolkit.core.job_status import JobStatus, parse_status
from toolkit.core.names import JOBS
from toolkit.effects.runner import Runner
from toolkit.errors import NotReady, ToolkitError
from toolkit.inputs import inside_programs
from toolkit.launchers.slots import Taken


def known_jobs(session: Session) -> list[JobStatus]:
    """Return the jobs that main knows, oldest first.

    Raises:
        NotReady: main does not run.
    """
    return _ask(session.main)


def job_statuses(session: Session) -> list[JobStatus]:
    """Return the same, but none when main does not run."""
    try:
        main = session.main
    except (ToolkitError, KeyError):
        return []
    # Only the jobs of this toolkit's own are asked for in this way: `run` goes on with no others.
    answer = session.desks.ask(session.inventory.main, {"do": "jobs"})
    return _parse(answer["jobs"]) if "jobs" in answer else _ask(main)


def job_status(session: Session, job: str) -> JobStatus:
    """Return one job.

    Raises:
        NotReady: main knows no such job, or does not run.
    """
    known = _ask(session.main)
    for one in known:
        if one.id == job:
            return one
    # The last part of an id is enough where it is the only one of that kind.
    ends = [one for one in known if one.id.endswith(f"-{job}")]
    if len(ends) == 1:
        return ends[0]
    raise NotReady(f"there is no job {job}", "toolkit jobs lists them")


def newest_job(session: Session, running: bool = False) -> JobStatus:
    """Return the job that started last.

    Args:
        running: of those that have not ended, if there is one.

    Raises:
        NotReady: none has ever run, or main does not run.
    """
    known = _ask(session.main)
    if not known:
        raise NotReady("no job has run on this cluster", "toolkit run SCRIPT")
    return next((one for one in reversed(known) if running and not one.final), known[-1])


def taken_slots(jobs: Sequence[JobStatus]) -> tuple[Taken, ...]:
    """Return what the jobs that run have taken."""
    return tuple(Taken(job.id, job.owner, dict(job.hosts)) for job in jobs if not job.final)


def _ask(main: Runner) -> list[JobStatus]:
    listing = inside_programs()["listing.py"]
    result = main.run(Command(("python3", "-", str(JOBS)), listing.encode()), 30)
    if not result.ok:
        raise ToolkitError(f"main does not say which jobs it has: {result.output}", "toolkit status -v")
    return _parse(json.loads(result.stdout.strip().splitlines()[-1]))


def _parse(rows: Sequence[Mapping[str, Any]]) -> list[JobStatus]:
    known = [parse_status(row["id"], row["status"], row["alive"], row["record"] or {}) for row in rows]
    return sorted(known, key=lambda s: s.started)
