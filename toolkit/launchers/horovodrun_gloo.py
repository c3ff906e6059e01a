"""horovodrun with the Gloo controller, for images without MPI; a warning names its vulnerabilities."""

from __future__ import annotations

from toolkit.launchers.job import INTERFACE, Job, Launch
from toolkit.launchers.openmpi import hosts_argument, openmpi_env


def horovodrun_gloo(job: Job) -> tuple[Launch, ...]:
    """Return one launch on main, where Horovod's rendezvous listens: see horovodrun.py."""
    remote = any(host.name != job.main for host in job.hosts)
    # The interface of main. Each host's network settings have that of its ranks. With one host Horovod uses
    # loopback and refuses every other interface.
    interfaces = ("--network-interfaces", INTERFACE) if remote else ()
    start = ("horovodrun", "-np", str(job.world_size), "--disable-cache", "--gloo", "-H", hosts_argument(job))
    argv = (*start, *interfaces, *job.rank_argv)
    # By these variables Horovod leaves SSH to the agent.
    return (Launch(job.main, argv, openmpi_env(job)),)
