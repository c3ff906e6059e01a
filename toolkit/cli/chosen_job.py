"""The job that a command line names: by its id, the last part of the id, or as the newest job."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkit.cli import complete
from toolkit.cli.common import say
from toolkit.cli.line import CommandLine
from toolkit.cluster.session import Session
from toolkit.jobs.records import job_status, newest_job
from toolkit.jobs.status import JobStatus
from toolkit.protocol.names import job_word

Job = Annotated[
    str,
    typer.Argument(
        metavar="[JOB]",
        help="ID of a job, or the last part of the ID (default: the newest job)",
        autocompletion=complete.jobs,
    ),
]
RunningJob = Annotated[
    str,
    typer.Argument(
        metavar="[JOB]",
        help="ID of a job, or the last part of the ID (default: the newest running job; if no job runs, "
        "the newest job)",
        autocompletion=complete.jobs,
    ),
]


def read_job(line: CommandLine, job: str) -> None:
    """Collect problems of the word that names a job."""
    if job:
        line.value("JOB", job_word, job)


def wanted_job(session: Session, job: str, running: bool = False) -> JobStatus:
    """Return the job of that id, or the newest job; ``running`` prefers jobs that run."""
    session.require_some()
    return job_status(session, job) if job else newest_job(session, running)


def say_lost(job: JobStatus) -> None:
    """Print that a lost job will have no more output."""
    if job.state == "lost":
        say(
            f"job {job.id}: lost, because the supervisor or the main container stopped; "
            "the output of the job might be incomplete"
        )
