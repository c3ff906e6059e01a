"""toolkit jobs, attach, wait and stop: list, follow, await and stop jobs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from toolkit.api.job import ClusterJob
from toolkit.cli.chosen_job import RunningJob, read_job, say_lost, wanted_job
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    LineCollapser,
    OnInterrupt,
    Raw,
    Verbose,
    connect,
    connection_of,
    load,
    put_json,
    put_text,
    rank_output,
    say,
)
from toolkit.cli.line import CommandLine
from toolkit.cli.signals import Signals
from toolkit.cli.watch import ON_INTERRUPT, watch
from toolkit.core.printable import counted
from toolkit.jobs.control import stop as stop_job
from toolkit.jobs.id_cache import remember_jobs
from toolkit.jobs.logs import Excerpt
from toolkit.jobs.records import known_jobs
from toolkit.jobs.status import JobStatus, job_json, jobs_table

_SHOWN = 20


def jobs(
    hosts: HostsFile = DEFAULT_HOSTS,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            "-a",
            help=f"List all jobs, as --json does (default: the newest {_SHOWN}, and all running jobs)",
        ),
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the jobs of the cluster.

    For each listed job, toolkit prints the id, user, state, hosts, start time and exit code. The newest job
    is last.

    Examples:
        toolkit jobs
        toolkit jobs --all --json
    """
    inventory = load(hosts)
    with connect(inventory, verbose, inventory.answering) as session:
        session.require_some()
        known = known_jobs(session)
    remember_jobs(inventory.cluster, [job.id for job in reversed(known)])
    if as_json:
        put_json([job_json(job) for job in known])
        return
    shown = [job for index, job in enumerate(known) if every or not job.final or index >= len(known) - _SHOWN]
    if len(shown) < len(known):
        older = counted(len(known) - len(shown), "older job")
        say(f"not listed: {older}; to list all jobs: toolkit jobs --all")
    put_text(jobs_table(shown)) if shown else say("this cluster has no jobs")


def attach(
    job: RunningJob = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    tail: Annotated[
        str, typer.Option(metavar="LINES", help="Number of earlier lines of output to print first")
    ] = "50",
    on_interrupt: OnInterrupt = "ask",
    fold: LineCollapser = True,
    raw: Raw = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Follow the output of a running job, as `toolkit run` does.

    After the end of the job, `toolkit attach` exits with the exit code of the job. By default, after Ctrl-C
    on a terminal, toolkit asks whether to stop the job, to detach or to continue.

    Examples:
        toolkit attach
        toolkit attach a1b2 --tail 200
    """
    line = CommandLine()
    read_job(line, job)
    line.one_of("--on-interrupt", on_interrupt, ON_INTERRUPT)
    lines = line.whole("--tail", tail, least=0)
    inventory = line.accept(line.hosts(hosts))
    with Signals() as signals, connect(inventory, verbose, inventory.answering) as session:
        wanted = wanted_job(session, job, running=True)
        say_lost(wanted)
        if not job:
            say(f"job {wanted.id}: {wanted.state}")
        sink = None if as_json else rank_output(raw)
        ended = watch(session, wanted.id, signals, Excerpt(tail=lines, fold=fold), on_interrupt, sink)
    _exit(ended, as_json)


def wait(
    job: RunningJob = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS",
            help="If the job still runs after SECONDS, exit with code 3; the job continues (default: no "
            "time limit)",
        ),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Wait until a job ends, and print only its result.

    After the end of the job, `toolkit wait` exits with the exit code of the job.

    Examples:
        toolkit wait
        toolkit wait a1b2 --timeout 3600
    """
    line = CommandLine()
    read_job(line, job)
    seconds = line.seconds("--timeout", timeout)
    inventory = line.accept(line.hosts(hosts))
    ended = ClusterJob(connection_of(inventory, verbose), job).wait(seconds, running=True)
    if not as_json:
        say(f"job {ended.id}: {ended.state}" + (f": {ended.reason}" if ended.reason else ""))
    _exit(ended, as_json)


def stop(
    job: RunningJob = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    grace: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Time between SIGTERM and SIGKILL (default: 10 s)")
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Kill all ranks immediately, without SIGTERM")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Stop a job on every host.

    Without --now, toolkit sends SIGTERM to the ranks, and SIGKILL to ranks that still run after the grace
    period. Other jobs continue.

    Examples:
        toolkit stop
        toolkit stop a1b2 --grace 60
    """
    line = CommandLine()
    read_job(line, job)
    seconds = line.seconds("--grace", grace, least=0)
    if now and grace is not None:
        line.refuse("--now", "cannot be combined with --grace")
    inventory = line.accept(line.hosts(hosts))
    with connect(inventory, verbose, inventory.answering) as session:
        wanted = wanted_job(session, job, running=True)
        ending = not wanted.final or wanted.state in ("lost", "unknown")
        ended = wanted
        if ending and not dry_run:
            ended = stop_job(session, wanted.id, grace=0.0 if now else seconds)
    if as_json:
        put_json(job_json(ended) | ({"dry_run": True} if dry_run else {}))
    elif dry_run:
        say(f"job {wanted.id}: {wanted.state}; " + ("would be stopped" if ending else "nothing to stop"))
    else:
        say(f"job {ended.id}: {ended.state}" + (" already" if ended is wanted else ""))


def _exit(job: JobStatus, as_json: bool) -> None:
    if as_json:
        result: dict[str, Any] = {
            "job": job.id,
            "state": job.state,
            "exit_code": job.exit_code,
            "from": "job",
        }
        put_json(result)
    raise typer.Exit(job.exit_code if job.exit_code is not None else 1)
