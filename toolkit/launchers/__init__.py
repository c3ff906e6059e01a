"""From a Job to the processes to start; one file and one registry line per launcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from toolkit.launchers.accelerate import accelerate
from toolkit.launchers.deepspeed import deepspeed
from toolkit.launchers.horovodrun import horovodrun
from toolkit.launchers.horovodrun_gloo import horovodrun_gloo
from toolkit.launchers.job import Job, Launch
from toolkit.launchers.mpirun import mpirun
from toolkit.launchers.python import python
from toolkit.launchers.ray import ray
from toolkit.launchers.torchrun import torchrun
from toolkit.protocol.transport import SSH

# Fields of a job that its job file leaves out.
IN_MEMORY = frozenset(("env", "host_env", "override", "token"))


def about_job(job: Job) -> dict[str, Any]:
    """Return what job.json says of a job, its launches included; see toolkit/container/job_file.py.

    The variables of its ranks are left out: they are never written to a disk.
    """
    launches = [{**asdict(launch), "env": dict(launch.env)} for launch in LAUNCHERS[job.launcher](job)]
    about = {name: value for name, value in asdict(job).items() if name not in IN_MEMORY}
    return about | {
        "attempt": 0,
        "tuned": dict(job.tuned),
        "world_size": job.world_size,
        "world_sizes": list(job.world_sizes),
        "workdir": job.workdir,
        "master_address": job.hosts[0].address,
        "launches": launches,
    }


# Those that reach other hosts by ssh of their own, for which a program of ours stands in.
BY_AGENT = ("horovodrun", "horovodrun-gloo", "mpirun")


def starts_from_main(launcher: str, transport: str) -> bool:
    """Return whether main takes part in a job though it may have no ranks: something there starts them."""
    return transport == SSH or launcher in BY_AGENT


# Those that can start ranks again by themselves.
ELASTIC = ("horovodrun", "torchrun")

# Those with daemons of their own, which know each other by a token.
WITH_TOKEN = ("ray",)

# What an image must have for a launcher besides python3: programs, and Python packages as python:NAME.
NEEDS: dict[str, tuple[str, ...]] = {
    "accelerate": ("torchrun", "python:accelerate"),
    "deepspeed": ("python:deepspeed",),
    "horovodrun": ("horovodrun", "mpirun"),
    "horovodrun-gloo": ("horovodrun",),
    "mpirun": ("mpirun",),
    "python": (),
    "ray": ("python:ray",),
    "torchrun": ("torchrun",),
}

LAUNCHERS: dict[str, Callable[[Job], tuple[Launch, ...]]] = {
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "horovodrun": horovodrun,
    "horovodrun-gloo": horovodrun_gloo,
    "mpirun": mpirun,
    "python": python,
    "ray": ray,
    "torchrun": torchrun,
}
