"""toolkit trust: show the SSH host keys and record them in known_hosts."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated

import typer

from toolkit.cli import complete
from toolkit.cli.common import COMMON, DEFAULT_HOSTS, DryRun, HostsFile, Json, confirm, put_json, say
from toolkit.cli.line import CommandLine
from toolkit.errors import ToolkitError
from toolkit.hostsfile.load import choose_hosts
from toolkit.init.trust import ShownKey, record, shown_keys
from toolkit.protocol.host_list import every_host


def trust(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST]...",
            help="Host whose SSH host key toolkit records (default: all hosts)",
            autocompletion=complete.hosts,
        ),
    ] = None,
    hosts: HostsFile = DEFAULT_HOSTS,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Record SSH host keys without confirmation: new keys and, with --replace, changed keys",
        ),
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Replace a recorded SSH host key that differs from the host's current key"
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="For each host, also print the address that toolkit queries, and the files that contain "
            "recorded keys",
            rich_help_panel=COMMON,
        ),
    ] = False,
) -> None:
    """Show and record the SSH host keys of the hosts.

    toolkit logs in only to hosts whose SSH host key is recorded. Before you confirm, compare each fingerprint
    with a fingerprint from another source, for example from
    `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the console of the host.

    Examples:
        toolkit trust
        toolkit trust gpu1 gpu2
        toolkit trust --replace gpu2
    """
    line = CommandLine()
    inventory = line.hosts(hosts)
    chosen = line.read(choose_hosts, inventory, every_host(names or ()), ()) if inventory else None
    keys = shown_keys(line.accept(inventory), line.accept(chosen))
    settled = [settle(found, yes, replace, dry_run, verbose) for found in keys]
    if as_json:
        put_json([found.as_json() for found in settled])
    if not all(found.trusted for found in settled):
        raise typer.Exit(1)


def settle(
    found: ShownKey, yes: bool = False, replace: bool = False, dry_run: bool = False, verbose: bool = False
) -> ShownKey:
    """Print the key of a host; record a new key if the user agrees or ``yes`` is true.

    Returns:
        The key, which is trusted if connections accept it from now on, or would without the dry run.
    """
    say(found.line())
    if verbose:
        say(f"    {found.place()}")
    if found.error or found.known:
        return found
    if found.changed and not replace:
        say(
            "    not recorded: the key differs from the recorded key; "
            "use --replace if the host was reinstalled"
        )
        return found
    try:
        if dry_run:
            say(f"    would be recorded in {found.file}")
        elif yes or (sys.stdin.isatty() and confirm("    record this key?")):
            say(f"    recorded in {record(found)}")
        else:
            say(
                "    not recorded"
                + (
                    ""
                    if sys.stdin.isatty()
                    else ": toolkit cannot ask for confirmation without a terminal; use --yes"
                )
            )
            return found
    except ToolkitError as error:  # the keys of other hosts can have another file
        say(f"    not recorded: {error.what}\n    fix: {error.fix}")
        return dataclasses.replace(found, failure=error)
    return dataclasses.replace(found, verdict="good")
