"""toolkit data: send the data sets in hosts.yaml to the hosts, list them and remove them."""

from __future__ import annotations

from dataclasses import asdict

import typer

from toolkit.api.data import DataPart, prepare_data_remove, prepare_data_send
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    connection_of,
    load,
    put_json,
    put_text,
    say,
    show_notice,
)
from toolkit.cli.plans import carry_out, exit_with
from toolkit.data.plan import data_text


def send(
    hosts: HostsFile = DEFAULT_HOSTS, dry_run: DryRun = False, as_json: Json = False, verbose: Verbose = False
) -> None:
    """Copy the data sets in hosts.yaml to every host.

    toolkit divides a data set into parts of usually 8 to 32 MiB, and sends only the parts with missing or
    changed files. Hosts forward data set parts to each other. If you delete a local file, the next
    `toolkit data send` deletes the unchanged copies that toolkit sent to the hosts. Both `toolkit data send`
    and `toolkit up` (unless you add --no-data) copy the data sets and resume interrupted transfers.

    Examples:
        toolkit data send
        toolkit data send --dry-run
    """
    with prepare_data_send(connection_of(load(hosts), verbose, show_notice)) as prepared:
        report = carry_out(prepared, dry_run, as_json, verbose)
    exit_with(report)


def list_(hosts: HostsFile = DEFAULT_HOSTS, as_json: Json = False, verbose: Verbose = False) -> None:
    """Show which host has which data set.

    If your machine has the data set, toolkit compares the copy on each host with the local copy.

    Examples:
        toolkit data ls
        toolkit data ls --json
    """
    rows = DataPart(connection_of(load(hosts), verbose)).rows()
    if as_json:
        put_json({"rows": [asdict(row) for row in rows]})
    elif rows:
        put_text(data_text(rows))
    else:
        say("hosts.yaml has no data sets; see docs/how-to/data.md")
    if any(row.state == "unreachable" for row in rows):
        raise typer.Exit(1)


def remove(
    hosts: HostsFile = DEFAULT_HOSTS, dry_run: DryRun = False, as_json: Json = False, verbose: Verbose = False
) -> None:
    """Remove the data sets from the hosts.

    toolkit removes only unchanged files of the data sets: files that toolkit sent, and files that were
    already on the host with the same name, size and modification time.

    Examples:
        toolkit data rm --dry-run
        toolkit data rm
    """
    with prepare_data_remove(connection_of(load(hosts), verbose, show_notice)) as prepared:
        report = carry_out(prepared, dry_run, as_json, verbose)
    exit_with(report)
