"""toolkit gc: remove what earlier, dead runs left on the hosts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

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
from toolkit.cli.plans import exit_with, show_plans
from toolkit.cli.progress import Progress

if TYPE_CHECKING:
    from toolkit.cleanup.plan import State


def gc(
    hosts: HostsFile = DEFAULT_HOSTS,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="DAYS", help="Also the folders of jobs that ended longer ago than this."),
    ] = None,
    state: Annotated[
        bool,
        typer.Option("--state", help="Also keys and job records of clusters that have no container there."),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Remove what dead runs of yours left on the hosts, of whatever cluster; running jobs stay."""
    from dataclasses import asdict

    from toolkit.cleanup.gc import collect, questions
    from toolkit.cli.line import CommandLine
    from toolkit.plan.show import report_text

    line = CommandLine()
    days = line.whole("--older-than", older_than, least=0)
    inventory = line.accept(line.hosts(hosts))
    asking = sys.stdin.isatty() and sys.stderr.isatty() and not (dry_run or as_json)
    with connect(inventory, verbose, questions=questions()) as session:
        session.require_some()
        found = collect(session, days, state, _ask if asking else lambda state: False)
        kept = {"kept": [asdict(one) for one in found.kept]}
        if not as_json:
            for one in found.kept:
                say(f"    stays  {one.host}: {one.what}: {one.why}\n           fix: {one.fix}")
        if dry_run:
            show_plans(session, (found.plan,), as_json, kept)
            return
        with Progress(verbose) as listener:
            for outcome in session.connect_outcomes():
                listener.outcome(outcome)
            report = session.execute(found.plan, listener)
    if as_json:
        put_json(report.as_json() | kept)
    else:
        say(report_text(report))
    exit_with(report)


def _ask(state: State) -> bool:
    """A person says whether a cluster's folder goes; no is what Enter means."""
    from toolkit.cleanup.remains import jobs_text

    holds = f"its keys and {jobs_text(state.records)}" if state.records else "its keys"
    what = f"{state.host}: cluster {state.cluster} has no container there. Remove {holds} ({state.path})?"
    return confirm(what)
