"""mpirun of Open MPI, from main, over the cluster's own SSH."""

from __future__ import annotations

from toolkit.launchers.job import Job, Launch
from toolkit.launchers.openmpi import hosts_argument, openmpi_env
from toolkit.protocol.transport import EXEC


def mpirun(job: Job) -> tuple[Launch, ...]:
    """Return one launch on main; MPI, and torch.distributed through the rank program's variables."""
    network = ("--mca", "btl_tcp_if_include", ",".join(job.networks))
    # Open MPI cuts output at 4096 bytes. With tags the supervisor can join the parts of a line again.
    where: tuple[str, ...] = ("--tag-output", "-H", hosts_argument(job))
    if job.transport == EXEC:
        # Otherwise a daemon detaches from the supervisor that started it.
        where = ("--leave-session-attached", *where)
    argv = mpirun_words(str(job.world_size), where, (*network, *job.rank_argv))
    return (Launch(job.main, argv, openmpi_env(job)),)


def mpirun_words(ranks: str, where: tuple[str, ...], rest: tuple[str, ...]) -> tuple[str, ...]:
    """Return mpirun with the options that are the same for every call.

    Args:
        where: the hosts and their slots, as ``-H gpu1:2,gpu2:4``; options before it are allowed.
        rest: more options, and the command of each rank.
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
        "ob1",  # TCP on the network that toolkit chose; UCX would choose interfaces itself
        "--mca",
        "btl",
        "^openib",  # deprecated in 4.1, and prints warnings on hosts without such a device
        *rest,
    )
