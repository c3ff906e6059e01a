"""toolkit gc: remove the leftovers of dead runs from the hosts."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from toolkit.cleanup.gc import Collection, collect, questions
from toolkit.cleanup.plan import State
from toolkit.cleanup.remains import jobs_text
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    confirm,
    connect,
    put_json,
    say,
)
from toolkit.cli.line import CommandLine
from toolkit.cli.plans import exit_with, show_plans
from toolkit.cli.progress import Progress
from toolkit.cluster.session import Session
from toolkit.core.report import Report
from toolkit.plan.show import report_text


def gc(
    hosts: HostsFile = DEFAULT_HOSTS,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="DAYS",
            help="For the cluster in hosts.yaml, also remove the folders of jobs that ended more than DAYS "
            "days ago",
        ),
    ] = None,
    state: Annotated[
        bool,
        typer.Option(
            "--state", help="Also remove SSH keys and job records of clusters without a container on the host"
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Remove leftovers of interrupted runs from the hosts.

    `toolkit gc` removes leftover processes, containers and files of all your clusters on the hosts, except
    containers and files of clusters whose state_dir differs from the state_dir in hosts.yaml. `toolkit gc`
    does not stop running jobs. `toolkit gc` removes nothing that belongs to other users, except layers of
    interrupted image transfers. `toolkit gc` removes the state directory of a cluster (SSH keys and job
    records) only if the host has no container of the cluster. If a state directory contains job records, or
    changed in the last hour, `toolkit gc` removes the directory only with --state, or after you confirm on a
    terminal.

    Examples:
        toolkit gc --dry-run
        toolkit gc --older-than 30
    """
    line = CommandLine()
    days = line.whole("--older-than", older_than, least=0)
    inventory = line.accept(line.hosts(hosts))
    with connect(inventory, verbose, questions=questions()) as session:
        session.require_some()
        found, report = remove_leftovers(session, days, state, dry_run, as_json, verbose)
        kept = {"kept": [asdict(one) for one in found.kept]}
        if report is None:
            show_plans(session, (found.plan,), as_json, kept)
            return
    if as_json:
        put_json(report.as_json() | kept)
    else:
        say(report_text(report))
    exit_with(report)


def remove_leftovers(
    session: Session, days: float | None, state: bool, dry_run: bool, as_json: bool, verbose: bool
) -> tuple[Collection, Report | None]:
    """Find leftovers and remove them; the report is None for a dry run.

    Args:
        session: opened with ``toolkit.cleanup.gc.questions()``.
        days, state: see ``toolkit.cleanup.gc.collect``.
    """
    asking = sys.stdin.isatty() and sys.stderr.isatty() and not (dry_run or as_json)
    found = collect(session, days, state, _ask if asking else lambda state: False)
    if not as_json:
        for one in found.kept:
            say(f"    kept   {one.host}: {one.what}: {one.why}\n           fix: {one.fix}")
    if dry_run:
        return found, None
    with Progress(verbose) as listener:
        for outcome in session.connect_outcomes():
            listener.outcome(outcome)
        return found, session.execute(found.plan, listener)


def _ask(state: State) -> bool:
    """Ask the user whether to remove the folder of a cluster; Enter means no."""
    holds = f"the SSH keys and {jobs_text(state.records)}" if state.records else "the SSH keys"
    what = f"{state.host}: the host has no container of cluster {state.cluster}"
    return confirm(f"{what}. Remove {holds} ({state.path})?")
