"""Hugging Face Accelerate, through torchrun: the settings are Accelerate's own, the ranks torchrun's.

``accelerate launch`` on several machines without GPUs starts one world per machine and says nothing (1.15).
"""

from __future__ import annotations

from dataclasses import replace

from toolkit.core.names import INSIDE
from toolkit.launchers.job import Job, Launch
from toolkit.launchers.torchrun import torchrun


def accelerate(job: Job) -> tuple[Launch, ...]:
    """Return one launch per host: torchrun's, with Accelerate's settings as variables around it."""
    around = ("python3", str(INSIDE / "accelerated.py"), job.id)
    return tuple(replace(launch, argv=(*around, *launch.argv)) for launch in torchrun(job))
