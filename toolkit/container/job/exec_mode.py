"""Jobs in parts, for hosts that cannot reach each other by ssh (`transport: exec`).

Each host has a supervisor of its own, which sees a job of one host: its ranks, its launches, and itself as
main. The client that started the job combines the parts.

A launcher on main that needs a daemon on another host calls kubexec.sh instead of ssh, which calls this
program. The program writes a request to the job's folder. The client reads the request through the container
session and starts the daemon; the answer returns the same way. The client reads requests only while the job
starts.

    job.exec_mode HOST COMMAND
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.conventions import JOB_TAG, PID, fail, job_folder
from toolkit.container.files import content, read, write_json
from toolkit.container.job_list import is_alive, kept_status
from toolkit.protocol.host_list import host_list
from toolkit.protocol.outcomes import EXIT_USAGE, FINAL_STATES

EXEC = "exec"
# In the job's folder on a host where the launcher on main needs a daemon: the daemon's command.
DAEMON = "daemon.json"
# Files while a job is being ended: all ranks of this host have ended; all ranks have, so launchers can end.
RANKS_ENDED, ALL_ENDED = "ranks-ended", "all-ended"
# The reason why another host's part has failed, if its own status does not contain it: the host is lost.
PEER = "peer"


def own_part(job: dict[str, Any], host: str, folder: Path) -> dict[str, Any]:
    """Return the part of the job on this host; `folder` is the job's."""
    own = [each for each in job["hosts"] if each["name"] == host]
    launches = [each for each in job["launches"] if each["host"] == host]
    part = {**job, "main": host, "hosts": own, "launches": launches, "spares": []}
    with suppress(OSError):
        command = json.loads(content(folder / DAEMON))["command"]
        name = f"the daemon of {job['launcher']}"
        # A shell reads it, as with ssh.
        daemon = {"host": host, "argv": ["sh", "-c", command], "env": {}, "serves": False, "name": name}
        # Output of its ranks arrives only on main, so this host cannot detect silence.
        part |= {"launches": [*launches, daemon], "stall_after": None}
    return part


FOLDER = "asks"
ASK, ANSWER = ".ask", ".answer"
POLL_S = 0.02
# Between two answers there is only a start in an existing container.
PATIENCE_S = 60.0
EXIT_NO_ANSWER = 255  # the exit code of ssh for a failed connection


def ask(job: Path, host: str, command: str, patience: float = PATIENCE_S) -> str:
    """Request the start of a command on a host; return the error, empty on success. `job` is the folder."""
    folder = job / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    answer = folder / f"{host}{ANSWER}"
    write_json(folder / f"{host}{ASK}", {"command": command})
    until = time.monotonic() + patience
    while not answer.exists():
        if time.monotonic() > until:
            return (
                f"the toolkit command that started the job did not start the daemon within {patience:.0f} s, "
                "probably because that command has exited"
            )
        time.sleep(POLL_S)
    return str(read(answer).get("error", ""))


def asked(job: Path, hosts: Sequence[str], patience: float = PATIENCE_S) -> tuple[str, str] | None:
    """Wait for a request for one of these hosts; return host and command, None if the job's part is over.

    Raises:
        TimeoutError: no request arrived within the time limit.
    """
    until = time.monotonic() + patience
    while True:
        over = is_over(job)  # checked first, so that no earlier request is missed
        for host in hosts:
            found = read(job / FOLDER / f"{host}{ASK}")
            if found is not None:
                return host, str(found["command"])
        if over:
            return None
        if time.monotonic() > until:
            names = host_list(hosts)
            raise TimeoutError(f"the launcher did not request a daemon on {names} within {patience:.0f} s")
        time.sleep(POLL_S)


def begun(job: Path, patience: float = PATIENCE_S) -> bool:
    """Wait until a rank has started here; return False if the job's part ends first or time runs out."""
    until = time.monotonic() + patience
    while True:
        over = is_over(job)
        if any((job / "logs").glob("rank-*.run")):
            return True
        if over or time.monotonic() > until:
            return False
        time.sleep(POLL_S)


def answer(job: Path, host: str, error: str) -> None:
    """Write the result of a request."""
    write_json(job / FOLDER / f"{host}{ANSWER}", {"error": error})


def is_over(job: Path) -> bool:
    """Return whether the job's part on this host has ended, or its supervisor is gone."""
    status = kept_status(job)
    pid = (status or {}).get("pid")
    if pid is None:
        try:
            pid = int(content(job / PID))
        except (OSError, ValueError):
            return False  # it is being started
    return (status or {}).get("state") in FINAL_STATES or not is_alive(pid, job.name)


def main() -> int:
    if len(sys.argv) != 3 or JOB_TAG not in os.environ:
        fail(EXIT_USAGE, "usage: job.exec_mode HOST COMMAND, in a job")
    host, command = sys.argv[1:]
    if why := ask(job_folder(os.environ[JOB_TAG]), host, command):
        fail(EXIT_NO_ANSWER, f"cannot start {command.split()[0]} on {host}: {why}")
    return 0
