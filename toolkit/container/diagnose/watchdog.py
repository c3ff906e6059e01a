"""Notices that a job says nothing any more, and has kept what its ranks are doing at that moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from toolkit.container.marks import JOB_MARK, SUPERVISOR_MARK
from toolkit.container.paths import program

COLLECT_S = 60.0  # hosts are asked at once, each for at most half of it


def start_collecting(job_id: str, why: str) -> subprocess.Popen[bytes]:
    """Start collect.py; it carries the job's mark, so nothing of it outlives the job."""
    env = {**os.environ, JOB_MARK: job_id}
    env.pop(SUPERVISOR_MARK, None)
    return subprocess.Popen(
        [sys.executable, *program("diagnose.collect"), job_id, "--why", why],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )


class Watchdog:
    """Looks once at each stall: told of output by `heard`, and of time by `tick`.

    Nothing here waits: the collecting process is started by one tick and read by a later one.
    """

    def __init__(
        self,
        job_id: str,
        stall_after: float,
        now: float,
        start: Callable[[str, str], Any] = start_collecting,
    ) -> None:
        self._job_id, self._stall_after, self._start = job_id, stall_after, start
        self._heard = now
        self._looked = False  # in this stall
        self._process: Any = None
        self._began = 0.0

    def heard(self, now: float) -> None:
        """A rank has printed something: a stall, if there was one, is over."""
        self._heard, self._looked = now, False

    def tick(self, now: float) -> str | None:
        """A line for the merged log when there is one; `now` is monotonic, in seconds."""
        if self._process is not None:
            return self._finish(now)
        if self._looked or now < self._heard + self._stall_after:
            return None
        self._looked, self._began = True, now
        try:
            self._process = self._start(self._job_id, self._why(now))
        except OSError as error:
            return f"{self._why(now)}, and nobody could look why: {error}"
        return None

    def close(self) -> None:
        """End what still collects: the job is over."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _why(self, now: float) -> str:
        return f"no rank has printed for {now - self._heard:.0f} s"

    def _finish(self, now: float) -> str | None:
        if self._process.poll() is None:
            if now < self._began + COLLECT_S:
                return None
            self.close()
            return f"{self._why(now)}; what ranks do could not be collected within {COLLECT_S:.0f} s"
        said, code = self._process.stdout.read(), self._process.returncode
        self._process = None
        with suppress(ValueError, KeyError):
            told = json.loads(said.splitlines()[-1]) if said else {}
            silent = "".join(f"; {host}" for host in told["silent"])
            hosts = f"{told['hosts']} host{'s' if told['hosts'] != 1 else ''}"
            return f"{self._why(now)}; what they do on {hosts} is kept: toolkit why {self._job_id}{silent}"
        last = said.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {code}"]
        return f"{self._why(now)}; what ranks do could not be collected: {last[0]}"
