"""Watchdog of a job: detects that no rank prints any more, and saves the state of its ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from toolkit.container.conventions import JOB_TAG, SUPERVISOR_TAG, job_folder, program

EVIDENCE = "evidence"  # in the job's folder on main: the files of collect.py
COLLECT_S = 60.0  # hosts are queried in parallel, each for at most half of this time
# If a rank still prints this time after a stall, the ranks have continued. Ranks print the errors that end a
# stalled job within this time: PyTorch waits up to 60 s for dumps, torchrun up to 30 s for its ranks.
OVER_S = 120.0
# After a longer silence, output of a rank does not show that the ranks have continued since the stall.
_PROGRESS_S = 60.0
OVER = ".over.json"  # the end of the name of a file about a stall after which the ranks have continued


def start_collecting(job_id: str, why: str) -> subprocess.Popen[bytes]:
    """Start collect.py with the job tag, so that it ends with the job."""
    env = {**os.environ, JOB_TAG: job_id}
    env.pop(SUPERVISOR_TAG, None)
    return subprocess.Popen(
        [sys.executable, *program("diagnose.collect"), job_id, "--why", why],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )


class Watchdog:
    """Inspects the ranks once per stall: `heard` reports output, `tick` the time.

    Nothing here blocks: one tick starts the collecting process, and a later tick reads its result.
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
        self._looked = False  # whether this stall was inspected
        self._resumed = now  # the first output after the last inspected stall, or after a long silence
        self._unmarked = False  # whether a file can exist that has no mark
        self._process: Any = None
        self._began = 0.0

    def heard(self, now: float) -> None:
        """Record output of a rank: it ends a stall."""
        if self._looked or now > self._heard + _PROGRESS_S:
            self._resumed = now
        elif now >= self._resumed + OVER_S:
            self._mark_over()
        self._heard, self._looked = now, False

    def restart(self, now: float) -> None:
        """Record the start of ranks: no earlier stall is the cause of their end."""
        self.close()
        self._mark_over()
        self._heard, self._looked = now, False

    def tick(self, now: float) -> str | None:
        """Return a line for the merged log, if there is one; `now` is monotonic, in seconds."""
        if self._process is not None:
            return self._finish(now)
        if self._looked or now < self._heard + self._stall_after:
            return None
        self._mark_over()  # ranks have printed since an earlier stall
        self._looked, self._began, self._unmarked = True, now, True
        try:
            self._process = self._start(self._job_id, self._why(now))
        except OSError as error:
            return f"{self._why(now)}; toolkit could not save the state of the ranks: {error}"
        return None

    def close(self) -> None:
        """Stop a running collection: the job is over."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _mark_over(self) -> None:
        """Mark each saved state of the ranks as that of a stall after which they have continued."""
        if not self._unmarked:
            return
        with suppress(OSError):  # then the next output marks them
            # Also a file whose collection was stopped before `tick` has read its result.
            for path in (job_folder(self._job_id) / EVIDENCE).glob("*.json"):
                if not path.name.endswith(OVER):
                    path.rename(path.with_suffix(OVER))
            self._unmarked = False

    def _why(self, now: float) -> str:
        return f"no rank has printed for {now - self._heard:.0f} s"

    def _finish(self, now: float) -> str | None:
        if self._process.poll() is None:
            if now < self._began + COLLECT_S:
                return None
            self.close()
            return f"{self._why(now)}; toolkit could not save the state of the ranks within {COLLECT_S:.0f} s"
        output, code = self._process.stdout.read(), self._process.returncode
        self._process = None
        with suppress(ValueError, KeyError):
            summary = json.loads(output.splitlines()[-1]) if output else {}
            silent = "".join(f"; {host}" for host in summary["silent"])
            hosts = f"{summary['hosts']} host{'s' if summary['hosts'] != 1 else ''}"
            saved = f"toolkit saved the state of the ranks on {hosts} (see `toolkit why {self._job_id}`)"
            return f"{self._why(now)}; {saved}{silent}"
        last = output.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {code}"]
        return f"{self._why(now)}; toolkit could not save the state of the ranks: {last[0]}"
