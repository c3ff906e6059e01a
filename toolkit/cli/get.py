"""toolkit get: download files that a job wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from toolkit.cli import complete
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    connect,
    put_json,
    put_text,
    say,
)
from toolkit.cli.line import CommandLine
from toolkit.cli.progress import Progress
from toolkit.cluster.session import Session
from toolkit.core.disk_space import size
from toolkit.core.local_writer import Destination, destination
from toolkit.core.printable import counted, printable_line
from toolkit.errors import ToolkitError
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import choose_hosts, is_file
from toolkit.jobs.get import (
    Found,
    Got,
    NoFolder,
    NoSuchFile,
    Skipped,
    bring,
    check_local,
    default_folder,
    find_files,
    with_earlier_jobs,
)
from toolkit.jobs.records import job_status, known_jobs, newest_job
from toolkit.jobs.status import JobStatus
from toolkit.plan.execute import StepProgress
from toolkit.protocol.names import JOBS, job_word
from toolkit.remote.fanout import fan_out


def get(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="File, folder or pattern: relative to the working directory of the job, "
            "or absolute in the container",
        ),
    ],
    job: Annotated[
        str,
        typer.Option(
            metavar="JOB",
            help="ID of a job, or the last part of the ID (default: the newest job)",
            autocompletion=complete.jobs,
        ),
    ] = "",
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST", help="Download from HOST (default: the main host)", autocompletion=complete.hosts
        ),
    ] = "",
    everywhere: Annotated[
        bool,
        typer.Option(
            "--all-hosts", help="Download from every host, and write the files of each host to DIR/HOST/"
        ),
    ] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIR", help="Local folder (default: ./runs/JOB)")
    ] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace local files that differ from the files on the host (default: if a local file "
            "differs, download nothing)",
        ),
    ] = False,
    keep_modes: Annotated[
        bool,
        typer.Option(
            "--keep-modes", help="Keep the execute permission of files (default: remove this permission)"
        ),
    ] = False,
    hosts: HostsFile = DEFAULT_HOSTS,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Download files that a job wrote.

    `toolkit get` skips files that exist locally with the same size and modification time. You can download
    files of a running job.

    - `toolkit get` skips unchanged files that toolkit sent as code, unless you pass their exact names.
    - toolkit does not send the folder ./runs to the hosts as code, unless ./runs contains __init__.py. If
      you download to another folder of the project, add the folder to .toolkitignore to exclude the
      downloaded files from the code.
    - `toolkit get` follows a symbolic link only if PATH names the link. `toolkit get` creates a symbolic
      link only if the link points to a file or folder inside the local folder.

    Examples:
        toolkit get checkpoints
        toolkit get "logs/*.csv" --job a1b2 --output results
        toolkit get --all-hosts profile.json
    """
    line = CommandLine()
    inventory = line.hosts(hosts)
    _check(line, inventory, paths, job, host, everywhere, output)
    inventory = line.accept(inventory)
    names = list(inventory.names) if everywhere else [host or inventory.main]
    queried = list(dict.fromkeys((*inventory.answering, *names)))
    with connect(inventory, verbose, queried) as session:
        session.require_some()
        wanted = _wanted(session, job)
        into = destination(output) if output else default_folder(wanted)
        places = {name: into.folder(name) if everywhere else into for name in names}
        try:
            found, errors = _find(session, wanted, paths, places)
        except (NoFolder, NoSuchFile) as error:
            if job:
                raise
            options = ["--all-hosts"] if everywhere else ["--host", host] if host else []
            raise with_earlier_jobs(error, known_jobs(session), wanted, [*options, *paths]) from error
        if everywhere and found:
            # A job does not run on every host or write the same files on each.
            errors = {name: error for name, error in errors.items() if not _is_absence(error)}
        if not dry_run:
            got, failed = _bring(session, found, force, verbose, keep_modes)
            errors |= failed
    if dry_run:
        _show_found(wanted, found, errors, as_json)
    else:
        _show_got(wanted, got, errors, as_json)
    if errors:
        raise typer.Exit(1)


def bring_logs(session: Session, job: JobStatus, into: Destination, verbose: bool) -> None:
    """Download a job's complete logs to JOB/HOST below a folder; download logs that grew again.

    Raises:
        ToolkitError: no host sent a log.
    """
    folder = JOBS / job.id
    known = session.inventory.names
    names = dict.fromkeys((session.inventory.main, *dict(job.hosts), *job.former_hosts))
    places = {name: into.folder(job.id, name) for name in names if name in known}

    def find(name: str) -> Found:
        # Only main has the merged log, or each host has its own.
        merged = [str(folder / "output.log*")] if name in session.inventory.answering else []
        return find_files(session, name, job.id, [str(folder / "logs"), *merged], places[name])

    found, errors = fan_out(places, find)
    if not found:
        raise next(iter(errors.values()))
    errors = {name: error for name, error in errors.items() if not _is_absence(error)}
    for name in names:
        if name not in known:  # main reports the hosts of the job; an unknown name is not used as a folder
            what = f"job {job.id} ran on {name!a}, which is not in hosts.yaml"
            errors[name] = ToolkitError(what, "add the host to hosts.yaml")
    got, failed = _bring(session, found, True, verbose)
    _show_got(job.id, got, errors | failed, False)
    if errors or failed:
        raise typer.Exit(1)


