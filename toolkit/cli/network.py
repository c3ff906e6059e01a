"""toolkit network: which network ranks use on each host, and why."""

from __future__ import annotations

import sys

import typer

from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, load, put_json

app = typer.Typer(no_args_is_help=True, help="Which network ranks use on each host.")


@app.callback()
def _group() -> None:
    """Which network ranks use on each host."""


@app.command("explain")
def explain(hosts: HostsFile = DEFAULT_HOSTS, as_json: Json = False, verbose: Verbose = False) -> None:
    """Show what was chosen for each host, why, why nothing else, and the settings that ranks get by it.

    Asks the hosts, lets them try connections to each other, and changes nothing. Ends with 3 when no
    address can be told for a host.
    """
    from dataclasses import asdict

    from toolkit.explore import explain_network
    from toolkit.show_network import explanation_text

    with connect(load(hosts), verbose) as session:
        session.require_some()
        said = explain_network(
            session.inventory,
            session.facts,
            session.runners_in_use(),
            {name: error.what for name, error in session.errors.items()},
        )
    if as_json:
        put_json(asdict(said))
    else:
        sys.stdout.write(explanation_text(said))
    if any(not host.address for host in said.hosts):
        raise typer.Exit(3)
