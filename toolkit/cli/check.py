"""toolkit check: what would stop a job, told before it does, with the command that cures it."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, _trace, load, put_json


def check(
    hosts: HostsFile = DEFAULT_HOSTS,
    only: Annotated[
        list[str], typer.Option("--only", metavar="CHECK", help="This check alone; may be given again.")
    ] = [],  # noqa: B006
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failures.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Start no containers: what only they can see is not checked.")
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Look for what would stop, spoil or slow a job; change nothing. Ends with 1 when an error is found."""
    from dataclasses import asdict

    from toolkit.check import choose_checks, look
    from toolkit.core.finding import worst
    from toolkit.show import findings_text

    inventory = load(hosts)
    findings = look(inventory, choose_checks(only), _trace if verbose else None, quick)
    verdict = worst(findings)
    if as_json:
        put_json(
            {"cluster": inventory.cluster, "verdict": verdict, "findings": [asdict(f) for f in findings]}
        )
    else:
        print(findings_text(findings, inventory.names, everything=verbose), end="")
    if verdict == "error" or (strict and verdict == "warning"):
        raise typer.Exit(1)
