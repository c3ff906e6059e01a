"""From a Job to the processes to start; one file and one registry line per launcher."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.launchers.horovodrun import horovodrun
from toolkit.launchers.job import Job, Launch
from toolkit.launchers.mpirun import mpirun
from toolkit.launchers.torchrun import torchrun

LAUNCHERS: dict[str, Callable[[Job], tuple[Launch, ...]]] = {
    "horovodrun": horovodrun,
    "mpirun": mpirun,
    "torchrun": torchrun,
}
