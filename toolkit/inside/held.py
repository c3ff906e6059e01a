"""One lease on a host as the supervisor sees it: a process, what it is told, and its silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from common import JOB_MARK, LOST_S, SUPERVISOR_MARK, Job, program, ssh_args
from elastic import hosts_of
from sweep import CONNECT_S


class Held:
    """One host's lease, from the start of its process to its end."""

    def __init__(self, job: Job, host: str) -> None:
        self.host = host
        words = lease_words(job, host)
        env = {**os.environ}
        if host == job["main"]:
            argv = [sys.executable, *words[1:]]
            env[JOB_MARK] = job["id"]
            env.pop(SUPERVISOR_MARK, None)
        else:
            # This ssh carries the supervisor's mark and not the job's: main's sweep must not end it.
            argv = ssh_args(host, ["exec", "env", f"{JOB_MARK}={job['id']}", *words])
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        for pipe in (self.process.stdin, self.process.stdout):
            os.set_blocking(pipe.fileno(), False)
        self.begun = self.heard = time.monotonic()
        self.answered = False
        self.lost = ""  # why, once it is
        self.rest = b""
        self.unsent = b""

    def send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.unsent += json.dumps(request).encode() + b"\n"
        with suppress(OSError):  # a full pipe, or nobody reads it any more: what is read says which
            self.unsent = self.unsent[os.write(self.process.stdin.fileno(), self.unsent) :]

    def release(self) -> None:
        """Let the process over there end in peace."""
        self.send({"n": 0, "do": "release"})
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        if self.lost:
            self.process.kill()

    def silence(self, now: float) -> str:
        """Why the host counts as lost, empty while it does not."""
        limit = LOST_S if self.answered else CONNECT_S
        if now - self.heard <= limit:
            return ""
        return f"has not answered for {limit:.0f} s"

    def last_words(self) -> str:
        """What ssh or the program over there said, after their end."""
        assert self.process.stderr is not None
        code = self.process.wait()
        text = self.process.stderr.read().decode(errors="replace").strip().splitlines()
        if code == 0 and not text:
            return "it had not heard from main for too long, and has ended its ranks"
        return text[-1].rstrip(".") if text else f"its lease ended with exit code {code}"


def lease_words(job: Job, host: str) -> list[str]:
    """The command of a host's lease; everybody on the host can read it, so it says who has taken what."""
    own = next((each for each in hosts_of(job) if each["name"] == host), None)
    slots = ",".join(map(str, own["taken"])) if own else ""
    gpus = ",".join(own["gpus"]) if own else ""
    about = ["--cluster", job["cluster"], "--owner", job["owner"], "--slots", slots, "--gpus", gpus]
    return ["python3", program("lease.py"), job["id"], *about, "--attempt", str(job["attempt"])]
