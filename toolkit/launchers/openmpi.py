"""Settings of Open MPI, for mpirun and for horovodrun, which calls mpirun.

Version 4.1, which the images have, reads OMPI_MCA_*. Version 5 starts its daemons by PRRTE, which reads
PRTE_MCA_* (plm_ssh_component.c in its source). Each ignores the names of the other.
"""

from __future__ import annotations

from toolkit.launchers.job import Job
from toolkit.protocol.transport import openmpi_network

# Horovod starts no ssh itself if the agent has exactly this name. `up` mounts it from
# toolkit/container/kubexec.sh.
AGENT = "/etc/mpi/kubexec.sh"

# With an SSH user root, mpirun runs as root in the containers. Without these variables it refuses to.
_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def hosts_argument(job: Job) -> str:
    """Return the hosts and slots as ``gpu1:2,gpu2:4``."""
    return ",".join(f"{host.name}:{host.slots}" for host in job.hosts)


def openmpi_env(job: Job) -> tuple[tuple[str, str], ...]:
    """Return the environment of Open MPI's launcher."""
    env = {**openmpi_network(job.networks), **openmpi_daemons(AGENT, max(len(job.hosts), 1)), **_ROOT}
    return tuple(sorted(env.items()))


def openmpi_daemons(agent: str, hosts: int) -> dict[str, str]:
    """Return the variables by which Open MPI's launcher starts its daemons, for 4.1 and for 5.

    They are variables, not options, because Open MPI refuses a parameter that occurs twice on a command line,
    and horovodrun writes some itself. odls_base_sigkill_timeout is not set: Open MPI waits for it several
    times at every failed job.
    """
    launch = {
        "agent": agent,
        # Only main has the key: a worker cannot start another worker.
        "no_tree_spawn": "1",
        "num_concurrent": str(hosts),
    }
    env: dict[str, str] = {}
    for name, value in launch.items():
        env |= {f"OMPI_MCA_plm_rsh_{name}": value, f"PRTE_MCA_plm_ssh_{name}": value}
    return env
