"""Network parameters of Open MPI's launcher."""

from __future__ import annotations

from collections.abc import Sequence


def openmpi_network(networks: Sequence[str]) -> dict[str, str]:
    """Return parameters for Open MPI's launcher: CIDRs, equal on all hosts even if interface names differ.

    Open MPI 5 starts its daemons by PRRTE, which reads its own parameters under another prefix
    (https://docs.open-mpi.org/en/v5.0.x/mca.html; prte_if_include in PRRTE's prte_mca_params.c).
    """
    joined = ",".join(networks)
    return {"OMPI_MCA_oob_tcp_if_include": joined, "PRTE_MCA_prte_if_include": joined}
