"""toolkit check: what would stop a job, told before it does, with the command that cures it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.cli import complete
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    connect,
    load,
    put_json,
    put_text,
    say,
    trace,
)
from toolkit.cli.progress import Progress

if TYPE_CHECKING:
    from toolkit.core.report import Report
    from toolkit.hostsfile.inventory import Inventory
    from toolkit.plan.steps import Plan


def check(
    hosts: HostsFile = DEFAULT_HOSTS,
    only: Annotated[
        list[str],
        typer.Option(
            "--only",
            metavar="CHECK[,CHECK]",
            help="These checks alone; repeatable.",
            autocompletion=complete.check_list,
        ),
    ] = [],  # noqa: B006
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failures.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Remove what earlier clusters and jobs of ours left there.")
    ] = False,
    dry_run: DryRun = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Start no containers: what only they can see is not checked.")
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Look for what would stop, spoil or slow a job, and change nothing (but see --fix); 1 means an error."""
    from dataclasses import asdict

    from toolkit.checks.run import choose_checks, look
    from toolkit.cli.line import listed
    from toolkit.core.finding import worst
    from toolkit.plan.show import findings_text, plan_text, report_text

    inventory = load(hosts)
    findings = look(inventory, choose_checks(listed(only)), trace if verbose else None, quick)
    verdict = worst(findings)
    if not as_json:
        put_text(findings_text(findings, inventory.names, everything=verbose))
    plan, report = _fix(inventory, dry_run, verbose) if fix else (None, None)
    planned = plan_text(plan, inventory.engine) if plan is not None else ""
    if as_json:
        result: dict[str, Any] = {"cluster": inventory.cluster, "verdict": verdict}
        result["findings"] = [asdict(finding) for finding in findings]
        if plan is not None:
            result["fix"] = report.as_json() if report else {"plan": planned.splitlines()}
        put_json(result)
    elif report is not None:
        say(report_text(report))
    elif plan is not None:
        put_text(planned)
    failed = report is not None and not report.ok
    if failed or verdict == "error" or (strict and verdict == "warning"):
        raise typer.Exit(1)


def _fix(inventory: Inventory, dry_run: bool, verbose: bool) -> tuple[Plan, Report | None]:
    """Look once more, and remove what is left; only plan it when ``dry_run``."""
    from toolkit.checks.preflight import questions
    from toolkit.cleanup.gc import leftovers_plan

    with connect(inventory, verbose, questions=questions()) as session:
        plan = leftovers_plan(session)
        if dry_run:
            return plan, None
        with Progress(verbose) as listener:
            return plan, session.execute(plan, listener)
