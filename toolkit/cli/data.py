"""toolkit data: stage the data of the hosts file to the hosts, see who has what, remove it."""

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
    show_notice,
)
from toolkit.cli.plans import carry_out, exit_with
from toolkit.data.plan import data_text

app = typer.Typer(
    no_args_is_help=True, help="Stage the data of the hosts file to the hosts, see who has what, remove it."
)


@app.command("send")
def send(
    hosts: HostsFile = DEFAULT_HOSTS, dry_run: DryRun = False, as_json: Json = False, verbose: Verbose = False
) -> None:
    """Bring every host what it lacks of the data, hosts from each other. `up` does this by itself.

    What has changed here since is sent; what has gone here goes there, if it was sent from here. When it is
    cut off, what has come stays, and the next time only the rest travels.
    """
    with prepare_data_send(connection_of(load(hosts), verbose, show_notice)) as prepared:
        report = carry_out(prepared, dry_run, as_json, verbose)
    exit_with(report)


@app.command("ls")
def list_(hosts: HostsFile = DEFAULT_HOSTS, as_json: Json = False, verbose: Verbose = False) -> None:
    """Show which host has which data, and whether it is what this machine has now. Changes nothing."""
    rows = DataPart(connection_of(load(hosts), verbose)).rows()
    if as_json:
        put_json({"rows": [asdict(row) for row in rows]})
    else:
        put_text(data_text(rows))
    if any(row.state == "unreachable" for row in rows):
        raise typer.Exit(1)


@app.command("rm")
def remove(
    hosts: HostsFile = DEFAULT_HOSTS, dry_run: DryRun = False, as_json: Json = False, verbose: Verbose = False
) -> None:
    """Remove the data from the hosts: what was sent there, if nobody has changed it since.

    Files that came there in another way stay.
    """
    with prepare_data_remove(connection_of(load(hosts), verbose, show_notice)) as prepared:
        report = carry_out(prepared, dry_run, as_json, verbose)
    exit_with(report)
