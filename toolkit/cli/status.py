"""toolkit status: what is there, host by host, and which jobs."""

from __future__ import annotations

from typing import Any

import typer

from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, load, put_json


def status(hosts: HostsFile = DEFAULT_HOSTS, as_json: Json = False, verbose: Verbose = False) -> None:
    """Show hosts, who holds which GPU, and the cluster's jobs; exits with 3 when the cluster is not up."""
    from dataclasses import asdict

    from toolkit.jobs import statuses
    from toolkit.show import table
    from toolkit.show_gpus import gpus_json, gpus_text

    inventory = load(hosts)
    with connect(inventory, verbose) as session:
        rows = session.host_states()
        jobs = statuses(session)
        facts = tuple(session.facts.values())
    if as_json:
        value: dict[str, Any] = {"cluster": inventory.cluster, "up": all(r.ok for r in rows)}
        value |= {"hosts": [asdict(r) for r in rows], "gpus": gpus_json(facts)}
        put_json(value | {"jobs": [asdict(j) for j in jobs]})
    else:
        cells = [(r.host, r.role, r.state, r.address, r.image, r.docker, r.note) for r in rows]
        print(table(("host", "role", "state", "data address", "image", "docker", "note"), cells), end="")
        for fix in dict.fromkeys(r.fix for r in rows if r.fix):
            print(f"fix for {', '.join(r.host for r in rows if r.fix == fix)}: {fix}")
        if held := gpus_text(facts):
            print(f"\n{held}", end="")
        if jobs:
            print()
            lines = [(j.id, j.state, "" if j.exit_code is None else str(j.exit_code), j.reason) for j in jobs]
            print(table(("job", "state", "exit", "reason"), lines), end="")
    if not all(r.ok for r in rows):
        raise typer.Exit(3)
