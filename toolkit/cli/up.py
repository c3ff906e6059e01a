"""toolkit up: make the cluster be there."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    carry_out,
    connect,
    exit_with,
    load,
    pull_image,
    warn,
)


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
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Bring image, keys and containers to every host, and prove that main reaches all workers."""
    from toolkit.jobs import refuse_to_end_jobs
    from toolkit.request import environment_findings

    inventory = load(hosts)
    findings = environment_findings(inventory)
    warn(findings)
    with connect(inventory, verbose) as session:
        pulled = pull_image(session, dry_run, as_json, verbose)
        plan = session.plan_up(prepare)
        if not (force or dry_run):
            session.refuse_newer()
            refuse_to_end_jobs(session, prepare)
        report = carry_out(session, plan, dry_run, as_json, verbose, pulled, findings)
    exit_with(report)