def _check(
    line: CommandLine,
    inventory: Inventory | None,
    paths: list[str],
    job: str,
    host: str,
    everywhere: bool,
    output: str,
) -> None:
    if host and everywhere:
        line.refuse("--host", "cannot be combined with --all-hosts")
    if inventory and host:
        line.read(choose_hosts, inventory, [host], [])
    if job:
        line.value("--job", job_word, job)
    if not all(paths) or any("\0" in path for path in paths):
        line.refuse("PATH", "is empty or contains a NUL byte")
    if "\0" in output or is_file(Path(output)):
        line.refuse("--output", f"should be a folder, found {output!r}")


def _wanted(session: Session, job: str) -> str:
    """Return the id of the job; if main does not answer, the id as given, because other hosts have files."""
    if job and not any(name in session.facts for name in session.inventory.answering):
        return job
    return (job_status(session, job) if job else newest_job(session)).id


def _find(
    session: Session, job: str, paths: list[str], places: dict[str, Destination]
) -> tuple[dict[str, Found], dict[str, ToolkitError]]:
    found, errors = fan_out(places, lambda name: find_files(session, name, job, paths, places[name]))
    if not found:
        raise next(iter(errors.values()))
    return found, errors


def _is_absence(error: ToolkitError) -> bool:
    return isinstance(error, (NoFolder, NoSuchFile))


def _bring(
    session: Session, found: dict[str, Found], force: bool, verbose: bool, keep_modes: bool = False
) -> tuple[dict[str, Got], dict[str, ToolkitError]]:
    check_local(tuple(found.values()), force)
    with Progress(verbose) as listener:

        def one(name: str) -> Got:
            return bring(
                session,
                found[name],
                lambda done, total: listener(StepProgress(name, "get", done, total)),
                keep_modes,
            )

        try:
            return fan_out(found, one)
        except KeyboardInterrupt:
            session.close()  # ends all transfers; partial files are removed
            raise


def _show_found(job: str, found: dict[str, Found], errors: dict[str, ToolkitError], as_json: bool) -> None:
    if as_json:
        rows = [
            {"host": name, "into": str(one.into.path), "files": [f.name for f in one.new], "bytes": one.size}
            | {"there": one.there, "differs": [f.name for f in one.differs]}
            | {"blocked": list(one.blocked), "skipped": [asdict(link) for link in one.skipped]}
            for name, one in found.items()
        ]
        put_json({"job": job, "dry_run": True, "hosts": rows + _failed(errors)})
        return
    for name, one in found.items():
        there = f"; {one.there} already downloaded" if one.there else ""
        files = f"{counted(len(one.new), 'file')} ({size(one.size)})"
        put_text(f"{name}: would download {files} to {one.into.path}{there}")
        differs = set(one.differs)
        for coming in one.new:
            mark = "  (differs from the local file)" if coming in differs else ""
            put_text(f"  {printable_line(coming.name)}{mark}")
        for reason in one.blocked:
            put_text(f"  {printable_line(reason)}")
        _say_skipped(name, one.skipped)
    _say(errors)


def _show_got(job: str, got: dict[str, Got], errors: dict[str, ToolkitError], as_json: bool) -> None:
    if as_json:
        rows: list[dict[str, Any]] = [asdict(one) for one in got.values()]
        put_json({"job": job, "ok": not errors, "hosts": rows + _failed(errors)})
        return
    for one in got.values():
        there = f"; {one.there} already downloaded" if one.there else ""
        files = f"{counted(one.files, 'file')} ({size(one.bytes)})"
        say(f"{one.host}: downloaded {files} of job {job} to {one.into}{there}")
        _say_skipped(one.host, one.skipped)
    _say(errors)


def _say_skipped(host: str, skipped: Sequence[Skipped]) -> None:
    for one in skipped:
        say(f"  {host}: skipped {one.name!a}: {one.reason}")


def _say(errors: dict[str, ToolkitError]) -> None:
    for error in errors.values():
        say(str(error))


def _failed(errors: dict[str, ToolkitError]) -> list[dict[str, Any]]:
    return [{"host": name, "error": error.what, "fix": error.fix} for name, error in errors.items()]
