"""mpirun of Open MPI 4.1, from main, over the cluster's own ssh."""

from __future__ import annotations

from toolkit.launchers.job import Job, Launch
from toolkit.launchers.openmpi import hosts_argument, openmpi_env


def mpirun(job: Job) -> tuple[Launch, ...]:
    """Return one launch on main; MPI, and torch.distributed through the rank program's variables."""
    argv = (
        "mpirun",
        "--tag-output",  # lets the supervisor join lines that Open MPI cuts at 4096 bytes
        "-np",
        str(job.world_size),
        "-H",
        hosts_argument(job),
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
        "--mca",
        "btl_tcp_if_include",
        ",".join(job.networks),
        *job.rank_argv,
    )
    return (Launch(job.main, argv, openmpi_env(job)),)
