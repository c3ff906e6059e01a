"""toolkit down: remove the cluster from every host and verify the removal."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkit.api.down import prepare_down
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    connection_of,
    load,
    say,
    show_notice,
)
from toolkit.cli.plans import carry_out, exit_with
from toolkit.protocol.names import RUNS


def down(
    hosts: HostsFile = DEFAULT_HOSTS,
    save: Annotated[
        bool,
        typer.Option(
            help="Download job records, logs and results to ./runs/CLUSTER before toolkit removes the cluster"
        ),
    ] = True,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Stop all jobs and remove the cluster from the hosts.

    `toolkit down` removes the cluster's containers, SSH keys and files from every host. After `toolkit down`,
    images and data sets stay on the hosts. `toolkit image prune` removes old images, and `toolkit data rm`
    removes data sets.

    Examples:
        toolkit down
        toolkit down --no-save
    """
    inventory = load(hosts)
    save_to = f"{RUNS}/{inventory.cluster}" if save else ""
    with prepare_down(connection_of(inventory, verbose, show_notice), save_to) as prepared:
        for job in prepared.running_jobs() if dry_run else ():
            say(f"job {job} is running and would be stopped")
        report = carry_out(prepared, dry_run, as_json, verbose)
    exit_with(report)
