"""Jobs of main and their status; as a program, one JSON list: status, record and whether each is alive.

The program is also sent to main on standard input, because it then reads what another toolkit has left there.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict, cast

from toolkit.container.files import content, read, write_reserved, write_text
from toolkit.container.paths import PID, in_memory, job_folder
from toolkit.protocol.states import FINAL_STATES


class Status(TypedDict):
    """status.json; times are seconds since the epoch."""

    state: str
    exit_code: int | None
    started: float
    ended: float | None
    pid: int
    reason: str
    unswept: list[str]  # hosts of which nobody could say that nothing is left there
    hosts: dict[str, list[int]]  # of this attempt: names in rank order, with the slots taken there
    restarts: list[dict[str, Any]]  # what each attempt before this one ended by: at, reason, host, hosts
    cause: dict[str, Any]  # the record of the rank that failed first; empty where none did
    lost_host: str  # the host whose loss ended the job; empty if it ended for another reason
    asked: float | None  # when somebody asked for the end; None where nobody did


def read_status(job_id: str) -> Status | None:
    """status.json, or what stands for it until there is one; None where the job was not started here."""
    folder = job_folder(job_id)
    return cast("Status | None", kept_status(folder) or early_status(folder))


def keep_status(folder: Path, status: Status) -> None:
    """Write status.json, the final one in reserved space. If the disk is full, write it to memory instead."""
    path, memory = folder / "status.json", in_memory(folder, "status")
    write = write_reserved if status["state"] in FINAL_STATES else write_text
    text = json.dumps(status) + "\n"
    try:
        write(path, text)
        memory.unlink(missing_ok=True)
    except OSError:
        with suppress(OSError):  # no other place is left
            write_text(memory, text)


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


def main() -> None:
    print(json.dumps(list_jobs(sys.argv[1])))
