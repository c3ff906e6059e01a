"""Transports: methods to start a job's ranks on hosts other than main.

With ssh, the launcher on main connects to the workers through an sshd of the cluster. With exec there is no
sshd and no key in the containers: each host has a part of the job with its own supervisor, and the command
that starts the job starts all supervisors.

With auto, `toolkit up` chooses ssh if the image has the programs that ssh needs, and exec otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

AUTO, SSH, EXEC = "auto", "ssh", "exec"
TRANSPORTS = (AUTO, SSH, EXEC)

# Launchers that need no connection between hosts once all launches run.
WITHOUT_SSH = ("accelerate", "mpirun", "python", "torchrun")
# Launchers that need SSH -> the launcher that starts the same ranks without it.
INSTEAD = {"deepspeed": "torchrun", "horovodrun": "mpirun"}

# The exit status of a container if its image does not contain the program.
NOT_FOUND = 127
_SSHD, _SSH = "/usr/sbin/sshd", "ssh"
# The reason for exec if auto chose it.
NO_SSH = f"the image has no {_SSH} or no {_SSHD}"


def needs_of(transport: str, hosts: int) -> tuple[str, ...]:
    """Return the programs that an image must have for a transport between this number of hosts."""
    return (_SSH, _SSHD) if transport == SSH and hosts > 1 else ()


def transport_for(lacks: Collection[str]) -> str:
    """Return the transport that auto chooses for an image.

    Args:
        lacks: programs that the image does not have, among ``needs_of(SSH, 2)``.
    """
    return EXEC if set(needs_of(SSH, 2)).intersection(lacks) else SSH


def without_sshd(image: str, launcher: str = "") -> str:
    """Return the fix for an image without sshd.

    Args:
        launcher: a launcher that hosts.yaml must set for exec; empty if the present launcher works.
    """
    keys = f"transport: {EXEC}" + (f" and launcher: {launcher}" if launcher else "")
    return f"set {keys} in hosts.yaml, or add sshd to the image: toolkit image build --onto {image}"


def transport_text(chosen: str) -> str:
    """Return a transport that auto chose, with the reason."""
    return f"{EXEC} ({NO_SSH})" if chosen == EXEC else f"{SSH} (the image has {_SSH} and {_SSHD})"


def openmpi_network(networks: Sequence[str]) -> dict[str, str]:
    """Return parameters for Open MPI's launcher: CIDRs, equal on all hosts even if interface names differ.

    Open MPI 5 starts its daemons by PRRTE, which reads its own parameters under another prefix
    (https://docs.open-mpi.org/en/v5.0.x/mca.html; prte_if_include in PRRTE's prte_mca_params.c).
    """
    joined = ",".join(networks)
    return {"OMPI_MCA_oob_tcp_if_include": joined, "PRTE_MCA_prte_if_include": joined}
