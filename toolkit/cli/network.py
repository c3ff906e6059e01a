"""toolkit network: explain the network that ranks use, and tune all-reduce on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from toolkit.api.network import NetworkPart
from toolkit.bench.tune import DEFAULT_BUDGET_S, check_tune, forget_plan, tune_plans
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
from toolkit.core.printable import counted
from toolkit.jobs.request import Request, check_request
from toolkit.network.show import explanation_text, tuning_text
from toolkit.network.tuning import tuning_json


def explain(hosts: HostsFile = DEFAULT_HOSTS, as_json: Json = False, verbose: Verbose = False) -> None:
    """Show and explain the data address of each host.

    For each host, toolkit prints the chosen address, the rejected addresses, and the environment
    variables that configure the network between ranks. To test the network, the hosts connect to each other.
    `toolkit network explain` exits with 3 if a host has no usable address.

    Examples:
        toolkit network explain
        toolkit network explain --json
    """
    found = NetworkPart(connection_of(load(hosts), verbose)).explain()
    if as_json:
        put_json(asdict(found))
    else:
        put_text(explanation_text(found))
    if any(not host.address for host in found.hosts):
        raise typer.Exit(3)


def tune(
    hosts: HostsFile = DEFAULT_HOSTS,
    engine: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="auto|mpi|nccl",
            help="Library to tune. `auto` selects nccl if every rank has a GPU, otherwise mpi",
            autocompletion=complete.one_of("auto", "mpi", "nccl"),
        ),
    ] = "auto",
    budget: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Target for the total duration of all trials, 2 to 600 s. toolkit measures each trial for "
            "at least 1 s, so the total duration can exceed the target",
        ),
    ] = DEFAULT_BUDGET_S,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[,HOST]",
            help="Tune for jobs that use only the listed hosts (default: all hosts except spare hosts)",
            autocompletion=complete.host_list,
        ),
    ] = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Remove all tuned settings, so that MPI and NCCL use their defaults again"
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find and save the fastest all-reduce settings.

    toolkit measures all-reduces with several settings. Avoid other network traffic during the measurement,
    because such traffic distorts the result. Until `toolkit down` or --forget, later jobs use the fastest
    settings if their hosts, the order of the hosts, the data addresses and the ranks per host are the same.
    Variables in hosts.yaml and --env override tuned settings with the same name.

    Examples:
        toolkit network tune
        toolkit network tune --backend mpi --budget 30
        toolkit network tune --forget
    """
    line = CommandLine()
    line.read(check_tune, engine, budget)
    inventory = line.hosts(hosts)
    chosen = listed(only)
    others = {"--backend": engine != "auto", "--budget": budget != DEFAULT_BUDGET_S, "--only": only}
    for option in (option for option, given in others.items() if forget and given):
        line.refuse(option, "cannot be combined with --forget, which removes all tuned settings")
    request = Request(words=("python3",), launcher="mpirun", only=chosen, secrets=False)
    line.read(check_request, inventory, request)
    inventory = line.accept(inventory)
    with connect(inventory, verbose) as session:
        session.require_some()
        if dry_run:
            plans = (forget_plan(session),) if forget else tune_plans(session, engine, budget, chosen)
            show_plans(session, plans, as_json)
            return
        with Progress(verbose, brief=True) as listener:
            if forget:
                found = forget_tuned(session, listener)
            else:
                found = (tune_network(session, engine, budget, listener, chosen),)
    if as_json:
        put_json({"forgotten" if forget else "tuned": [tuning_json(tuning) for tuning in found]})
    elif forget:
        put_text(f"removed {counted(len(found), 'tuned setting')}; MPI and NCCL use their defaults again")
    else:
        put_text(tuning_text(found[0]))
