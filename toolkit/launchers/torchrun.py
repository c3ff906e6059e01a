"""torchrun with static ranks: one agent per host, started side by side."""

from __future__ import annotations

from toolkit.core.names import INSIDE
from toolkit.launchers.job import Job, Launch


def torchrun(job: Job) -> tuple[Launch, ...]:
    """Return one launch per host.

    Static ranks: the c10d rendezvous finds its place by comparing host names, which fails where a
    name resolves to loopback. The store listens on the first host.
    """
    first = job.hosts[0]
    return tuple(
        Launch(
            host.name,
            (
                "torchrun",
                "--nnodes",
                str(len(job.hosts)),
                "--node-rank",
                str(index),
                "--nproc-per-node",
                str(host.slots),
                "--master-addr",
                first.address,
                "--master-port",
                str(job.master_port),
                str(INSIDE / "rank.py"),
                job.id,
            ),
        )
        for index, host in enumerate(job.hosts)
    )
