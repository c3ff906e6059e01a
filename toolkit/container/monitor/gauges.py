"""Reads this host's gauges again and again: processors, memory, network, disks, GPUs, and the ranks here.

usage: monitor.gauges SECONDS    one line of JSON each time, until standard input ends
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.exits import fail
from toolkit.container.job_file import load_host
from toolkit.container.monitor.gpu_gauges import Gpus
from toolkit.container.monitor.rank_gauges import TICKS_PER_S, Ranks, Rate
from toolkit.container.paths import root
from toolkit.protocol.exit_codes import EXIT_USAGE

SECTOR = 512
# Whole disks: what their partitions do is in their own numbers already.
DISK = re.compile(r"(?:[shv]d[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+)$")


class Host:
    """Processors, memory, network and disks; a container on the host's network sees the whole host."""

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
            # The kernel counts at other moments than this clock reads.
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
    """Bytes used and in all, of /proc/meminfo; what can be had at once counts as free."""
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
            # What is told is nothing: the end of it is the end of us.
            if waiting.poll(max(0.0, now + seconds - time.monotonic()) * 1000) and not os.read(0, 4096):
                return 0
    except BrokenPipeError:
        return 0
    finally:
        gpus.close()
