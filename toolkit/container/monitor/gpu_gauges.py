"""What the GPUs of this host do, by nvidia-smi; for gauges.py."""

from __future__ import annotations

import math
import os
import subprocess
from contextlib import suppress
from typing import Any

# nvidia-smi's names, and ours; see `nvidia-smi --help-query-gpu`.
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


# What nvidia-smi has not said again for so many intervals is true no more.
STALE = 5


class Gpus:
    """nvidia-smi, started once: each start of its own takes a processor for a tenth of a second."""

    def __init__(self, seconds: float) -> None:
        self._seconds = max(0.1, seconds)
        self._rest = b""
        self._rows: dict[str, tuple[float, dict[str, Any]]] = {}
        self._begun = -math.inf
        self._process: subprocess.Popen[bytes] | None = None
        self._is_there = True

    def sample(self, now: float) -> list[dict[str, Any]]:
        """The GPUs, none where there is no nvidia-smi."""
        late = STALE * max(1.0, self._seconds)
        heard = max((when for when, _ in self._rows.values()), default=self._begun)
        if self._is_there and now > max(heard, self._begun) + late:
            self._start(now)  # for the first time, or it has died, or hangs
        if self._process is not None and self._process.stdout is not None:
            with suppress(BlockingIOError):
                while data := os.read(self._process.stdout.fileno(), 1 << 16):
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    for line in lines:
                        row = gpu_row(line.decode(errors="replace"))
                        if row:
                            self._rows[row["uuid"]] = (now, row)
        return [row for when, row in self._rows.values() if now <= when + late]

    def _start(self, now: float) -> None:
        self.close()
        query = f"--query-gpu={','.join(GPU_FIELDS)}"
        argv = ["nvidia-smi", query, "--format=csv,noheader,nounits", f"--loop-ms={self._seconds * 1000:.0f}"]
        self._begun = now
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
            self._process.wait()


def gpu_row(line: str) -> dict[str, Any] | None:
    """A line of nvidia-smi; None for what is none. A number that the driver does not know is None."""
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
