"""toolkit jobs, attach, logs, wait and stop: what has run, what it says, and its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.cli import complete
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    Fold,
    HostsFile,
    Json,
    OnInterrupt,
    Verbose,
    connect,
    load,
    put_json,
    say,
    to_stdout,
)

if TYPE_CHECKING:
    from toolkit.api import Session
    from toolkit.cli.line import CommandLine
    from toolkit.core.job_status import JobStatus
    from toolkit.spec.inventory import Inventory

Job = Annotated[
    str, typer.Argument(metavar="[JOB]", help="A job's id, or the last part of it; the newest one if absent.")
]
_SHOWN = 20


def jobs(
    hosts: HostsFile = DEFAULT_HOSTS,
    every: Annotated[bool, typer.Option("--all", "-a", help=f"Not only the last {_SHOWN}.")] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the cluster's jobs, newest last: whose, how they stand, where, since when, how they ended."""
    from toolkit.records import known_jobs
    from toolkit.show_jobs import job_json, jobs_table

    inventory = load(hosts)
    with connect(inventory, verbose, [inventory.main]) as session:
        session.require_some()
        known = known_jobs(session)
    if as_json:
        put_json([job_json(job) for job in known])
        return
    shown = [job for index, job in enumerate(known) if every or not job.final or index >= len(known) - _SHOWN]
    if len(shown) < len(known):
        say(f"{len(known) - len(shown)} older ones: toolkit jobs --all")
    print(jobs_table(shown), end="") if shown else say("no job has run on this cluster")


