"""The registry of launchers: each turns a Job into the processes to start."""

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
    """Return the content of job.json, launches included; see toolkit/container/job_file.py.

    The variables of the ranks are left out, because they are never written to a disk.
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


# Launchers that start ssh themselves. Toolkit replaces that ssh with a program of its own.
BY_AGENT = ("horovodrun", "horovodrun-gloo", "mpirun")


def starts_from_main(launcher: str, transport: str) -> bool:
    """Return True if main takes part in a job even without ranks, because the launcher runs there."""
    return transport == SSH or launcher in BY_AGENT


# Launchers that can restart ranks without a restart of the job.
ELASTIC = ("horovodrun", "torchrun")

# Launchers with daemons of their own, which authenticate each other by a token.
WITH_TOKEN = ("ray",)

# Requirements of a launcher in the image besides python3: programs, and Python packages as python:NAME.
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
