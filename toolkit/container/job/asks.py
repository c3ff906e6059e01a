"""What a launcher on main wants started on other hosts, where main itself reaches none (`transport: exec`).

ssh_agent.py, called by the launcher in place of ssh, leaves an ask in the job's folder. The client that has
started the job reads it through session.py and has it done; the answer comes back the same way. The client
listens at the start of a job alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from toolkit.container.files import content, read, write_json
from toolkit.container.job_list import is_alive, kept_status
from toolkit.container.paths import PID

FOLDER = "asks"
ASK, ANSWER = ".ask", ".answer"
POLL_S = 0.02
# Between two answers there is no more than a start in a container that is there.
PATIENCE_S = 60.0

_FINAL = ("succeeded", "failed", "stopped", "timeout")


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
    return (status or {}).get("state") in _FINAL or not is_alive(pid, job.name)
