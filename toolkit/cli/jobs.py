"""toolkit logs and stop: a job's output, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    connect,
    load,
    put_json,
    say,
    to_stdout,
)

if TYPE_CHECKING:
    from toolkit.api import Session
    from toolkit.jobs import Status

Job = Annotated[str, typer.Argument(metavar="[JOB]", help="A job's id; the newest one if absent.")]


def logs(
    job: Job = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    follow_on: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Until the job has ended.")
    ] = True,
    verbose: Verbose = False,
) -> None:
    """Print a job's merged output from its beginning; Ctrl-C leaves the job alone."""
    from toolkit.jobs import follow, log_text

    inventory = load(hosts)
    with connect(inventory, verbose, [inventory.main]) as session:
        wanted = _wanted(session, job)
        if wanted.state == "lost":
            say(f"job {wanted.id}: lost; main went down under it, and this is what it had said until then")
        elif not job:
            say(f"job {wanted.id}: {wanted.state}")
        try:
            if follow_on and not wanted.final:
                follow(session, wanted.id, to_stdout)
            else:
                log_text(session, wanted.id, to_stdout)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def stop(
    job: Job = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """End a job on every host, and only that job."""
    from dataclasses import asdict

    from toolkit.jobs import stop as stop_job

    inventory = load(hosts)
    with connect(inventory, verbose, [inventory.main]) as session:
        wanted = _wanted(session, job)
        ending = not wanted.final or wanted.state == "lost"
        ended = stop_job(session, wanted.id) if ending and not dry_run else wanted
    if as_json:
        put_json(asdict(ended) | ({"dry_run": True} if dry_run else {}))
    elif dry_run:
        say(f"job {wanted.id}: {wanted.state}; " + ("would be ended" if ending else "nothing to end"))
    else:
        say(f"job {ended.id}: {ended.state}" + (" already" if ended is wanted else ""))


def _wanted(session: Session, job: str) -> Status:
    """The job of that id, or the one that started last."""
    from toolkit.jobs import newest, status

    session.require_some()
    return status(session, job) if job else newest(session)
