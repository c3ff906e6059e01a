"""Environment variables that mark the processes of a job."""

from __future__ import annotations

import signal
from pathlib import Path

JOB_MARK = "TOOLKIT_JOB"  # carried by every process of a job
RANK_MARK = "TOOLKIT_RANK"  # by the user's command alone: not rank.py, not the launcher
SUPERVISOR_MARK = "TOOLKIT_SUPERVISOR"  # by the supervisor, which the sweep must spare
# To a supervisor: another host's part of the job has failed, so that its ranks wait for what never comes.
PEER_FAILED = signal.SIGUSR1
HOST_MARK = "TOOLKIT_TO"  # by the ssh of a launcher on main: the host to which it leads


def is_marked(pid: int, mark: str, job_id: str, ranks: bool = False) -> bool:
    """Whether process `pid` was started with `mark` set to exactly `job_id`.

    With `ranks`, only where it is the user's command of a rank or was started by one.
    """
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # gone, or another user's
    of_rank = any(entry.startswith(RANK_MARK.encode() + b"=") for entry in environ)
    return f"{mark}={job_id}".encode() in environ and (of_rank or not ranks)
