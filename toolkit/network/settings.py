"""What to tell NCCL, Gloo and Open MPI about a host's network, one host at a time."""

from __future__ import annotations

from toolkit.network.choose import DataPath


def rank_settings(path: DataPath) -> tuple[tuple[str, str], ...]:
    """Return the variables that every rank on this host gets, sorted by name.

    Names differ from host to host, so these are never copied from one host to another: the rank
    program sets them last of all (see ``toolkit/inside/rank.py``).
    """
    if not path.interface:
        return ()
    return tuple(
        sorted(
            {
                # "=" asks for an exact match: without it eth1 also takes eth10 (NCCL's user guide).
                "NCCL_SOCKET_IFNAME": f"={path.interface}",
                # Gloo takes one concrete name and no pattern.
                "GLOO_SOCKET_IFNAME": path.interface,
                # TensorPipe, for torch.distributed.rpc.
                "TP_SOCKET_IFNAME": path.interface,
                # Open MPI takes a network; this is read when the rank calls MPI_Init.
                "OMPI_MCA_btl_tcp_if_include": path.network,
            }.items()
        )
    )
