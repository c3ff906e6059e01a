"""horovodrun with the MPI controller, from main, over the cluster's own ssh.

Not with the Gloo controller, unless a job is to be elastic, which Horovod does with Gloo alone: its own
rendezvous is an unauthenticated HTTP store that unpickles what anybody on the network sends it
(CVE-2024-10190, CVE-2026-31234; every version up to 0.28.1).
"""

from __future__ import annotations

from toolkit.launchers.job import INTERFACE, Job, Launch
from toolkit.launchers.openmpi import hosts_argument, openmpi_env


def horovodrun(job: Job) -> tuple[Launch, ...]:
    """Return one launch on main."""
    how = _elastic(job) if job.elastic else _mpi(job)
    # Its answers are kept in the home for an hour and outlive the cluster they were true for.
    argv = ("horovodrun", "-np", str(job.world_size), "--disable-cache", *how, *job.rank_argv)
    return (Launch(job.main, argv, openmpi_env(job)),)


def _mpi(job: Job) -> tuple[str, ...]:
    remote = any(host.name != job.main for host in job.hosts)
    # Its own discovery intersects interface names and fails where they differ. A network goes
    # straight to Open MPI; on one host alone Horovod would look it up by name and refuse it.
    networks = ("--network-interfaces", ",".join(job.networks)) if remote else ()
    return ("--mpi", "-H", hosts_argument(job), *networks)


def _elastic(job: Job) -> tuple[str, ...]:
    least, most = job.world_sizes
    return (
        "--gloo",
        "--min-np",
        str(least),
        "--max-np",
        str(most),
        # Written by the supervisor, which knows which hosts answer; read once a second.
        "--host-discovery-script",
        f"cat {job.folder}/discovered",
        # Main's own, where the rendezvous listens; the ranks' are in each host's network settings.
        "--network-interfaces",
        INTERFACE,
    )
