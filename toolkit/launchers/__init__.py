"""From a Job to the processes to start; one file and one registry line per launcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from toolkit.launchers.horovodrun import horovodrun
from toolkit.launchers.job import Job, Launch
from toolkit.launchers.mpirun import mpirun
from toolkit.launchers.torchrun import torchrun


def about_job(job: Job) -> dict[str, Any]:
    """Return what job.json says of a job, its launches included; see toolkit/inside/common.py."""
    launches = [{**asdict(launch), "env": dict(launch.env)} for launch in LAUNCHERS[job.launcher](job)]
    return asdict(job) | {
        "attempt": 0,
        "env": dict(job.env),
        "override": dict(job.override),
        "tuned": dict(job.tuned),
        "world_size": job.world_size,
        "world_sizes": list(job.world_sizes),
        "workdir": job.workdir,
        "master_address": job.hosts[0].address,
        "launches": launches,
    }


# Those that can start ranks again by themselves.
ELASTIC = ("horovodrun", "torchrun")

LAUNCHERS: dict[str, Callable[[Job], tuple[Launch, ...]]] = {
    "horovodrun": horovodrun,
    "mpirun": mpirun,
    "torchrun": torchrun,
}
