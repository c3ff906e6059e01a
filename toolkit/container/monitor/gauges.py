"""Samples this host's gauges periodically: processors, memory, network, disks, GPUs and ranks.

usage: monitor.gauges SECONDS    one line of JSON each time, until standard input ends
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.conventions import JOB_TAG, fail, is_tagged, root
from toolkit.container.files import read
from toolkit.container.job.rank_records import RUN_FIELDS, is_record
from toolkit.container.job_file import load_host
from toolkit.container.logs.log import Reader, age, size_of
from toolkit.container.monitor.steps import StepRate
from toolkit.protocol.outcomes import EXIT_USAGE

# Field names of nvidia-smi and of toolkit; see `nvidia-smi --help-query-gpu`.
GPU_FIELDS = {
    "index": "index",
    "uuid": "uuid",
    "utilization.gpu": "utilization",  # percent of the time in which a kernel ran
    "memory.used": "memory_used",  # MiB
    "memory.total": "memory_total",
    "power.draw": "power",  # W
    "temperature.gpu": "temperature",  # degrees Celsius
    "clocks.sm": "clock",  # MHz
    "clocks.max.sm": "clock_max",
}


# Values that nvidia-smi has not updated for this number of intervals are outdated.
STALE = 5
# Seconds until the first row: without persistence mode, a host with 8 GPUs can need 60 s to initialize them.
FIRST_ROW_S = 70.0
KILLED_S = 0.5  # after which a killed process has ended, unless it is unkillable


class Gpus:
    """Running nvidia-smi, started once: every start needs 0.1 s of a processor.

    If the driver hangs, no signal ends nvidia-smi: nothing waits for its end, and no second one is started.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = max(0.1, seconds)
        self._rest = b""
        self._rows: dict[str, tuple[float, dict[str, Any]]] = {}
        self._begun = -math.inf
        self._process: subprocess.Popen[bytes] | None = None
        self._is_there = True

    def sample(self, now: float) -> list[dict[str, Any]]:
        """Return the GPUs, empty if there is no nvidia-smi."""
        late = STALE * max(1.0, self._seconds)
        newest = max((when for when, _ in self._rows.values()), default=self._begun)
        # A process that has printed no row yet can still initialize GPUs.
        first = FIRST_ROW_S if newest <= self._begun and self._runs() else late
        if self._is_there and now > max(newest + late, self._begun + first):
            self._start(now)  # first start, or it has died or hangs
        if self._process is not None and self._process.stdout is not None:
            with suppress(BlockingIOError):
                while data := os.read(self._process.stdout.fileno(), 1 << 16):
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    for line in lines:
                        row = gpu_row(line.decode(errors="replace"))
                        if row:
                            self._rows[row["uuid"]] = (now, row)
        return [row for when, row in self._rows.values() if now <= when + late]

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _start(self, now: float) -> None:
        self._begun = now
        self.close()
        if self._runs():
            return
        query = f"--query-gpu={','.join(GPU_FIELDS)}"
        argv = ["nvidia-smi", query, "--format=csv,noheader,nounits", f"--loop-ms={self._seconds * 1000:.0f}"]
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            self._is_there = False  # a host without GPUs
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILLED_S)


def gpu_row(line: str) -> dict[str, Any] | None:
    """Parse a line of nvidia-smi; return None if it is not a row. Unknown numbers are None."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(GPU_FIELDS) or not cells[0].isdigit():
        return None
    row: dict[str, Any] = {}
    for name, cell in zip(GPU_FIELDS.values(), cells, strict=True):
        try:
            row[name] = cell if name == "uuid" else int(cell) if name == "index" else float(cell)
        except ValueError:
            row[name] = None  # "[N/A]", "[Not Supported]"
    return row


TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# Finding ranks means reading many files, and ranks rarely start or end.
LOOK_S = 5.0
# Bytes of a rank's earlier output to read at the start.
BEFORE = 16384


class Rate:
    """Growth per second of a counter that only increases."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def of(self, value: float, now: float) -> float | None:
        """Return the rate, None for the first value and after a reset."""
        last, self._last = self._last, (now, value)
        if last is None or now <= last[0] or value < last[1]:
            return None
        return (value - last[1]) / (now - last[0])


class Rank:
    """A rank that runs on this host."""

    def __init__(self, job: str, number: int, pid: int, log: Path) -> None:
        self.job, self.number, self.pid, self.log = job, number, pid, log
        self.throughput = StepRate()
        self._reader = Reader(log, max(0, size_of(log) - BEFORE))
        self._cpu = Rate()

    def sample(self, now: float) -> dict[str, Any]:
        for data in self._reader.rest():
            self.throughput.feed(data, now)
        ticks, memory = 0, 0
        for pid in _tree(self.pid):
            with suppress(OSError, ValueError, IndexError):
                words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                ticks += sum(map(int, words[11:15]))  # its own and those of exited children
                memory += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * PAGE
        return {
            "job": self.job,
            "rank": self.number,
            "cpu": self._cpu.of(ticks / TICKS_PER_S, now),
            "memory": memory,
            "silent": age(self.log, time.time()),
            "line": self.throughput.line,
            "step": self.throughput.step,
            "steps_per_s": self.throughput.steps_per_s,
            "samples_per_s": self.throughput.samples_per_s,
        }

    def close(self) -> None:
        self._reader.close()


