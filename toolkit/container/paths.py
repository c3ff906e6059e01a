"""Paths of toolkit in a container: the folders and files of jobs, its programs, its ssh configuration."""

from __future__ import annotations

import os
import re
import shlex
import zlib
from collections.abc import Sequence
from pathlib import Path

from toolkit.container.exits import fail
from toolkit.protocol.exit_codes import EXIT_USAGE

# In a job's folder while its ranks are being ended. A launcher kills all ranks within a second once
# one has ended, so rank.py stays until the others have had their whole grace as well.
STOPPING = "stopping"
# In a job's folder on main: the grace that a person gave with `stop`, in seconds.
GRACE = "grace"
# In a job's folder on the hosts of an attempt after the first: what of job.json is another then.
ATTEMPT = "attempt.json"


def root() -> Path:
    """Return the folder of toolkit in this container; read at each call, so that no import fixes it."""
    return Path(os.environ.get("TOOLKIT_ROOT", "/run/toolkit"))


def job_folder(job_id: str) -> Path:
    """The job's own folder on this host; a job id is never a path."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", job_id):
        fail(EXIT_USAGE, f"{job_id!r} is not a job id")
    return root() / "jobs" / job_id


def temporary_folder(job_id: str) -> Path:
    """Where launchers put their own files on this host: what they leave when they are killed goes with it.

    Its name is short: sockets below it may have names of 107 letters in all.
    """
    return Path("/tmp", f"toolkit-{zlib.crc32(job_id.encode()):08x}")


def lease_path(folder: Path) -> Path:
    """The file of a host that says until when, by its monotonic clock, ranks of the job may run.

    It lies in memory: a disk that is busy with a checkpoint, or a file server, may let who writes wait for
    longer than a host may be silent.

    Args:
        folder: the job's own; the file lies there where the container has no memory to write to.
    """
    return in_memory(folder, "lease")


def program(name: str) -> list[str]:
    """Return the words that start a program of this package, such as ``job.lease``, after those of Python."""
    return [str(root() / "inside" / "run.py"), name]


def ssh_args(host: str, command: Sequence[str]) -> list[str]:
    """The argv which runs `command` on `host` through the cluster's own sshd."""
    return ["ssh", "-F", str(root() / "conf" / "ssh_config"), host, shlex.join(command)]


PREPARATION = "preparation.json"  # in a job's folder on main: what `run` did before it started, by the second
PID = "supervisor.pid"  # in a job's folder on main: the supervisor's number, before its first status


def in_memory(folder: Path, name: str) -> Path:
    """The path of a job's file in the container's memory; in the job's folder if there is no such memory."""
    memory = Path("/dev/shm")
    own = f"toolkit-{zlib.crc32(str(folder).encode()):08x}.{name}"
    return memory / own if os.access(memory, os.W_OK) else folder / own
