"""The launches of a job as the supervisor has started them, each with its output."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from toolkit.container.job_file import Job
from toolkit.container.logs.lines import Merger
from toolkit.container.marks import JOB_MARK, SUPERVISOR_MARK
from toolkit.container.paths import program

KILLED_S = 1.0  # for the kernel to end a process


class Running:
    """One launch that has been started."""

    def __init__(self, job: Job, index: int) -> None:
        self.launch = job["launches"][index]
        self.merger = Merger()
        self.code: int | None = None
        self.ended = 0.0
        self.out = False  # its host is left out, so that its end is nobody's failure
        argv = [sys.executable, *program("job.launch"), job["id"], str(index)]
        if self.launch["host"] != job["main"]:
            remote = ["python3", *argv[1:]]
            argv = [sys.executable, *program("job.ssh_agent"), self.launch["host"], *remote]
        env = {**os.environ, JOB_MARK: job["id"]}
        env.pop(SUPERVISOR_MARK)
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,  # its end is the order to stop, and our death gives it too
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )

    @property
    def name(self) -> str:
        return f"{self.launch['name'] or Path(self.launch['argv'][0]).name} on {self.launch['host']}"

    def stop(self, grace: float) -> None:
        """Order the launch to end: TERM to its group, KILL after the grace."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with suppress(OSError):  # it has ended by itself
                self.process.stdin.write(f"{grace}\n".encode())
                self.process.stdin.close()

    def close(self) -> None:
        """End the process, if the sweep has not, and close its pipes."""
        if self.process.poll() is None:
            self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILLED_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
