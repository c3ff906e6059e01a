"""Jobs of main and their status; as a program it prints one JSON list of status, record and liveness.

The program is also sent to main on standard input, to read the files of another toolkit version.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict, cast

from toolkit.container.conventions import PID, in_memory, job_folder
from toolkit.container.files import content, read, write_reserved, write_text
from toolkit.protocol.outcomes import FINAL_STATES


class Status(TypedDict):
    """status.json; times are seconds since the epoch."""

    state: str
    exit_code: int | None
    started: float
    ended: float | None
    pid: int
    reason: str
    unswept: list[str]  # hosts whose cleanup could not be confirmed
    hosts: dict[str, list[int]]  # of this attempt: names in rank order, with the slots taken there
    restarts: list[dict[str, Any]]  # end of each earlier attempt: at, reason, host, hosts
    cause: dict[str, Any]  # the record of the rank that failed first; empty if none failed
    lost_host: str  # the host whose loss ended the job; empty if it ended for another reason
    asked: float | None  # time of the request to stop; None without a request


def read_status(job_id: str) -> Status | None:
    """Return status.json or its early form; None if the job was not started here."""
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
    """Return whether the job's supervisor runs.

    A pid is not enough: after a restart of the container another program can
    have it, so the supervisor's own tag is checked.
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
    """Return an early status if the supervisor runs but has not written status.json yet; otherwise None."""
    try:
        pid = int(content(folder / PID))
        started = (folder / PID).stat().st_mtime
    except (OSError, ValueError):
        return None
    status: dict[str, Any] = {"state": "starting", "exit_code": None, "started": started, "ended": None}
    status |= {"pid": pid, "reason": "", "unswept": [], "hosts": {}, "restarts": []}
    return status | {"cause": {}, "asked": None, "lost_host": ""}


def _only(value: Any, *keys: str) -> Any:
    """Return a JSON object with only these keys; another value unchanged, because the client reports it."""
    return {key: value[key] for key in keys if key in value} if isinstance(value, dict) else value


def _only_in(value: Any, name: str, *keys: str) -> Any:
    """Return a JSON object in which the objects of the list ``name`` have only these keys."""
    if not isinstance(value, dict) or not isinstance(value.get(name), list):
        return value
    return {**value, name: [_only(one, *keys) for one in value[name]]}


def _each_host_once(status: Any) -> Any:
    """Return a status in which each restart has only the hosts that no earlier restart has."""
    if not isinstance(status, dict) or not isinstance(status.get("restarts"), list):
        return status
    known: set[str] = set()
    restarts = []
    for one in status["restarts"]:
        if isinstance(one, dict) and isinstance(names := one.get("hosts"), list):
            new = [name for name in names if not isinstance(name, str) or name not in known]
            known.update(name for name in new if isinstance(name, str))
            one = {**one, "hosts": new}
        restarts.append(one)
    return {**status, "restarts": restarts}


def list_jobs(jobs: str | Path) -> list[dict[str, Any]]:
    """Return the jobs whose folders are in a folder, with the fields that the readers of the list use.

    The complete records of many jobs would exceed the size of an answer.
    """
    found = []
    for folder in sorted(Path(jobs).iterdir()):
        status = kept_status(folder) or early_status(folder)
        if isinstance(status, dict):
            alive = is_alive(status.get("pid"), folder.name)
            # The job can end between the two checks.
            status = status if alive else kept_status(folder) or status
            status = _each_host_once(_only_in(status, "restarts", "reason", "hosts"))
            names = ("owner", "launcher", "command", "hosts", "transport", "elastic")
            record = _only(read(folder / "record.json"), *names)
            record = _only_in(record, "hosts", "name", "slots", "taken")
            found.append(
                {"id": folder.name, "alive": alive, "status": status, "record": record, "now": time.time()}
            )
    return found


def main() -> None:
    print(json.dumps(list_jobs(sys.argv[1])))
