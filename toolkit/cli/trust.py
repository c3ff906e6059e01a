"""toolkit trust: show hosts' ssh keys and record them, so that connections can be strict."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from toolkit.cli import complete
from toolkit.cli.common import DEFAULT_HOSTS, DryRun, HostsFile, Json, Verbose, confirm, put_json, say
from toolkit.cli.line import CommandLine
from toolkit.cluster.session import choose_hosts
from toolkit.cluster.trust import ShownKey, look, record


def trust(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST]...", help="All hosts if none is named.", autocompletion=complete.hosts
        ),
    ] = None,
    hosts: HostsFile = DEFAULT_HOSTS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Record without asking.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a recorded key that differs.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show the fingerprints of hosts' ssh keys and record them once you have compared them."""
    line = CommandLine()
    inventory = line.hosts(hosts)
    chosen = line.read(choose_hosts, inventory, names or [], []) if inventory else None
    keys = look(line.accept(inventory), line.accept(chosen))
    trusted = [settle(found, yes, replace, dry_run, verbose) for found in keys]
    if as_json:
        put_json([found.as_json() for found in keys])
    if not all(trusted):
        raise typer.Exit(1)


def settle(
    found: ShownKey, yes: bool = False, replace: bool = False, dry_run: bool = False, verbose: bool = False
) -> bool:
    """Say which key a host shows, and record it if it is new and a person agrees, or ``yes`` does.

    Returns:
        Whether connections accept it from now on, or would but for the dry run.
    """
    say(found.line())
    if verbose:
        say(f"    {found.place()}")
    if found.error or found.known:
        return not found.error
    if found.changed and not replace:
        say("    not recorded: it differs from the key on record; --replace if the host was reinstalled")
        return False
    if dry_run:
        say(f"    would be recorded in {found.file}")
    elif yes or (sys.stdin.isatty() and confirm("    record this key?")):
        say(f"    recorded in {record(found)}")
    else:
        say("    not recorded" + ("" if sys.stdin.isatty() else ": cannot ask here, use --yes"))
        return False
    return True
