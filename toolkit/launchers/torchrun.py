"""torchrun: one agent per host, started side by side."""

from __future__ import annotations

from toolkit.launchers.job import Job, JobHost, Launch

# How the agents of an elastic job find each other; "Rendezvous" in the documentation of torch.distributed.
_RENDEZVOUS = {
    "last_call_timeout": 3,  # for how long a round that has enough hosts waits for more; 30 by default
    "keep_alive_interval": 1,  # a host is out after three that it missed; 5 by default
    "keep_alive_max_attempt": 3,
}
_ELASTIC_ENV = (
    # Agents that outlive the first host's, by the moment in which all end, print a stack each.
    ("TORCH_CPP_LOG_LEVEL", "ERROR"),
    # Shared, the store's place is told in the first round alone (dynamic_rendezvous.py of PyTorch 2.13), and
    # an agent that comes in a later one waits for it in vain.
    ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),
)


def torchrun(job: Job) -> tuple[Launch, ...]:
    """Return one launch per host, one for each spare too where the job is elastic."""
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
    """Static ranks: the c10d rendezvous finds its place by comparing host names, which fails where a name
    resolves to loopback. The store listens on the first host.
    """
    words = ("--nnodes", len(job.hosts), "--node-rank", index, "--nproc-per-node", host.slots)
    return tuple(map(str, (*words, "--master-addr", job.hosts[0].address, "--master-port", job.master_port)))


def _elastic(job: Job, host: JobHost, index: int) -> tuple[str, ...]:
    """The c10d rendezvous, told whose store it is and by which address each host goes."""
    settings = {"is_host": str(index == 0).lower(), **_RENDEZVOUS}
    words = {
        "--nnodes": f"{job.least_hosts}:{len(job.hosts)}",
        "--nproc-per-node": host.slots,
        # The supervisor counts, and ends the job when it is enough: an agent that came later counts less.
        "--max-restarts": job.max_restarts + 1,
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": f"{job.hosts[0].address}:{job.master_port}",
        "--rdzv-id": job.id,
        "--rdzv-conf": ",".join(f"{name}={value}" for name, value in settings.items()),
        "--local-addr": host.address,
    }
    return tuple(str(word) for pair in words.items() for word in pair)
