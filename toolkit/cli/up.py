"""toolkit up: make the cluster be there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from toolkit.data.manage import Staged


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
    from toolkit.api.meanwhile import before_up, fault_questions
    from toolkit.core.finding import graver_first
    from toolkit.env_lint.lint import lint_inventory

    inventory = load(hosts)
    data: Staged = ()
    if inventory.data and not no_data:
        from toolkit.data.manage import read_data

        data = read_data(inventory)
    findings = graver_first(lint_inventory(inventory))
    warn(findings)
    asked = () if no_check else fault_questions
    with connect(inventory, verbose, questions=asked, meanwhile=before_up) as session:
        from toolkit.checks.preflight import preflight, refuse_faults
        from toolkit.jobs.control import refuse_to_end_jobs
        from toolkit.lifecycle.planning import up_plan
        from toolkit.lifecycle.port_race import bring_up
        from toolkit.plan.execute import reported_after
        from toolkit.plan.show import alarms_text

        found = () if no_check else preflight(session, session.inventory.names)
        if found:
            say(alarms_text(found))
        if not dry_run:
            refuse_faults(found)
        pulled = pull_image(session, dry_run, as_json, verbose)
        with reported_after(pulled):
            plan = up_plan(session, prepare, data)
            if not (force or dry_run):
                session.refuse_newer()
                refuse_to_end_jobs(session, prepare)
        execute = partial(bring_up, session, prepare=prepare, force=force)
        to_do = session.to_do(plan) if dry_run else None
        report = carry_out(session, plan, dry_run, as_json, verbose, pulled, findings, execute, to_do)
    exit_with(report)
