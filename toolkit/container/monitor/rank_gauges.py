"""What the ranks on this host use, and how fast they say that they go; for gauges.py."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.files import read
from toolkit.container.job.rank_records import RUN_FIELDS, is_record
from toolkit.container.logs.log import Reader, size_of
from toolkit.container.marks import JOB_MARK, is_marked
from toolkit.container.monitor.steps import Pace
from toolkit.container.paths import root

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# To look for ranks means to look at many files; they seldom come and go.
LOOK_S = 5.0
# Of what a rank has printed before we came.
BEFORE = 16384


class Rate:
    """How much a second a number grows that only grows."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def of(self, value: float, now: float) -> float | None:
        """None for the first time, and where it has begun anew."""
        last, self._last = self._last, (now, value)
        if last is None or now <= last[0] or value < last[1]:
            return None
        return (value - last[1]) / (now - last[0])


class Rank:
    """One rank that runs here."""

    def __init__(self, job: str, number: int, pid: int, log: Path) -> None:
        self.job, self.number, self.pid, self.log = job, number, pid, log
        self.pace = Pace()
        self._reader = Reader(log, max(0, size_of(log) - BEFORE))
        self._cpu = Rate()

    def sample(self, now: float) -> dict[str, Any]:
        for data in self._reader.rest():
            self.pace.feed(data, now)
        ticks, memory = 0, 0
        for pid in _tree(self.pid):
            with suppress(OSError, ValueError, IndexError):
                words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                ticks += sum(map(int, words[11:15]))  # its own, and of children that have ended
                memory += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * PAGE
        try:
            silent = max(0.0, time.time() - self.log.stat().st_mtime)
        except OSError:
            silent = None
        return {
            "job": self.job,
            "rank": self.number,
            "cpu": self._cpu.of(ticks / TICKS_PER_S, now),
            "memory": memory,
            "silent": silent,
            "line": self.pace.line,
            "step": self.pace.step,
            "steps_per_s": self.pace.steps_per_s,
            "samples_per_s": self.pace.samples_per_s,
        }

    def close(self) -> None:
        self._reader.close()


class Ranks:
    """The ranks that run here, looked for now and then."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, int], Rank] = {}
        self._looked = -LOOK_S
        self._ended: set[tuple[str, int]] = set()  # files of runs that are over, and of when

    def sample(self, now: float) -> list[dict[str, Any]]:
        if now >= self._looked + LOOK_S:
            self._looked = now
            self._look()
        return [rank.sample(now) for rank in self._found.values()]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """What is to be known of their jobs."""
        found = {}
        for job in {rank.job for rank in self._found.values()}:
            record = read(root() / "jobs" / job / "record.json") or {}
            names = ("world_size", "launcher", "command", "owner")
            found[job] = {name: record.get(name) for name in names}
        return found

    def _look(self) -> None:
        alive: dict[tuple[str, int, int], Rank] = {}
        for path in (root() / "jobs").glob("*/logs/rank-*.run"):
            try:
                mark = (str(path), path.stat().st_mtime_ns)
                if mark in self._ended:
                    continue
            except OSError:
                continue
            run = read(path)
            if not is_record(run, RUN_FIELDS):
                continue  # it is being written
            job, number, pid = path.parent.parent.name, run["rank"], run["pid"]
            if not is_marked(pid, JOB_MARK, job):
                self._ended.add(mark)
                continue
            key = (job, number, pid)
            alive[key] = self._found.get(key) or Rank(job, number, pid, path.with_suffix(".log"))
        for key, rank in self._found.items():
            if key not in alive:
                rank.close()
        self._found = alive


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        with suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                left += map(int, (thread / "children").read_bytes().split())
    return found
