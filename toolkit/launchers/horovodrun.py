"""horovodrun with the MPI controller, from main, over the cluster's own SSH.

Elastic jobs use the Gloo controller, because Horovod has no other for them. Its rendezvous is an HTTP store
without authentication (CVE-2026-31234), and the elastic one unpickles worker addresses that clients send
(CVE-2024-10190). Both concern every version up to 0.28.1; see ADR 44.
"""

from __future__ import annotations

from toolkit.launchers.job import INTERFACE, Job, Launch
from toolkit.launchers.openmpi import hosts_argument, openmpi_env


def horovodrun(job: Job) -> tuple[Launch, ...]:
    """Return one launch on main."""
    how = _elastic(job) if job.elastic else _mpi(job)
    # horovodrun caches its checks of hosts in the home folder for an hour, longer than some clusters exist.
    argv = ("horovodrun", "-np", str(job.world_size), "--disable-cache", *how, *job.rank_argv)
    return (Launch(job.main, argv, openmpi_env(job)),)


def _mpi(job: Job) -> tuple[str, ...]:
    remote = any(host.name != job.main for host in job.hosts)
    # Horovod's own discovery intersects interface names and fails if they differ. A network in CIDR form is
    # passed to Open MPI; with one host Horovod would look it up as an interface name and refuse it.
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
        # The supervisor writes this file with the hosts that answer; Horovod reads it once a second.
        "--host-discovery-script",
        f"cat {job.folder}/discovered",
        # The interface of main, where the rendezvous runs. Each host's network settings have its ranks' own.
        "--network-interfaces",
        INTERFACE,
    )
