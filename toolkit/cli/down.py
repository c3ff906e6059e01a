"""toolkit down: remove the cluster from every host and prove that nothing is left."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkit.cli.common import DEFAULT_HOSTS, DryRun, HostsFile, Json, Verbose, connect, load, say
from toolkit.cli.plans import carry_out, exit_with


def down(
    hosts: HostsFile = DEFAULT_HOSTS,
    save: Annotated[
        bool, typer.Option(help="First bring the jobs' records, logs and results to ./runs/CLUSTER.")
    ] = True,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """End the cluster's jobs and remove its containers, keys and files from every host; images stay."""
    from toolkit.jobs.control import end_jobs
    from toolkit.jobs.records import running_jobs
    from toolkit.lifecycle.planning import down_plan
    from toolkit.protocol.names import RUNS

    inventory = load(hosts)
    with connect(inventory, verbose) as session:
        session.require_some()
        for host, version in session.newer_hosts().items():
            say(f"{host}: made by toolkit {version}, newer than this; what only that one knows may stay")
        plan = down_plan(session, f"{RUNS}/{inventory.cluster}" if save else "")
        if dry_run:
            for job in running_jobs(session):
                say(f"job {job} is running, and would be ended")
        else:
            end_jobs(session, lambda job: say(f"job {job} is running: it is ended first"))
        report = carry_out(session, plan, dry_run, as_json, verbose)
    if report is not None and report.ok:
        from toolkit.jobs.id_cache import remember_jobs

        remember_jobs(inventory.cluster, ())
    exit_with(report)
