"""toolkit check: find problems before they stop a job, and print a fix for each."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from toolkit.checks.run import choose_checks, run_checks
from toolkit.cleanup.gc import Collection, questions
from toolkit.cli import complete
from toolkit.cli.common import (
    COMMON,
    DEFAULT_HOSTS,
    HostsFile,
    Json,
    connect,
    load,
    put_json,
    put_text,
    say,
    trace,
)
from toolkit.cli.gc import remove_leftovers
from toolkit.cli.line import listed
from toolkit.core.finding import findings_text, worst
from toolkit.core.report import Report
from toolkit.hostsfile.inventory import Inventory
from toolkit.plan.show import plan_text, report_text


def check(
    hosts: HostsFile = DEFAULT_HOSTS,
    only: Annotated[
        list[str],
        typer.Option(
            "--check",
            metavar="ID[,ID]",
            help="Run only the listed checks (default: all checks)",
            autocompletion=complete.check_list,
        ),
    ] = [],  # noqa: B006
    strict: Annotated[
        bool, typer.Option("--strict", help="Also exit with 1 if a check finds a warning")
    ] = False,
    fix: Annotated[
        bool, typer.Option("--fix", hidden=True, help="Run `toolkit gc` after the checks")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", hidden=True, help="With --fix, print the plan of `toolkit gc` and remove nothing"
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the checks that run a test program in a container")
    ] = False,
    as_json: Json = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Also print passed and skipped checks, and every command that toolkit runs on hosts",
            rich_help_panel=COMMON,
        ),
    ] = False,
) -> None:
    """Find problems that would break, corrupt or slow a job.

    toolkit checks every host and prints a fix for each problem. `toolkit check` changes no host
    configuration. After the checks, toolkit removes the test containers, and the test files in all folders in
    which ranks can delete files. `toolkit check` exits with 1 if a check finds an error.

    Examples:
        toolkit check
        toolkit check --quick --strict
        toolkit check --check docker-version,clock --json
    """
    inventory = load(hosts)
    findings = run_checks(inventory, choose_checks(listed(only)), trace if verbose else None, quick)
    verdict = worst(findings)
    if not as_json:
        put_text(findings_text(findings, inventory.names, everything=verbose))
    found, report = _gc(inventory, dry_run, as_json, verbose) if fix else (None, None)
    planned = plan_text(found.plan, inventory.engine) if found is not None else ""
    if as_json:
        result: dict[str, Any] = {"cluster": inventory.cluster, "verdict": verdict}
        result["findings"] = [asdict(finding) for finding in findings]
        if found is not None:
            result["fix"] = report.as_json() if report else {"plan": planned.splitlines()}
            result["fix"]["kept"] = [asdict(one) for one in found.kept]
        put_json(result)
    elif report is not None:
        say(report_text(report))
    elif found is not None:
        put_text(planned)
    failed = report is not None and not report.ok
    if failed or verdict == "error" or (strict and verdict == "warning"):
        raise typer.Exit(1)


def _gc(
    inventory: Inventory, dry_run: bool, as_json: bool, verbose: bool
) -> tuple[Collection, Report | None]:
    """Remove leftovers, as `toolkit gc` does without options."""
    with connect(inventory, verbose, questions=questions()) as session:
        return remove_leftovers(session, None, False, dry_run, as_json, verbose)
