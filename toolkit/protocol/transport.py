"""How a job's ranks are started on hosts other than main, and what of a job each host has then.

With ssh the launcher on main reaches the workers through an sshd of the cluster. With exec nothing listens
and no container holds a key: each host has a part of the job, with a supervisor of its own, and whoever
starts the job starts them all.
"""

from __future__ import annotations

SSH, EXEC = "ssh", "exec"
TRANSPORTS = (SSH, EXEC)

# Launchers that need no connection between hosts once all launches run.
WITHOUT_SSH = ("accelerate", "mpirun", "python", "torchrun")
# Launchers that need SSH -> the launcher that starts the same ranks without it.
INSTEAD = {"deepspeed": "torchrun", "horovodrun": "mpirun"}

# The status of a container whose program its image does not have.
NOT_FOUND = 127
_SSHD, _SSH = "/usr/sbin/sshd", "ssh"
# For places that do not know what else the image has; `check` does.
WITHOUT_SSHD = (
    "in hosts.yaml: transport: exec; or use an image with sshd: toolkit image build, then image: toolkit:cpu"
    " or image: toolkit:gpu"
)


def needs_of(transport: str, hosts: int) -> tuple[str, ...]:
    """Return the programs that an image must have for a transport between this number of hosts."""
    return (_SSH, _SSHD) if transport == SSH and hosts > 1 else ()
