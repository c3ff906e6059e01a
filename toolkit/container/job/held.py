"""One lease on a host as the supervisor sees it: a process, what it is told, and its silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from toolkit.container.job.elastic import hosts_of
from toolkit.container.job.lease_times import LOST_S
from toolkit.container.job.rank_records import is_record
from toolkit.container.job.sweep import CONNECT_S
from toolkit.container.job_file import Job
from toolkit.container.marks import JOB_MARK, SUPERVISOR_MARK
from toolkit.container.paths import program, ssh_args

ENDING_S = 1.0  # from the end of a lease's output to that of its process
MOST_LINE = 1 << 24  # bytes of a line


class Held:
    """One host's lease, from the start of its process to its end."""

    def __init__(
        self,
        job: Job,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Job, str], subprocess.Popen[bytes]] | None = None,
    ) -> None:
        self.host = host
        self.process = (start or start_lease)(job, host)
        assert self.process.stdin is not None and self.process.stdout is not None
        assert self.process.stderr is not None
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            os.set_blocking(pipe.fileno(), False)
        self.begun = self.heard = clock()
        self.answered = False
        self.lost = ""  # why, once it is
        self.garbled = False  # it sent an invalid line, so that its host counts as lost
        self.closed_at: float | None = None  # when its output ended
        # The number of the question that it has to answer before it is known to have outlived a standstill.
        self.unsure = 0
        self.rest = b""
        self.unsent = b""

    def send(self, request: dict[str, Any]) -> None:
        """Send a request; nothing to a lease that was released."""
        assert self.process.stdin is not None
        if self.process.stdin.closed:
            return
        self.unsent += json.dumps(request).encode() + b"\n"
        with suppress(OSError):  # a full pipe, or nobody reads it any more: what is read says which
            self.unsent = self.unsent[os.write(self.process.stdin.fileno(), self.unsent) :]

    def release(self) -> None:
        """Let the process over there end in peace.

        A lost host gets no such word: it has not done what it was asked last, and must end its ranks.
        """
        if not self.lost:
            self.send({"n": 0, "do": "release"})
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        if self.lost:
            self.process.kill()

    def end(self, until: float) -> None:
        """Wait until `until` for the end of the process, kill it after that, and close its pipes."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, until - time.monotonic()))
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def silence(self, now: float) -> str:
        """Why the host counts as lost, empty while it does not."""
        limit = LOST_S if self.answered else CONNECT_S
        if now - self.heard <= limit:
            return ""
        return f"has not answered for {limit:.0f} s"

    def end_of_output(self, now: float) -> str:
        """Return why the host is lost once the output has ended, empty while the process may still end."""
        self.closed_at = now if self.closed_at is None else self.closed_at
        code = self.process.poll()
        if code is None:
            return "" if now < self.closed_at + ENDING_S else "its lease has closed its output"
        assert self.process.stderr is not None
        # Not up to its end: another process may hold it open.
        text = (self.process.stderr.read() or b"").decode(errors="replace").strip().splitlines()
        if code == 0 and not text:
            return "it had not heard from main for too long, and has ended its ranks"
        return text[-1].rstrip(".") if text else f"its lease ended with exit code {code}"


def start_lease(job: Job, host: str) -> subprocess.Popen[bytes]:
    """Start lease.py on a host; its standard streams are pipes."""
    words = lease_words(job, host)
    env = {**os.environ}
    if host == job["main"]:
        argv = [sys.executable, *words[1:]]
        env[JOB_MARK] = job["id"]
        env.pop(SUPERVISOR_MARK, None)
    else:
        # This ssh carries the supervisor's mark and not the job's: main's sweep must not end it.
        argv = ssh_args(host, ["exec", "env", f"{JOB_MARK}={job['id']}", *words])
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )


def reply_of(line: bytes) -> dict[str, Any]:
    """Return what a lease has sent in one line.

    Raises:
        ValueError: the line is not one of the protocol.
    """
    reply = json.loads(line)
    if not isinstance(reply, dict) or not isinstance(reply.get("n"), int):
        raise ValueError("not an answer")
    records = reply.get("records", [])
    if not isinstance(records, list):
        raise ValueError("not a list of records")
    records = [*records, *([reply["death"]] if "death" in reply else [])]
    if not all(is_record(record) for record in records):
        raise ValueError("not the record of a rank")
    return reply


def lease_words(job: Job, host: str) -> list[str]:
    """The command of a host's lease; everybody on the host can read it, so it says who has taken what."""
    own = next((each for each in hosts_of(job) if each["name"] == host), None)
    slots = ",".join(map(str, own["taken"])) if own else ""
    gpus = ",".join(own["gpus"]) if own else ""
    about = ["--cluster", job["cluster"], "--owner", job["owner"], "--slots", slots, "--gpus", gpus]
    return ["python3", *program("job.lease"), job["id"], *about, "--attempt", str(job["attempt"])]
