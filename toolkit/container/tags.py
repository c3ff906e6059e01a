"""Environment variables that tag the processes of a job."""

from __future__ import annotations

import signal
from pathlib import Path

JOB_TAG = "TOOLKIT_JOB"  # the job tag, set in every process of a job
RANK_TAG = "TOOLKIT_RANK"  # set only in the user's command, not in rank.py or the launcher
SUPERVISOR_TAG = "TOOLKIT_SUPERVISOR"  # set in the supervisor, which the cleanup must spare
# To a supervisor: another host's part of the job has failed, so its ranks wait in vain.
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
