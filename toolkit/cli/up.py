"""toolkit up: make the cluster be there."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    NoCheck,
    Verbose,
    connect,
    load,
    say,
    warn,
)
from toolkit.cli.plans import carry_out, exit_with, pull_image


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
    from toolkit.datasets import read_data
    from toolkit.jobs import refuse_to_end_jobs
    from toolkit.preflight import preflight, questions, refuse_faults
    from toolkit.race import bring_up
    from toolkit.request import environment_findings
    from toolkit.show import alarms_text

    inventory = load(hosts)
    data = () if no_data else read_data(inventory)
    findings = environment_findings(inventory)
    warn(findings)
    with connect(inventory, verbose, questions=() if no_check else questions()) as session:
        found = () if no_check else preflight(session, session.inventory.names)
        if found:
            say(alarms_text(found))
        if not dry_run:
            refuse_faults(found)
        pulled = pull_image(session, dry_run, as_json, verbose)
        plan = session.plan_up(prepare, data)
        if not (force or dry_run):
            session.refuse_newer()
            refuse_to_end_jobs(session, prepare)
        execute = partial(bring_up, session, prepare=prepare, force=force)
        report = carry_out(session, plan, dry_run, as_json, verbose, pulled, findings, execute)
    exit_with(report)
