"""toolkit smoke: test the GPUs in containers and one all-reduce over all ranks."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkit.api.smoke import prepare_smoke
from toolkit.cli import complete
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    connection_of,
    put_json,
    put_text,
    say,
    show_notice,
)
from toolkit.cli.line import CommandLine
from toolkit.cli.plans import show_plans
from toolkit.cli.progress import Progress
from toolkit.core.printable import table
from toolkit.jobs.request import Request, check_request


def smoke(
    hosts: HostsFile = DEFAULT_HOSTS,
    launcher: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Launcher for the all-reduces (default: the launcher in hosts.yaml). For `auto`, `ray`, or "
            "a launcher in hosts.yaml that is not in the image, toolkit uses the first of mpirun, torchrun "
            "and python that the image and the transport support",
            autocompletion=complete.launchers,
        ),
    ] = "",
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Test the GPUs, and test the network with an all-reduce.

    On every host that uses GPUs, toolkit runs nvidia-smi in a new container and in the cluster's container.
    `toolkit smoke` runs several all-reduces over all slots and verifies each sum. `toolkit smoke` exits
    with 1 if a test fails.

    Examples:
        toolkit smoke
        toolkit smoke --launcher mpirun --json
    """
    line = CommandLine()
    inventory = line.hosts(hosts)
    line.read(check_request, inventory, Request(words=("python3",), launcher=launcher, secrets=False))
    cluster = connection_of(line.accept(inventory), verbose, show_notice)
    with prepare_smoke(cluster, launcher) as prepared:
        if dry_run:
            show_plans(prepared.session, prepared.plans, as_json)
            return
        with Progress(verbose, brief=not as_json) as listener:
            result = prepared.execute(listener)
    if as_json:
        put_json(result.as_json())
    else:
        if result.gpus:
            rows = [
                (g.host, str(g.index), g.name, g.driver, f"{g.memory_mib} MiB", g.uuid) for g in result.gpus
            ]
            put_text(table(("host", "gpu", "name", "driver", "memory", "uuid"), rows))
        elif not result.problems:
            put_text("no host uses a GPU, so no GPU was tested")
        for problem in result.problems:
            say(f"  FAILED  {problem}")
        if result.allreduce:
            put_text(result.allreduce)
    if not result.ok:
        raise typer.Exit(1)