class Ranks:
    """Ranks that run on this host, searched periodically."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, int], Rank] = {}
        self._looked = -LOOK_S
        self._ended: set[tuple[str, int]] = set()  # files of finished runs and their times

    def sample(self, now: float) -> list[dict[str, Any]]:
        if now >= self._looked + LOOK_S:
            self._looked = now
            self._look()
        return [rank.sample(now) for rank in self._found.values()]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return facts about their jobs."""
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
            if not is_tagged(pid, JOB_TAG, job):
                self._ended.add(mark)
                continue
            key = (job, number, pid)
            alive[key] = self._found.get(key) or Rank(job, number, pid, path.with_suffix(".log"))
        for key, rank in self._found.items():
            if key not in alive:
                rank.close()
        self._found = alive


def _tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        with suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                left += map(int, (thread / "children").read_bytes().split())
    return found


SECTOR = 512
# Whole disks: their counters already include their partitions.
DISK = re.compile(r"(?:[shv]d[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+)$")


class Host:
    """Processors, memory, network and disks; a container with host networking sees the complete host."""

    def __init__(self, interface: str) -> None:
        self.interface = interface
        self._rates: dict[str, Rate] = {}

    def sample(self, now: float) -> dict[str, Any]:
        return {
            "cpu": self._cpu(now),
            "memory": memory_of(Path("/proc/meminfo").read_text()),
            "network": self._network(now),
            "disk": self._disk(now),
        }

    def _rate(self, name: str, value: float, now: float) -> float | None:
        return self._rates.setdefault(name, Rate()).of(value, now)

    def _cpu(self, now: float) -> dict[str, Any]:
        text = Path("/proc/stat").read_text()
        ticks = [int(word) for word in text.split("\n", 1)[0].split()[1:9]]
        cores = len(re.findall(r"^cpu\d", text, re.M))
        # user, nice, system, idle, iowait, irq, softirq, steal; see proc(5)
        busy = self._rate("busy", sum(ticks) - ticks[3] - ticks[4], now)
        return {
            "cores": cores,
            # The kernel counts at other times than this clock.
            "busy": None if busy is None else min(float(cores), busy / TICKS_PER_S),
            "load": os.getloadavg()[0],
        }

    def _network(self, now: float) -> dict[str, Any]:
        found: dict[str, Any] = {"interface": self.interface, "in": None, "out": None, "mbit": None}
        for line in Path("/proc/net/dev").read_text().splitlines():
            name, colon, numbers = line.partition(":")
            if colon and name.strip() == self.interface:
                words = numbers.split()
                found["in"] = self._rate("in", int(words[0]), now)
                found["out"] = self._rate("out", int(words[8]), now)
        with suppress(OSError, ValueError):  # a bridge, or a link that is down, has no speed
            speed = int(Path(f"/sys/class/net/{self.interface}/speed").read_text())
            found["mbit"] = speed if speed > 0 else None
        return found

    def _disk(self, now: float) -> dict[str, Any]:
        read_, written = 0, 0
        with suppress(OSError):
            for line in Path("/proc/diskstats").read_text().splitlines():
                words = line.split()
                if DISK.match(words[2]):
                    read_, written = read_ + int(words[5]), written + int(words[9])
        room = os.statvfs(root() / "jobs")
        return {
            "read": self._rate("read", read_ * SECTOR, now),
            "written": self._rate("written", written * SECTOR, now),
            "free": room.f_bavail * room.f_frsize,
        }


def memory_of(text: str) -> dict[str, int | None]:
    """Return used and total bytes from /proc/meminfo; available memory counts as free."""
    sizes = {name: int(value) * 1024 for name, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    total, free = sizes.get("MemTotal"), sizes.get("MemAvailable")
    return {"total": total, "used": None if total is None or free is None else total - free}


def main() -> int:
    try:
        seconds = float(sys.argv[1])
    except (IndexError, ValueError):
        fail(EXIT_USAGE, "usage: monitor.gauges SECONDS")
    about = load_host()
    host, ranks, gpus = Host(about["interface"]), Ranks(), Gpus(seconds)
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    try:
        while True:
            now = time.monotonic()
            found = {
                "at": time.time(),
                **host.sample(now),
                "gpus": gpus.sample(now),
                "ranks": ranks.sample(now),
            }
            line = json.dumps({**found, "jobs": ranks.jobs()}, separators=(",", ":"))
            os.write(1, line.encode() + b"\n")
            # Input is ignored, but its end ends this program.
            if waiting.poll(max(0.0, now + seconds - time.monotonic()) * 1000) and not os.read(0, 4096):
                return 0
    except BrokenPipeError:
        return 0
    finally:
        gpus.close()
