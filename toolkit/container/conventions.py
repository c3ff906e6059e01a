"""Conventions of the programs in containers: paths, exits, tags of a job's processes, intervals of leases."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from toolkit.protocol.outcomes import EXIT_USAGE

# In a job's folder while its ranks are being ended. A launcher kills all ranks within a second after
# one has exited, so rank.py stays until the others have used their complete grace. The file contains the
# grace in seconds.
STOPPING = "stopping"
# In a job's folder on main: the user's grace from `stop`, in seconds.
GRACE = "grace"
# In a job's folder on the hosts of an attempt after the first: the changed fields of job.json.
ATTEMPT = "attempt.json"
# In a job's folder on the hosts of an attempt after which another one follows.
RESTART = "restart"


def root() -> Path:
    """Return the folder of toolkit in this container; read at each call, so that no import fixes it."""
    return Path(os.environ.get("TOOLKIT_ROOT", "/run/toolkit"))


def job_folder(job_id: str) -> Path:
    """Return the job's folder on this host; reject a job id that is a path."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", job_id):
        fail(EXIT_USAGE, f"{job_id!r} is not a job id")
    return root() / "jobs" / job_id


def temporary_folder(job_id: str) -> Path:
    """Return the folder for launchers' own files on this host; it is removed with what they leave.

    Its name is short: paths of sockets in it are limited to 107 characters.
    """
    return Path("/tmp", f"toolkit-{zlib.crc32(job_id.encode()):08x}")


def launcher_env(env: Mapping[str, str], job_id: str) -> dict[str, str]:
    """Return this environment with the folder for launchers' files; rank.py restores TMPDIR of the image."""
    folder = str(temporary_folder(job_id))
    kept = env.get("TMPDIR", folder)
    return {**env, **({} if kept == folder else {IMAGE_TMPDIR: kept}), "TMPDIR": folder}


def lease_path(folder: Path) -> Path:
    """Return the file with the time, by the host's monotonic clock, until which ranks of the job can run.

    It is in memory: a disk that is busy with a checkpoint, or a file server, can delay a write for longer
    than a host can be silent.

    Args:
        folder: the job's own; the file is there if the container has no memory to write to.
    """
    return in_memory(folder, "lease")


def program(name: str) -> list[str]:
    """Return the words that start a program of this package, such as ``job.lease``, after those of Python."""
    return [str(root() / "inside" / "run.py"), name]


def ssh_args(host: str, command: Sequence[str]) -> list[str]:
    """Return the argv that runs `command` on `host` through the cluster's own sshd."""
    return ["ssh", "-F", str(root() / "conf" / "ssh_config"), host, shlex.join(command)]


PREPARATION = "preparation.json"  # in a job's folder on main: steps of `run` before the start, with times
PID = "supervisor.pid"  # in a job's folder on main: the supervisor's pid, before its first status


def in_memory(folder: Path, name: str) -> Path:
    """Return the path of a job's file in the container's memory, or in the job's folder without /dev/shm."""
    memory = Path("/dev/shm")
    own = f"toolkit-{zlib.crc32(str(folder).encode()):08x}.{name}"
    return memory / own if os.access(memory, os.W_OK) else folder / own


# Environment variables that tag the processes of a job.
IMAGE_TMPDIR = "TOOLKIT_TMPDIR"  # TMPDIR of the image while launchers run; also set in kubexec.sh
JOB_TAG = "TOOLKIT_JOB"  # the job tag, set in every process of a job
RANK_TAG = "TOOLKIT_RANK"  # set only in the user's command, not in rank.py or the launcher
SUPERVISOR_TAG = "TOOLKIT_SUPERVISOR"  # set in the supervisor, which the cleanup must spare
# To a supervisor: the part of the job on another host has failed, so no rank of that part will answer again.
PEER_FAILED = signal.SIGUSR1
HOST_TAG = "TOOLKIT_TO"  # set in a launcher's ssh on main: the target host


def is_tagged(pid: int, mark: str, job_id: str, ranks: bool = False) -> bool:
    """Return whether process `pid` was started with `mark` set to exactly `job_id`.

    With `ranks`, only if it is the user's command of a rank or was started by one.
    """
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # exited, or owned by another user
    of_rank = any(entry.startswith(RANK_TAG.encode() + b"=") for entry in environ)
    return f"{mark}={job_id}".encode() in environ and (of_rank or not ranks)


# Intervals and limits of leases, in seconds.
HEARTBEAT_S = 0.5  # interval of main's heartbeats
LOST_S = 4.0  # a host that has not answered for this time is lost
LEASE_S = 10.0  # a host that has not received a heartbeat for this time ends its ranks


def fail(code: int, message: str) -> NoReturn:
    """Print `message` with toolkit's prefix to stderr and exit with `code`."""
    sys.stderr.write(f"[toolkit] {message}\n")
    sys.stderr.flush()
    sys.exit(code)


def exit_code_of(returncode: int) -> int:
    """Return a subprocess return code as a shell reports it: 128+n for signal n."""
    return 128 - returncode if returncode < 0 else returncode
