"""toolkit network: which network ranks use on each host, why, and how all-reduce is quickest on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from toolkit.api.network import NetworkPart
from toolkit.bench.tune import check_tune, forget_plan, tune_plans
from toolkit.bench.tune import forget as forget_tuned
from toolkit.bench.tune import tune as tune_network
from toolkit.cli import complete
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    connect,
    connection_of,
    load,
    put_json,
    put_text,
)
from toolkit.cli.line import CommandLine, listed
from toolkit.cli.plans import show_plans
from toolkit.cli.progress import Progress
from toolkit.jobs.request import Request, check_request
from toolkit.network.show import explanation_text, tuning_text
from toolkit.network.tuning import tuning_json


def explain(hosts: HostsFile = DEFAULT_HOSTS, as_json: Json = False, verbose: Verbose = False) -> None:
    """Show what was chosen for each host, why, why nothing else, and the settings that ranks get by it.

    Asks the hosts, lets them try connections to each other, and changes nothing. Ends with 3 when no
    address can be told for a host.
    """
    said = NetworkPart(connection_of(load(hosts), verbose)).explain()
    if as_json:
        put_json(asdict(said))
    else:
        put_text(explanation_text(said))
    if any(not host.address for host in said.hosts):
        raise typer.Exit(3)


def tune(
    hosts: HostsFile = DEFAULT_HOSTS,
    engine: Annotated[
        str,
        typer.Option(
            "--backend",
            help="What does the all-reduce: auto, mpi or nccl.",
            autocompletion=complete.one_of("auto", "mpi", "nccl"),
        ),
    ] = "auto",
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="For all of it.")] = 8.0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[,HOST]", help="For jobs on these hosts alone.", autocompletion=complete.host_list
        ),
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Undo: engines choose by themselves again.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Measure how all-reduce is quickest on this network, and give it to every later job on the same ranks.

    Takes some ten seconds in which nothing else should use the network. Kept until `toolkit down`; what the
    hosts file or --env says wins over it. Nothing is changed where it would harm any size of message.
    """
    line = CommandLine()
    line.read(check_tune, engine, budget)
    inventory = line.hosts(hosts)
    chosen = listed(only)
    asked = Request(words=("python3",), launcher="mpirun", only=chosen, secrets=False)
    line.read(check_request, inventory, asked)
    inventory = line.accept(inventory)
    with connect(inventory, verbose) as session:
        session.require_some()
        if dry_run:
            plans = (forget_plan(session),) if forget else tune_plans(session, engine, budget, chosen)
            show_plans(session, plans, as_json)
            return
        with Progress(verbose) as listener:
            if forget:
                found = forget_tuned(session, listener)
            else:
                found = (tune_network(session, engine, budget, listener, chosen),)
    if as_json:
        put_json({"forgotten" if forget else "tuned": [tuning_json(tuning) for tuning in found]})
    elif forget:
        put_text(f"forgotten: {len(found)}; engines choose by themselves again")
    else:
        put_text(tuning_text(found[0]))
