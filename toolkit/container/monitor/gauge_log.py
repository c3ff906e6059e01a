"""Keeps a host's gauges over a job's life, so that it can be told afterwards: at work in lease.py."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

from toolkit.container.files import content, write_text
from toolkit.container.job_file import load_host
from toolkit.container.monitor.gauges import Gpus, Host

GAUGES = "gauges.jsonl"  # in the job's logs on each host
APART_S = 2.0
MOST_ROWS = 720  # then every second one goes, and they are twice as far apart


class GaugeLog:
    """A file of rows, one JSON each: what gauges.py tells of the host, without its ranks.

    Args:
        path: of the file; what an earlier attempt of the job has left there stays in it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = read_rows(path)
        self._apart = APART_S
        self._host = Host(load_host()["interface"])
        self._gpus = Gpus(APART_S)

    def keep(self, over: Event) -> None:
        """Add rows until it is over."""
        try:
            while not over.is_set():
                self._add()
                over.wait(self._apart)
        finally:
            self._gpus.close()

    def _add(self) -> None:
        now = time.monotonic()
        # What rates need is known from the second time on.
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
    """The rows of such a file, none where there is none; one that was cut off is passed over."""
    rows = []
    with suppress(OSError):
        for line in content(path).splitlines():
            with suppress(ValueError, RecursionError):
                rows.append(json.loads(line))
    return rows
