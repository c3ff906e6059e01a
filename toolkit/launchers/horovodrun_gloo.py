"""horovodrun with the Gloo controller: for images without MPI, with the warning that belongs to it."""

from __future__ import annotations

from toolkit.launchers.job import INTERFACE, Job, Launch
from toolkit.launchers.openmpi import hosts_argument, openmpi_env


def horovodrun_gloo(job: Job) -> tuple[Launch, ...]:
    """Return one launch on main, where Horovod's rendezvous listens: see horovodrun.py."""
    remote = any(host.name != job.main for host in job.hosts)
    # Main's own; the ranks' are in each host's network settings. On one host alone Horovod takes loopback,
    # and refuses every other one.
    interfaces = ("--network-interfaces", INTERFACE) if remote else ()
    start = ("horovodrun", "-np", str(job.world_size), "--disable-cache", "--gloo", "-H", hosts_argument(job))
    argv = (*start, *interfaces, *job.rank_argv)
    # By its variables Horovod knows that ssh is the agent's affair.
    return (Launch(job.main, argv, openmpi_env(job)),)
