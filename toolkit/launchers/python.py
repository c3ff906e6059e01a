"""The command of every rank without a launcher around it; RANK, WORLD_SIZE and the others are set."""

from __future__ import annotations

from toolkit.launchers.job import Job, Launch
from toolkit.protocol.names import program


def python(job: Job) -> tuple[Launch, ...]:
    """Return one launch per host, which starts all ranks of the host at the same time."""
    launches, first = [], 0
    for host in job.hosts:
        argv = (*program("job.spawn"), str(host.slots), str(first), *job.rank_argv)
        launches.append(Launch(host.name, argv, (("WORLD_SIZE", str(job.world_size)),)))
        first += host.slots
    return tuple(launches)
