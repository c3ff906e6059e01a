"""Lists the jobs that main knows: one JSON list with each job's status, record and whether it is alive.

It is also sent along on standard input, for then it reads what another toolkit has left on main.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import time
import zlib
from pathlib import Path
from typing import Any

PREPARATION = "preparation.json"  # in a job's folder on main: what `run` did before it started, by the second
MOST_BYTES = 1 << 24  # of a file that is read whole
PID = "supervisor.pid"  # in a job's folder on main: the supervisor's number, before its first status


def content(path: Path) -> bytes:
    """Return the bytes of a file in a folder where ranks may write, without waiting for a writer.

    Raises:
        OSError: it cannot be read, is a link or no regular file, or has more than ``MOST_BYTES``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def read(path: Path) -> Any:
    """What a JSON file holds, None when it cannot be read."""
    try:
        return json.loads(content(path))
    except (OSError, ValueError, RecursionError):
        return None


def is_alive(pid: object, job: str) -> bool:
    """Whether the job's supervisor runs.

    The number of a process says nothing by itself: after a restart of the container another program may
    have it, so the supervisor's own mark is looked for.
    """
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"TOOLKIT_SUPERVISOR={job}".encode() in environ.split(b"\0")


def in_memory(folder: Path, name: str) -> Path:
    """The path of a job's file in the container's memory; in the job's folder if there is no such memory."""
    memory = Path("/dev/shm")
    own = f"toolkit-{zlib.crc32(str(folder).encode()):08x}.{name}"
    return memory / own if os.access(memory, os.W_OK) else folder / own


def kept_status(folder: Path) -> Any:
    """Return status.json of a job, or a newer one in memory that the disk did not take, or None."""
    return read(in_memory(folder, "status")) or read(folder / "status.json")


def early_status(folder: Path) -> dict[str, Any] | None:
    """status.json of a job whose supervisor has been started and has written none yet; None without one."""
    try:
        pid = int(content(folder / PID))
        started = (folder / PID).stat().st_mtime
    except (OSError, ValueError):
        return None
    status: dict[str, Any] = {"state": "starting", "exit_code": None, "started": started, "ended": None}
    status |= {"pid": pid, "reason": "", "unswept": [], "hosts": {}, "restarts": []}
    return status | {"cause": {}, "asked": None, "lost_host": ""}


def list_jobs(jobs: str | Path) -> list[dict[str, Any]]:
    """The jobs whose folders stand in a folder."""
    found = []
    for folder in sorted(Path(jobs).iterdir()):
        status = kept_status(folder) or early_status(folder)
        if isinstance(status, dict):
            alive = is_alive(status.get("pid"), folder.name)
            # It may have ended between the two looks.
            status = status if alive else kept_status(folder) or status
            record = read(folder / "record.json")
            found.append(
                {"id": folder.name, "alive": alive, "status": status, "record": record, "now": time.time()}
            )
    return found


if __name__ == "__main__":
    print(json.dumps(list_jobs(sys.argv[1])))
