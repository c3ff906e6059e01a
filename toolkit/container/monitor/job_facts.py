"""Prints this host's facts about a job for the job's report, as one line of JSON.

usage: monitor.job_facts JOB
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.conventions import PREPARATION, fail, job_folder, root
from toolkit.container.files import read
from toolkit.container.job_file import load_host
from toolkit.container.job_list import is_alive, kept_status, list_jobs
from toolkit.container.logs.log import Reader, last_lines, pieces, size_of, times
from toolkit.container.monitor.gauge_log import GAUGES, read_rows
from toolkit.container.monitor.steps import StepRate
from toolkit.protocol.bench import result_of
from toolkit.protocol.outcomes import EXIT_USAGE

UP = "up.json"  # in main's conf: the record of the last `up` with changes
BENCH, BENCH_MARK = "bench.network", "@network"
# Most points of a curve; more are not visible.
MOST_POINTS = 300
# Bytes to read: the end of the output between two points for the throughput, its beginning for the first
# step.
LAST, FIRST = 4096, 1 << 18
PACKAGES = (
    *("torch", "horovod", "mpi4py", "numpy", "accelerate", "deepspeed", "transformers", "lightning"),
    *("tensorflow", "keras", "ray"),
)


def spread(rows: list[Any], most: int = MOST_POINTS) -> list[Any]:
    """Return at most this number of evenly spaced rows, including the first and the last."""
    if len(rows) <= most:
        return rows
    return [rows[round(at * (len(rows) - 1) / (most - 1))] for at in range(most)]


def rank_of(run: Path) -> dict[str, Any]:
    """Return start, end and result of a rank from its files; times are seconds since the epoch or None."""
    about, end = read(run) or {}, read(run.with_suffix(".exit")) or {}
    # A record of an earlier attempt does not describe the running rank.
    end = end if end.get("pid") == about.get("pid") else {}
    log = run.with_suffix(".log")
    rows, _ = times(log)
    return {
        "rank": int(run.stem.removeprefix("rank-")),  # a full disk can leave a file without a record
        "attempt": about.get("attempt"),
        "starts": about.get("starts") or [],
        "first_output": rows[0][0] if rows else None,
        "first_step": first_step(log, rows),
        "ended": end.get("ended"),
        "exit_code": end.get("exit_code"),
        "signal": end.get("signal"),
        "oom": end.get("oom"),
        "last": last_lines(log, about.get("from") or 0, 3) if end.get("exit_code") else [],
    }


def first_step(log: Path, rows: list[tuple[float, int]]) -> float | None:
    """Return the time of a rank's first printed step, as precisely as the times of its log allow."""
    throughput = StepRate()
    for when, data in _read_by(log, [row for row in rows if row[1] < FIRST], FIRST):
        throughput.feed(data, when)
        if throughput.step is not None or throughput.steps_per_s is not None:
            return when
    return None


def _read_by(log: Path, rows: list[tuple[float, int]], most: int) -> Iterator[tuple[float, bytes]]:
    """Yield the start time and the last `most` bytes of the output between two rows."""
    ends = [offset for _, offset in rows[1:]] + [size_of(log)][: len(rows)]
    for (when, start), end in zip(rows, ends, strict=True):
        cut = max(start, end - most)
        reader = Reader(log, cut)
        try:
            data = reader.read(end - cut) if end > cut else b""
        finally:
            reader.close()
        yield when, b"\n" + data.partition(b"\n")[2] if cut > start else data


def throughput_of(log: Path, starts: list[float]) -> list[list[Any]]:
    """Return the rows of a curve: time, step, steps/s, samples/s; restarted with each start of the rank."""
    raw, apart = times(log)
    if not raw:
        return []
    kept = spread(list(range(len(raw))), 2 * MOST_POINTS)
    # A row covers what was written within that time after it; silence can follow.
    ends = [raw[after - 1][0] + apart for after in [*kept[1:], len(raw)]]
    with suppress(OSError):
        ends[-1] = min(ends[-1], pieces(log)[-1][1].stat().st_mtime)
    throughput, found, later = StepRate(), [], list(starts[1:])
    for (begin, data), end in zip(_read_by(log, [raw[at] for at in kept], LAST), ends, strict=True):
        while later and later[0] <= begin:
            found.append([round(later.pop(0), 2), None, None, None])
            throughput = StepRate()
        throughput.feed(data, end)
        if throughput.step is not None or throughput.steps_per_s is not None:
            found.append([round(end, 2), throughput.step, throughput.steps_per_s, throughput.samples_per_s])
    return spread(found)


def versions() -> dict[str, str]:
    """Return versions of the image's software and of the kernel."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(ImportError, OSError, ValueError, LookupError):  # see below
            found[name] = importlib.metadata.version(name)
    with suppress(OSError, subprocess.SubprocessError, IndexError):
        output = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=10).stdout
        found["open mpi"] = output.splitlines()[0].split()[-1]
    for package in importlib.metadata.distributions():
        # An interrupted pip leaves folders without metadata, which have no name or raise other errors.
        with suppress(OSError, ValueError, LookupError):
            if (package.name or "").startswith("nvidia-nccl-"):
                found["nccl"] = package.version
    found |= {"kernel": platform.release(), "machine": platform.machine()}
    return {name: version for name, version in found.items() if version}


def network() -> dict[str, str]:
    """Return the last result of `toolkit bench network`; empty if there is none.

    Jobs that did not succeed can have a partial result, which is used only without a complete one.
    """
    rows = [row for row in list_jobs(root() / "jobs") if BENCH in str((row["record"] or {}).get("command"))]

    def rating(row: dict[str, Any]) -> tuple[bool, float]:
        return row["status"].get("state") == "succeeded", float(row["status"].get("started") or 0)

    for row in sorted(rows, key=rating, reverse=True):
        reader = Reader(job_folder(row["id"]) / "output.log")
        text = b""
        while data := reader.read():
            text += data
        reader.close()
        if result := result_of(BENCH_MARK, text.decode(errors="replace").splitlines()):
            return {"job": row["id"], "text": result}
    return {}


def account(job: str) -> dict[str, Any]:
    """Return all facts of this host about a job; facts of main are None on other hosts."""
    folder = job_folder(job)
    runs = sorted((folder / "logs").glob("rank-*.run"))
    ranks = [rank_of(run) for run in runs if run.stem.removeprefix("rank-").isdecimal()]
    first = min((rank["rank"] for rank in ranks), default=None)
    starts: list[float] = next((rank["starts"] for rank in ranks if rank["rank"] == first), [])
    status = kept_status(folder)
    return {
        "host": load_host()["host"],
        "record": read(folder / "record.json"),
        "status": status,
        "alive": bool(status) and is_alive(status.get("pid"), job),
        "preparation": read(folder / PREPARATION),
        "up": read(root() / "conf" / UP),
        "ranks": ranks,
        "throughput": throughput_of(folder / "logs" / f"rank-{first}.log", starts)
        if first is not None
        else [],
        "gauges": spread(read_rows(folder / "logs" / GAUGES)),
        "versions": versions(),
        "network": network(),
        "now": time.time(),  # read last: used to compare the clocks
    }


def main() -> int:
    if len(sys.argv) != 2:
        fail(EXIT_USAGE, "usage: monitor.job_facts JOB")
    print(json.dumps(account(sys.argv[1])))
    return 0
