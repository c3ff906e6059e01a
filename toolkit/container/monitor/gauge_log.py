"""Log of a host's gauges during a job, for the job's report.

monitor.gauge_log JOB    runs until standard input ends; the lease of the job holds it open
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from toolkit.container.conventions import job_folder
from toolkit.container.files import content, write_text
from toolkit.container.job_file import load_host
from toolkit.container.monitor.gauges import Gpus, Host

GAUGES = "gauges.jsonl"  # in the job's logs on each host
APART_S = 2.0
MOST_ROWS = 720  # beyond it every second row is removed, and the interval doubles


class GaugeLog:
    """File of rows, one JSON each: the sample of the host by gauges.py, without its ranks.

    Args:
        path: path of the file; rows of an earlier attempt of the job stay in it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = read_rows(path)
        self._apart = APART_S
        self._host = Host(load_host()["interface"])
        self._gpus = Gpus(APART_S)

    def keep(self, over: Event) -> None:
        """Add rows until ``over`` is set."""
        try:
            self._add()
            while not over.wait(self._apart):
                self._add()
        finally:
            self._gpus.close()

    def _add(self) -> None:
        now = time.monotonic()
        # Rates are known from the second sample on.
        row = {"at": round(time.time(), 1), **self._host.sample(now), "gpus": self._gpus.sample(now)}
        self._rows.append(row)
        with suppress(OSError):  # a full disk costs the curves, not the job
            if len(self._rows) <= MOST_ROWS:
                with self._path.open("a") as file:
                    file.write(line_of(row))
                return
            self._rows, self._apart = self._rows[::2], 2 * self._apart
            write_text(self._path, "".join(map(line_of, self._rows)))


def line_of(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of such a file, empty if it does not exist; skip a truncated row."""
    rows = []
    with suppress(OSError):
        for line in content(path).splitlines():
            with suppress(ValueError, RecursionError):
                rows.append(json.loads(line))
    return rows


def main() -> int:
    over = Event()
    path = job_folder(sys.argv[1]) / "logs" / GAUGES
    log = Thread(target=lambda: GaugeLog(path).keep(over), daemon=True)
    log.start()
    while os.read(0, 4096):
        pass
    over.set()
    log.join(1.0)
    return 0
