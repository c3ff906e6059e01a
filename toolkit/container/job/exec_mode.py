"""Jobs in parts, where no host reaches another (`transport: exec`).

Each host has a supervisor of its own, which sees a job of one host: its ranks, what starts them here, and
itself as main. The client that has started the job compares the parts.

A launcher on main that wants a daemon started on another host calls the program job.ssh_agent in place of
ssh, which leaves a request in the job's folder. The client reads the request through the container session
and starts the daemon; the answer comes back the same way. The client listens only while the job starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.files import content, read, write_json
from toolkit.container.job_list import is_alive, kept_status
from toolkit.container.paths import PID
from toolkit.protocol.states import FINAL_STATES

EXEC = "exec"
# In the job's folder on a host where the launcher on main wants a daemon of its own: that daemon's command.
DAEMON = "daemon.json"
# There while a job is being ended: the ranks here are over; those everywhere are, and launchers may end.
RANKS_ENDED, ALL_ENDED = "ranks-ended", "all-ended"
# Why another host's part has failed, where that says more than its own status: the host is gone.
PEER = "peer"


def own_part(job: dict[str, Any], host: str, folder: Path) -> dict[str, Any]:
    """The job as it is on this host; `folder` is the job's."""
    own = [each for each in job["hosts"] if each["name"] == host]
    launches = [each for each in job["launches"] if each["host"] == host]
    part = {**job, "main": host, "hosts": own, "launches": launches, "spares": []}
    with suppress(OSError):
        command = json.loads(content(folder / DAEMON))["command"]
        name = f"the daemon of {job['launcher']}"
        # As ssh has it on the other side: read by a shell.
        daemon = {"host": host, "argv": ["sh", "-c", command], "env": {}, "serves": False, "name": name}
        # What its ranks say is heard on main alone, so that nobody here can tell silence.
        part |= {"launches": [*launches, daemon], "stall_after": None}
    return part


FOLDER = "asks"
ASK, ANSWER = ".ask", ".answer"
POLL_S = 0.02
# Between two answers there is no more than a start in a container that is there.
PATIENCE_S = 60.0


def ask(job: Path, host: str, command: str, patience: float = PATIENCE_S) -> str:
    """Have a command started on a host; returns why it was not, empty when it was. `job` is the folder."""
    folder = job / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    answer = folder / f"{host}{ANSWER}"
    write_json(folder / f"{host}{ASK}", {"command": command})
    until = time.monotonic() + patience
    while not answer.exists():
        if time.monotonic() > until:
            return "nobody listens any more: what started the job went away before its ranks had begun"
        time.sleep(POLL_S)
    return str(read(answer).get("error", ""))


def asked(job: Path, hosts: Sequence[str], patience: float = PATIENCE_S) -> tuple[str, str] | None:
    """Wait for an ask of one of these hosts; returns host and command, None when none can come any more.

    Raises:
        TimeoutError: none has come for so long.
    """
    until = time.monotonic() + patience
    while True:
        over = is_over(job)  # looked at first: what was asked before the end is there
        for host in hosts:
            found = read(job / FOLDER / f"{host}{ASK}")
            if found is not None:
                return host, str(found["command"])
        if over:
            return None
        if time.monotonic() > until:
            names = ", ".join(hosts)
            raise TimeoutError(f"the launcher has asked for nothing on {names} for {patience:.0f} s")
        time.sleep(POLL_S)


def begun(job: Path, patience: float = PATIENCE_S) -> bool:
    """Wait until a rank has begun here; False when the job's part here is over before, or it is late."""
    until = time.monotonic() + patience
    while True:
        over = is_over(job)
        if any((job / "logs").glob("rank-*.run")):
            return True
        if over or time.monotonic() > until:
            return False
        time.sleep(POLL_S)


def answer(job: Path, host: str, error: str) -> None:
    """Tell whoever has asked what came of it."""
    write_json(job / FOLDER / f"{host}{ANSWER}", {"error": error})


def is_over(job: Path) -> bool:
    """Whether the job's part on this host has ended, or its supervisor is gone."""
    status = kept_status(job)
    pid = (status or {}).get("pid")
    if pid is None:
        try:
            pid = int(content(job / PID))
        except (OSError, ValueError):
            return False  # it is being started
    return (status or {}).get("state") in FINAL_STATES or not is_alive(pid, job.name)
