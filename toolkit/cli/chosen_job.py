"""The job that a command line means: its id, the last part of it, or the newest one."""

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
        help="A job's id, or the last part of it; the newest one if absent.",
        autocompletion=complete.jobs,
    ),
]


def read_job(line: CommandLine, job: str) -> None:
    """Note what is wrong with the word for a job."""
    if job:
        line.value("JOB", job_word, job)


def wanted_job(session: Session, job: str, running: bool = False) -> JobStatus:
    """The job of that id, or the one that started last, ``running`` ones first."""
    session.require_some()
    return job_status(session, job) if job else newest_job(session, running)


def say_lost(job: JobStatus) -> None:
    """Say that what is shown of a job is all that there will be."""
    if job.state == "lost":
        say(f"job {job.id}: lost; main went down under it, and this is what it had said until then")
