"""toolkit up: start or repair the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

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
from toolkit.core.finding import Notice, Topic, alarms_text


def up(
    hosts: HostsFile = DEFAULT_HOSTS,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Prepare the hosts (image, data sets, keys, configuration files), but start no containers",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Continue even if `up` stops a running job or undoes changes that a newer toolkit made",
        ),
    ] = False,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="Do not copy the data sets in hosts.yaml")
    ] = False,
    no_check: NoCheck = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Start or repair the cluster.

    By default, toolkit copies the image, the data sets and its own programs to every host, and starts one
    container per host and one container per service. If the transport is ssh, toolkit creates SSH keys
    on the hosts, and verifies that the main container can log in to every worker container. With
    `pull: always` or `pull: missing` in hosts.yaml, hosts pull the image (see `toolkit image send`).

    Run `toolkit up` again after you change hosts.yaml, the image or the data sets, or upgrade toolkit. If
    hosts.yaml, the image, the data sets and toolkit are unchanged, a second `toolkit up` only repairs hosts
    with a stopped or missing container, or with missing files.

    Examples:
        toolkit up --hosts hosts.yaml
        toolkit up --dry-run
    """
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
