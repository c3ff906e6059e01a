"""mpirun of Open MPI 4.1, from main, over the cluster's own ssh."""

from __future__ import annotations

from toolkit.launchers.job import Job, Launch
from toolkit.launchers.openmpi import hosts_argument, openmpi_env
from toolkit.protocol.transport import EXEC


def mpirun(job: Job) -> tuple[Launch, ...]:
    """Return one launch on main; MPI, and torch.distributed through the rank program's variables."""
    network = ("--mca", "btl_tcp_if_include", ",".join(job.networks))
    # So tagged, lines that Open MPI cuts at 4096 bytes can be joined again by the supervisor.
    where: tuple[str, ...] = ("--tag-output", "-H", hosts_argument(job))
    if job.transport == EXEC:
        # So that a daemon stays what its supervisor has started, and does not become a process of its own.
        where = ("--leave-session-attached", *where)
    argv = mpirun_words(str(job.world_size), where, (*network, *job.rank_argv))
    return (Launch(job.main, argv, openmpi_env(job)),)


def mpirun_words(ranks: str, where: tuple[str, ...], rest: tuple[str, ...]) -> tuple[str, ...]:
    """Return mpirun with what is the same wherever it is called.

    Args:
        where: the hosts and their slots, as ``-H gpu1:2,gpu2:4``; options may stand before.
        rest: more options, and what each rank executes.
    """
    return (
        "mpirun",
        *where,
        "-np",
        ranks,
        "--bind-to",
        "none",  # data loaders and OpenMP threads of a rank need more than one core
        "--map-by",
        "slot",
        "--mca",
        "pml",
        "ob1",  # TCP by our choice of network; UCX would look for interfaces by itself
        "--mca",
        "btl",
        "^openib",  # deprecated in 4.1 and noisy where no such device is
        *rest,
    )
