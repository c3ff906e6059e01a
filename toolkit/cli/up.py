"""toolkit up: make the cluster be there."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    NoCheck,
    Verbose,
    carry_out,
    connect,
    exit_with,
    load,
    say,
)


def up(
    hosts: HostsFile = DEFAULT_HOSTS,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Keys and configs only: you start the containers yourself.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Although a running job would be ended by it.")
    ] = False,
    no_check: NoCheck = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Bring image, keys and containers to every host, and prove that main reaches all workers."""
    from toolkit.jobs import refuse_to_end_jobs
    from toolkit.preflight import preflight, questions, refuse_faults
    from toolkit.show import alarms_text

    with connect(load(hosts), verbose, questions=() if no_check else questions()) as session:
        plan = session.plan_up(prepare)
        found = () if no_check else preflight(session, session.inventory.names)
        if found:
            say(alarms_text(found))
        if not dry_run:
            refuse_faults(found)
        if not (force or dry_run or prepare):
            refuse_to_end_jobs(session)
        report = carry_out(session, plan, dry_run, as_json, verbose)
    exit_with(report)
