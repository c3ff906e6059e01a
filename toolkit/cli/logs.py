"""toolkit logs: print the output of a job or a service."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

import typer

from toolkit.cli import complete
from toolkit.cli.chosen_job import Job, read_job, say_lost, wanted_job
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    HostsFile,
    LineCollapser,
    Raw,
    Verbose,
    connect,
    rank_output,
    say,
)
from toolkit.cli.get import bring_logs
from toolkit.cli.line import CommandLine
from toolkit.core.local_writer import destination
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import is_file
from toolkit.jobs.logs import Excerpt, show_log
from toolkit.protocol.host_list import host_list
from toolkit.services.control import show_log as show_service_log

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTH = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_MOST = 1e9


def logs(
    job: Job = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    follow_on: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Follow the output until the job or the rank finishes, or the service stops",
        ),
    ] = False,
    rank: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Print the log of rank N, without the host and rank prefix on each line"
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST", help="Print only the output of the ranks on HOST", autocompletion=complete.hosts
        ),
    ] = "",
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Print only output after TIME, such as 10m (10 minutes ago) or 2026-11-21T09:30 (in the "
            "time zone of your machine)",
        ),
    ] = "",
    tail: Annotated[
        str | None, typer.Option(metavar="LINES", help="Print only the last LINES lines (default: all)")
    ] = None,
    fold: LineCollapser = True,
    raw: Raw = False,
    save: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Download the job log and the log of every rank to one folder per host, DIR/JOB/HOST",
        ),
    ] = "",
    service: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Print the output of a service instead of a job",
            autocompletion=complete.services,
        ),
    ] = "",
    verbose: Verbose = False,
) -> None:
    """Print the output of a job, a rank or a service.

    By default, toolkit prints the output of all ranks of the newest job. Ctrl-C stops `toolkit logs`, but not
    the job or the service.

    Examples:
        toolkit logs
        toolkit logs a1b2 --rank 3 --tail 100
        toolkit logs --follow --since 10m
        toolkit logs --service tensorboard
    """
    line = CommandLine()
    read_job(line, job)
    number = line.whole("--rank", rank, least=0)
    lines = line.whole("--tail", tail, least=0)
    ago, epoch = (line.value("--since", moment, since) if since else None) or (None, None)
    inventory = line.hosts(hosts)
    if host and rank is not None:
        line.refuse("--host", "cannot be combined with --rank")
    if save and ("\0" in save or is_file(save)):
        line.refuse("--save", f"should be a folder, found {save!r}")
    if save:
        excerpt = {"--rank": rank, "--host": host, "--since": since, "--tail": tail, "--follow": follow_on}
        for option, given in excerpt.items():
            if given:
                line.refuse(option, "cannot be combined with --save, which downloads all logs")
    if inventory is not None and host and host not in inventory.names:
        line.refuse("--host", f"{host} is not a host in hosts.yaml, which lists {host_list(inventory.names)}")
    if service:
        for option, given in {"JOB": job, "--rank": rank, "--host": host, "--save": save}.items():
            if given:
                line.refuse(option, "cannot be combined with --service")
        if inventory is not None and service not in (known := [each.name for each in inventory.services]):
            there = f"the services are {', '.join(known)}" if known else "the file has no services"
            line.refuse("--service", f"{service} is not a service in hosts.yaml; {there}")
        words = [*(["--follow"] if follow_on else []), *(["--tail", str(lines)] if lines is not None else [])]
        if ago is not None:
            words += ["--since", f"{ago:.0f}s"]
        elif epoch is not None:
            words += ["--since", f"{epoch:.3f}"]
        _service_log(line.accept(inventory), service, words, raw, verbose)
        return
    inventory = line.accept(inventory)
    what = Excerpt(number, host, ago, epoch, lines, fold and number is None)
    names = list(inventory.names) if number is not None or save else list(inventory.answering)
    with connect(inventory, verbose, names) as session:
        wanted = wanted_job(session, job)
        if save:
            bring_logs(session, wanted, destination(save), verbose)
            return
        say_lost(wanted)
        if not job:
            say(f"job {wanted.id}: {wanted.state}")
        try:
            show_log(session, wanted, rank_output(raw), what, follow_on and not wanted.final)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _service_log(inventory: Inventory, name: str, words: list[str], raw: bool, verbose: bool) -> None:
    service = inventory.service(name)
    with connect(inventory, verbose, [service.host]) as session:
        try:
            show_service_log(session, service, rank_output(raw), words)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def moment(text: str) -> tuple[float | None, float | None]:
    """Return the value of ``--since`` as seconds ago, or as seconds since the epoch; the other is None.

    A duration counts back on the clock of the host that has the log. A time is in this machine's time zone.

    >>> moment("1h30m"), moment("1970-01-02T00:00:00Z")
    ((5400.0, None), (None, 86400.0))

    Raises:
        ValueError: the text is neither a duration nor a time.
    """
    if _LENGTH.fullmatch(text):
        seconds = sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([\d.]+)([smhd])", text))
        if seconds <= _MOST:
            return seconds, None
    try:
        at = datetime.fromisoformat(re.sub("Z$", "+00:00", text))
        return None, at.timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    raise ValueError(
        f"should be a duration such as 90s, 10m or 1h30m, or a time such as 2026-11-21T09:30, found {text!r}"
    )
