"""torchrun: one agent per host, all started at the same time."""

from __future__ import annotations

from toolkit.launchers.job import Job, JobHost, Launch

# Settings of the rendezvous of an elastic job; see "Rendezvous" in the documentation of torch.distributed.
_RENDEZVOUS = {
    "last_call_timeout": 3,  # seconds that a round with enough hosts waits for more; 30 by default
    "keep_alive_interval": 1,  # a host that misses three of them is removed; 5 by default
    "keep_alive_max_attempt": 3,
}
_ELASTIC_ENV = (
    # Agents that exit after the agent of the first host print a stack each.
    ("TORCH_CPP_LOG_LEVEL", "ERROR"),
    # The address of a shared store is sent in the first round only (dynamic_rendezvous.py of PyTorch 2.13).
    # An agent that joins in a later round would wait for the address without end.
    ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),
)


def torchrun(job: Job) -> tuple[Launch, ...]:
    """Return one launch per host, and one per spare if the job is elastic."""
    hosts = (*job.hosts, *job.reserve)
    meet = _elastic if job.elastic else _static
    return tuple(
        Launch(
            host.name,
            ("torchrun", *meet(job, host, index), *job.rank_argv[1:]),
            _ELASTIC_ENV if job.elastic else (),
        )
        for index, host in enumerate(hosts)
    )


def _static(job: Job, host: JobHost, index: int) -> tuple[str, ...]:
    """Return options for static ranks; the store runs on the first host.

    The c10d rendezvous compares host names to find out where the store runs, which fails if a name resolves
    to loopback.
    """
    words = ("--nnodes", len(job.hosts), "--node-rank", index, "--nproc-per-node", host.slots)
    return tuple(map(str, (*words, "--master-addr", job.hosts[0].address, "--master-port", job.master_port)))


def _elastic(job: Job, host: JobHost, index: int) -> tuple[str, ...]:
    """Return options for the c10d rendezvous, with the host of the store and the address of this host."""
    settings = {"is_host": str(index == 0).lower(), **_RENDEZVOUS}
    words = {
        "--nnodes": f"{job.least_hosts}:{len(job.hosts)}",
        "--nproc-per-node": host.slots,
        # The supervisor counts the restarts and stops the job: an agent that joined later counts fewer.
        "--max-restarts": job.max_restarts + 1,
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": f"{job.hosts[0].address}:{job.master_port}",
        "--rdzv-id": job.id,
        "--rdzv-conf": ",".join(f"{name}={value}" for name, value in settings.items()),
        "--local-addr": host.address,
    }
    return tuple(str(word) for pair in words.items() for word in pair)
