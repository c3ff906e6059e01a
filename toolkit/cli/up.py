"""toolkit up: make the cluster be there."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkit.api.notices import Notice, Topic
from toolkit.api.up import prepare_up
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    NoCheck,
    Verbose,
    connection_of,
    load,
    say,
    show_notice,
)
from toolkit.cli.plans import carry_out_after_pull, exit_with
from toolkit.plan.show import alarms_text


def up(
    hosts: HostsFile = DEFAULT_HOSTS,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Keys and configs only: you start the containers yourself.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Although it ends a running job, or undoes what a newer toolkit has made."
        ),
    ] = False,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="Do not stage the data of the hosts file first.")
    ] = False,
    no_check: NoCheck = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Bring image, keys and containers to every host, and prove that main reaches all workers."""
    inventory = load(hosts)
    cluster = connection_of(inventory, verbose, _show)
    with prepare_up(cluster, not no_data, force, not no_check, prepare) as prepared:
        report = carry_out_after_pull(
            prepared,
            dry_run,
            as_json,
            verbose,
            prepared.findings_about(Topic.ENVIRONMENT),
            prepared.to_do,
        )
    exit_with(report)


def _show(notice: Notice) -> None:
    show_notice(notice)
    if notice.topic is Topic.HOSTS:
        say(alarms_text(notice.findings))