def attach(
    job: Job = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    tail: Annotated[str, typer.Option(metavar="LINES", help="How many lines of before to show.")] = "50",
    on_interrupt: OnInterrupt = "ask",
    fold: Fold = True,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Watch a running job as if `run` had never been left; ends with the job's exit code."""
    from toolkit.cli.line import CommandLine
    from toolkit.cli.signals import Signals
    from toolkit.cli.watch import ON_INTERRUPT, watch
    from toolkit.logs import Excerpt

    line = CommandLine()
    _read_job(line, job)
    line.one_of("--on-interrupt", on_interrupt, ON_INTERRUPT)
    lines = line.whole("--tail", tail, least=0)
    inventory = line.accept(line.hosts(hosts))
    with Signals() as signals, connect(inventory, verbose, [inventory.main]) as session:
        wanted = _wanted(session, job, running=True)
        _say_lost(wanted)
        if not job:
            say(f"job {wanted.id}: {wanted.state}")
        ended = watch(session, wanted.id, signals, Excerpt(tail=lines, fold=fold), on_interrupt, as_json)
    _exit(ended, as_json)


def logs(
    job: Job = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    follow_on: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    rank: Annotated[
        str | None, typer.Option(metavar="N", help="This rank's own log, whole, from its host.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(metavar="HOST", help="Only ranks on this host.", autocompletion=complete.hosts),
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="What came after: 10m, 1h30m, 2026-11-21T09:30.")
    ] = "",
    tail: Annotated[str | None, typer.Option(metavar="LINES", help="Only so many lines at the end.")] = None,
    fold: Fold = True,
    save: Annotated[
        str, typer.Option(metavar="DIR", help="Print nothing; bring every rank's whole log to DIR/JOB/HOST.")
    ] = "",
    service: Annotated[
        str,
        typer.Option(metavar="NAME", help="A service's output, no job's.", autocompletion=complete.services),
    ] = "",
    verbose: Verbose = False,
) -> None:
    """Print a job's output, merged of all ranks or of one, or a service's; Ctrl-C leaves it alone."""
    from toolkit.cli.get import bring_logs
    from toolkit.cli.line import CommandLine
    from toolkit.cli.moments import since as moment
    from toolkit.inputs import is_file
    from toolkit.logs import Excerpt, show_log

    line = CommandLine()
    _read_job(line, job)
    number = line.whole("--rank", rank, least=0)
    lines = line.whole("--tail", tail, least=0)
    ago, epoch = (line.value("--since", moment, since) if since else None) or (None, None)
    inventory = line.hosts(hosts)
    if host and rank is not None:
        line.refuse("--host", "says nothing beside --rank, which runs on one host")
    if save and ("\0" in save or is_file(save)):
        line.refuse("--save", f"{save!r} is not a folder")
    if inventory is not None and host and host not in inventory.names:
        line.refuse("--host", f"{host} is not a host of the file; there are: {', '.join(inventory.names)}")
    if service:
        for option, given in {"JOB": job, "--rank": rank, "--host": host, "--save": save}.items():
            if given:
                line.refuse(option, "is about jobs; leave it out beside --service")
        if inventory is not None and service not in (known := [each.name for each in inventory.services]):
            line.refuse("--service", f"{service} is not a service of the file; there are: {', '.join(known)}")
        words = [*(["--follow"] if follow_on else []), *(["--tail", str(lines)] if lines is not None else [])]
        words += ["--since", f"{ago:.0f}s" if ago else f"{epoch:.3f}"] if ago or epoch else []
        _service_log(line.accept(inventory), service, words, verbose)
        return
    inventory = line.accept(inventory)
    what = Excerpt(number, host, ago, epoch, lines, fold and number is None)
    names = list(inventory.names) if number is not None or save else [inventory.main]
    with connect(inventory, verbose, names) as session:
        wanted = _wanted(session, job)
        if save:
            bring_logs(session, wanted, Path(save), verbose)
            return
        _say_lost(wanted)
        if not job:
            say(f"job {wanted.id}: {wanted.state}")
        try:
            show_log(session, wanted, to_stdout, what, follow_on and not wanted.final)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _service_log(inventory: Inventory, name: str, words: list[str], verbose: bool) -> None:
    from toolkit.services import show_log

    service = inventory.service(name)
    with connect(inventory, verbose, [service.host]) as session:
        try:
            show_log(session, service, to_stdout, words)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def wait(
    job: Job = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    timeout: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Give up after so long, with 3; the job goes on.")
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Wait in silence until a job has ended; ends with the job's exit code."""
    from toolkit.cli.line import CommandLine
    from toolkit.errors import NotReady
    from toolkit.logs import wait_for_end

    line = CommandLine()
    _read_job(line, job)
    seconds = line.seconds("--timeout", timeout)
    inventory = line.accept(line.hosts(hosts))
    with connect(inventory, verbose, [inventory.main]) as session:
        wanted = _wanted(session, job, running=True)
        if not wanted.final and not wait_for_end(session, wanted.id, seconds):
            raise NotReady(f"{wanted.id} still runs after {seconds:g} s", f"toolkit attach {wanted.id}")
        ended = _wanted(session, wanted.id)
    if not as_json:
        say(f"job {ended.id}: {ended.state}" + (f": {ended.reason}" if ended.reason else ""))
    _exit(ended, as_json)


def stop(
    job: Job = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    grace: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="From SIGTERM to SIGKILL; 10 by default.")
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Kill it at once, without asking its ranks.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """End a job on every host, and only that job."""
    from toolkit.cli.line import CommandLine
    from toolkit.jobs import stop as stop_job
    from toolkit.show_jobs import job_json

    line = CommandLine()
    _read_job(line, job)
    seconds = line.seconds("--grace", grace, least=0)
    if now and grace is not None:
        line.refuse("--now", "is a grace of 0 already; leave --grace out")
    inventory = line.accept(line.hosts(hosts))
    with connect(inventory, verbose, [inventory.main]) as session:
        wanted = _wanted(session, job, running=True)
        ending = not wanted.final or wanted.state == "lost"
        ended = wanted
        if ending and not dry_run:
            ended = stop_job(session, wanted.id, grace=0.0 if now else seconds)
    if as_json:
        put_json(job_json(ended) | ({"dry_run": True} if dry_run else {}))
    elif dry_run:
        say(f"job {wanted.id}: {wanted.state}; " + ("would be ended" if ending else "nothing to end"))
    else:
        say(f"job {ended.id}: {ended.state}" + (" already" if ended is wanted else ""))


def _read_job(line: CommandLine, job: str) -> None:
    from toolkit.core.names import job_word

    if job:
        line.value("JOB", job_word, job)


def _wanted(session: Session, job: str, running: bool = False) -> JobStatus:
    """The job of that id, or the one that started last, ``running`` ones first."""
    from toolkit.records import job_status, newest_job

    session.require_some()
    return job_status(session, job) if job else newest_job(session, running)


def _say_lost(job: JobStatus) -> None:
    if job.state == "lost":
        say(f"job {job.id}: lost; main went down under it, and this is what it had said until then")


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
