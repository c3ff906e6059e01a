"""horovodrun with the MPI controller, from main, over the cluster's own ssh.

Not with the Gloo controller: Horovod's own rendezvous is an unauthenticated HTTP store that unpickles
what anybody on the network sends it (CVE-2024-10190, CVE-2026-31234; every version up to 0.28.1).
"""

from __future__ import annotations

from toolkit.launchers.job import Job, Launch
from toolkit.launchers.openmpi import hosts_argument, openmpi_env


def horovodrun(job: Job) -> tuple[Launch, ...]:
    """Return one launch on main."""
    remote = any(host.name != job.main for host in job.hosts)
    argv = (
        "horovodrun",
        "--mpi",
        "-np",
        str(job.world_size),
        "-H",
        hosts_argument(job),
        # Its answers are kept in the home for an hour and outlive the cluster they were true for.
        "--disable-cache",
        # Its own discovery intersects interface names and fails where they differ. A network goes
        # straight to Open MPI; on one host alone Horovod would look it up by name and refuse it.
        *(("--network-interfaces", ",".join(job.networks)) if remote else ()),
        *job.rank_argv,
    )
    return (Launch(job.main, argv, openmpi_env(job)),)
