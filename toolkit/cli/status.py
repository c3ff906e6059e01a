"""toolkit status: show hosts, services, GPUs and jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from toolkit.cli.common import (
    DEFAULT_HOSTS,
    HostsFile,
    Json,
    Verbose,
    as_warnings,
    connect,
    load,
    put_json,
    put_text,
    say,
    say_changes,
)
from toolkit.cli.failure import error_json
from toolkit.cluster.applied import change_finding
from toolkit.cluster.container_status import host_states
from toolkit.cluster.gpu_usage import gpus_json, gpus_text
from toolkit.cluster.session import Session
from toolkit.core.host_programs import container_programs
from toolkit.core.printable import table
from toolkit.errors import ToolkitError
from toolkit.jobs.records import job_statuses
from toolkit.jobs.status import JobStatus, job_json, jobs_table
from toolkit.protocol.host_list import host_list
from toolkit.protocol.transport import transport_text
from toolkit.services.control import states as service_states
from toolkit.services.status import services_text

# Number of ended jobs to show besides the running jobs; `toolkit jobs` lists more.
_SHOWN = 5


def status(hosts: HostsFile = DEFAULT_HOSTS, as_json: Json = False, verbose: Verbose = False) -> None:
    """Show hosts, services, GPUs and jobs.

    For each GPU, toolkit prints the jobs that reserved the GPU, and other processes on the GPU.
    `toolkit status` exits with 3 if a host or a service is not up. If the hosts and
    services are up but toolkit cannot list the jobs, `toolkit status` exits with 1.

    Examples:
        toolkit status
        toolkit status --json
    """
    inventory = load(hosts)
    with connect(inventory, verbose) as session:
        inventory = session.inventory
        rows = host_states(inventory, session.facts, session.errors, container_programs())
        changes = change_finding(inventory, session.facts)
        services = service_states(session)
        jobs, error = _jobs(session)
        facts = tuple(session.facts.values())
    up = all(r.ok for r in rows) and all(s.ok for s in services)
    if as_json:
        value: dict[str, Any] = {"cluster": inventory.cluster, "up": up}
        value["transport"] = inventory.chosen_transport or inventory.transport
        value |= {"hosts": [asdict(r) for r in rows], "gpus": gpus_json(facts)}
        value["services"] = [asdict(s) for s in services]
        value |= as_warnings(changes)
        if error is None:
            put_json(value | {"jobs": [job_json(j) for j in jobs]})
        else:
            say(str(error))
            put_json(value | {"jobs": None} | error_json(error))
    else:
        say_changes(changes)
        cells = [(r.host, r.role, r.state, r.address, r.image, r.docker, r.note) for r in rows]
        put_text(table(("host", "role", "state", "data address", "image", "docker", "note"), cells))
        if inventory.chosen_transport:
            put_text(f"transport: {transport_text(inventory.chosen_transport)}")
        for fix in dict.fromkeys(r.fix for r in rows if r.fix):
            put_text(f"fix for {host_list(r.host for r in rows if r.fix == fix)}: {fix}")
        if services:
            put_text(f"\n{services_text(services)}")
        if held := gpus_text(facts):
            put_text(f"\n{held}")
        shown = [job for index, job in enumerate(jobs) if not job.final or index >= len(jobs) - _SHOWN]
        if shown:
            put_text("\n" + jobs_table(shown))
        if error is not None:
            put_text(f"\n{error}")
    if not up:
        raise typer.Exit(3)
    if error is not None:
        raise typer.Exit(1)


def _jobs(session: Session) -> tuple[list[JobStatus], ToolkitError | None]:
    """Return the jobs, or the reason why they are unknown, so that the state of the hosts is still shown."""
    try:
        return job_statuses(session), None
    except ToolkitError as error:
        return [], error
