"""toolkit data: stage the data of the hosts file to the hosts, see who has what, remove it."""

from __future__ import annotations

import typer

from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    cluster_of,
    connect,
    load,
    put_json,
    put_text,
)
from toolkit.cli.plans import carry_out, exit_with

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
    from toolkit.data.manage import read_data, require_data, send_plan

    inventory = load(hosts)
    require_data(inventory)
    data = read_data(inventory)
    with connect(inventory, verbose) as session:
        report = carry_out(session, send_plan(session, data), dry_run, as_json, verbose)
    exit_with(report)


@app.command("ls")
def list_(hosts: HostsFile = DEFAULT_HOSTS, as_json: Json = False, verbose: Verbose = False) -> None:
    """Show which host has which data, and whether it is what this machine has now. Changes nothing."""
    from dataclasses import asdict

    from toolkit.data.plan import data_text

    rows = cluster_of(load(hosts), verbose).data.rows()
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
    from toolkit.data.manage import remove_plan, require_data

    inventory = load(hosts)
    require_data(inventory)
    with connect(inventory, verbose) as session:
        report = carry_out(session, remove_plan(session), dry_run, as_json, verbose)
    exit_with(report)
