"""What Open MPI is told, for mpirun and for horovodrun, which calls mpirun.

Version 4.1, which the images carry, reads OMPI_MCA_*; version 5 starts its daemons by PRRTE, which reads
PRTE_MCA_* (plm_ssh_component.c in its source). Each passes over the other's names.
"""

from __future__ import annotations

from toolkit.launchers.job import Job
from toolkit.protocol.openmpi import openmpi_network

# Horovod leaves its own ssh calls to an agent of exactly this name, so no ssh of its making is started.
# `up` mounts it from toolkit/container/kubexec.sh.
AGENT = "/etc/mpi/kubexec.sh"


def hosts_argument(job: Job) -> str:
    """Return the hosts and slots as ``gpu1:2,gpu2:4``."""
    return ",".join(f"{host.name}:{host.slots}" for host in job.hosts)


def openmpi_env(job: Job) -> tuple[tuple[str, str], ...]:
    """Return what Open MPI's launcher is told by its environment."""
    env = {**openmpi_network(job.networks), **openmpi_daemons(AGENT, max(len(job.hosts), 1))}
    return tuple(sorted(env.items()))


def openmpi_daemons(agent: str, hosts: int) -> dict[str, str]:
    """Return how Open MPI's launcher is to start its daemons, for 4.1 and for 5.

    In the environment rather than on the command line, because Open MPI takes a parameter that
    stands twice on a command line as an error, and horovodrun writes some of its own. Not among them:
    odls_base_sigkill_timeout, which Open MPI sleeps out several times over at every failed job.
    """
    launch = {
        "agent": agent,
        # Only main holds the key: a worker cannot start another worker.
        "no_tree_spawn": "1",
        "num_concurrent": str(hosts),
    }
    env: dict[str, str] = {}
    for name, value in launch.items():
        env |= {f"OMPI_MCA_plm_rsh_{name}": value, f"PRTE_MCA_plm_ssh_{name}": value}
    return env
