"""Hugging Face Accelerate: torchrun starts the ranks, with the settings that Accelerate would give them.

``accelerate launch`` on several hosts without GPUs starts one world per host and prints no error (1.15).
"""

from __future__ import annotations

from dataclasses import replace

from toolkit.launchers.job import Job, Launch
from toolkit.launchers.torchrun import torchrun
from toolkit.protocol.names import program


def accelerate(job: Job) -> tuple[Launch, ...]:
    """Return one launch per host: torchrun's, with Accelerate's settings as variables around it."""
    around = (*program("job.accelerate"), job.id)
    return tuple(replace(launch, argv=(*around, *launch.argv)) for launch in torchrun(job))
