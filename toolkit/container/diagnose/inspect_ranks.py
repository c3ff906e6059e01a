"""Inspects the ranks of a job on this host without changes, and prints the result as one JSON.

`toolkit why` runs it in the container of every host, and collect.py on every host from main.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.conventions import ATTEMPT, fail, in_memory, job_folder, root
from toolkit.container.diagnose.processes import (
    environ_of,
    flight_dumps,
    gpus,
    look,
    oom_kills,
    ranks_of,
    ras,
    sockets_of,
)
from toolkit.container.diagnose.stacks import finder, is_python, stack_of
from toolkit.container.diagnose.watchdog import EVIDENCE, OVER
from toolkit.container.job.variables import kept
from toolkit.container.job_file import load_host
from toolkit.container.job_list import kept_status
from toolkit.container.logs.log import LAST_BYTES, age, last_useful, pieces, size_of
from toolkit.protocol.redact import masked, secret_pairs, secret_values

CPU_S = 0.4  # window of the CPU measurement
STACKS_S = 12.0  # for all stacks of this host
SPIES = 4
OUTPUT_BYTES = 131072


def newest_job() -> str:
    """Return the newest job on this host."""
    jobs = [path.parent for path in (root() / "jobs").glob("*/job.json")]
    if not jobs:
        fail(66, f"{load_host()['host']} has no job")
    return max(jobs, key=lambda folder: folder.name).name


def find_job(word: str) -> str:
    """Return the only job on this host whose id ends in the word; without a word, the newest job."""
    if not word:
        return newest_job()
    folder = job_folder(word)
    found = [] if folder.is_dir() else list(folder.parent.glob(f"*-{word}"))
    return found[0].name if len(found) == 1 else word


def tail(path: Path, most: int, start: int = 0) -> str:
    """Return the end of a log, not before the offset `start`."""
    text = b""
    for begin, piece in pieces(path)[-2:]:  # the newest piece can have begun a moment ago
        with suppress(OSError), piece.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(min(size, max(0, size - most, start - begin)))
            text += file.read()
    return text[-most:].decode(errors="replace")


def output_start(folder: Path) -> int:
    """Return the offset of the merged output of the last attempt."""
    restarts = (kept_status(folder) or {}).get("restarts") or [{}]
    return int(restarts[-1].get("from", 0))


def rank_seen(folder: Path, rank: int, pids: list[int], now: float) -> dict[str, Any] | None:
    """Return the state of one rank, without its processes; None if this attempt has not started the rank."""
    log = folder / "logs" / f"rank-{rank}.log"
    run, record = (record_of(folder, f"rank-{rank}.{kind}") or {} for kind in ("run", "exit"))
    attempt = (read(folder / ATTEMPT) or {}).get("attempt", 0)
    attempts = [one.get("attempt", attempt) for one in (run, record) if one] or [attempt]
    started = attempt in attempts
    if not started and not pids:
        return None
    if run.get("attempt", attempt) != attempt:
        run = {}  # with a full disk, the file of this attempt can be missing
    # The rank ended before the restart of the job, or its launcher has started it again.
    if record.get("attempt", attempt) != attempt or (run and record.get("pid") != run.get("pid")):
        record = {}
    # A rank that this attempt has not started yet has printed nothing in it.
    start = run.get("from", 0) if started else size_of(log)
    text = tail(log, LAST_BYTES, start)
    return {
        "rank": rank,
        "started": (run.get("starts") or [None])[-1],
        "age": age(log, now),
        "lines": last_useful(text),
        "tail": text,
        "exit_code": record.get("exit_code"),
        # Not known if the program that observes the rank was killed with it, or if a shell reports the
        # signal of its child.
        "oom": record.get("oom") if record.get("signal") and not record.get("vanished") else None,
        "ended": max(0.0, now - record["ended"]) if record else None,
        "pids": pids,
        "processes": [],
        "dumps": {},
    }


def record_of(folder: Path, name: str) -> Any:
    """Return a file of a rank, which is in memory if the disk was full: see `keep_record`."""
    return read(in_memory(folder, name)) or read(folder / "logs" / name)


def look_twice(pids: list[int]) -> dict[int, dict[str, Any]]:
    """Return all processes, with their CPU use between two samples as a share of one processor."""
    hertz = os.sysconf("SC_CLK_TCK")
    begun = time.monotonic()
    before = {pid: look(pid) for pid in pids}
    time.sleep(CPU_S)
    passed = time.monotonic() - begun
    found = {}
    for pid, first in before.items():
        second = look(pid)
        if first is None or second is None:
            continue
        used = (second.pop("ticks") - first["ticks"]) / hertz / passed
        same = (first["call"], first["target"]) == (second["call"], second["target"])
        found[pid] = {
            **second,
            "cpu": round(used, 2),
            "states": first["state"] + second["state"],
            "still": same,
            "woken": second["switches"] - first["switches"],
        }
    return found


def add_stacks(spy: str, processes: list[dict[str, Any]]) -> None:
    """Add the stack of each Python process, until the time is up."""
    until = time.monotonic() + STACKS_S

    def one(process: dict[str, Any]) -> None:
        process["threads_seen"], process["no_stack"] = [], ""
        if process["state"] == "Z" or not is_python(process["pid"]):
            return
        if not spy:
            process["no_stack"] = "the image has no py-spy"
        elif time.monotonic() > until:
            process["no_stack"] = (
                f"reading the stacks of all ranks on the host took longer than {STACKS_S:.0f} s"
            )
        else:
            found = stack_of(spy, process["pid"], process["state"], until)
            process["threads_seen"], process["no_stack"] = found

    def again(process: dict[str, Any]) -> None:
        seen, _ = stack_of(spy, process["pid"], process["state"], until)
        process["moved"] = bool(seen) and names_of(seen) != names_of(process["threads_seen"])

    pids = {process["pid"] for process in processes}
    with ThreadPoolExecutor(SPIES) as pool:
        list(pool.map(one, processes))
        # A changed stack means that a command makes progress; its children need no second sample.
        commands = [each for each in processes if each["threads_seen"] and each["parent"] not in pids]
        list(pool.map(again, commands if time.monotonic() < until else ()))


def names_of(threads: list[dict[str, Any]]) -> list[str]:
    """Return the functions of a process's first thread."""
    first = next((thread for thread in threads if thread["first"]), threads[0])
    return [frame["name"] for frame in first["frames"]]


def read(path: Path) -> Any:
    """Return the value in a JSON file of any size, None if it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def about(folder: Path) -> dict[str, Any]:
    """Return the job without possible secrets."""
    job = read(folder / "record.json") or read(folder / "job.json") or {}
    job |= read(folder / ATTEMPT) or {}  # a restarted job can have other hosts
    hosts = [
        {name: host.get(name) for name in ("name", "address", "slots", "gpus")}
        for host in job.get("hosts", ())
    ]
    kept = ("cluster", "owner", "world_size", "command", "launcher", "main")
    return {"id": folder.name, "hosts": hosts, **{name: job.get(name) for name in kept}}


def saved(folder: Path) -> Any:
    """Return the newest file of collect.py, and as `over` whether the ranks have continued since."""
    newest = max(folder.glob(f"{EVIDENCE}/*.json"), default=folder / "none")
    found = read(newest)
    return found and {**found, "over": newest.name.endswith(OVER)}


def seen(job_id: str, secrets: Collection[str] = ()) -> dict[str, Any]:
    """Return all facts about the job on this host."""
    folder = job_folder(job_id)
    if not folder.is_dir():
        fail(66, f"{load_host()['host']} has no folder of job {job_id}")
    now = time.time()
    found = ranks_of(job_id)
    logged = {int(path.stem[5:]) for path in folder.glob("logs/rank-*.log") if path.stem[5:].isdigit()}
    each = (rank_seen(folder, rank, found.get(rank, []), now) for rank in sorted({*found, *logged}))
    ranks = [rank for rank in each if rank is not None]
    environs = {rank: environ_of(pids[0]) for rank, pids in found.items() if pids}
    processes = look_twice([pid for pids in found.values() for pid in pids])
    connections = sockets_of(processes)
    spy = finder()
    # The command first; its children only if there is time.
    order = sorted(processes.values(), key=lambda process: (process["parent"] in processes, process["pid"]))
    # Each needs several seconds on a host that hangs, and toolkit waits for the complete result.
    with ThreadPoolExecutor(2) as beside:
        smi = beside.submit(gpus)
        nccl = beside.submit(ras, next(iter(environs.values())), list(processes)) if environs else None
        add_stacks(spy, order)
    for rank in ranks:
        rank["processes"] = [processes[pid] for pid in rank.pop("pids") if pid in processes]
        rank["dumps"] = flight_dumps(folder, rank["rank"], environs.get(rank["rank"], {}))
    whole = {
        "host": load_host()["host"],
        "at": now,
        "job": about(folder),
        "ranks": ranks,
        "sockets": connections,
        **smi.result(),
        "ras": nccl.result() if nccl else "",
        "oom_kills": oom_kills(),
        "py_spy": bool(spy),
        "status": kept_status(folder),
        "output": tail(folder / "output.log", OUTPUT_BYTES, output_start(folder)),
        "lease": tail(folder / "logs" / "lease.log", LAST_BYTES),
        "kept": saved(folder),
    }
    hidden: dict[str, Any] = masked(whole, secrets_of(folder, list(environs.values()), secrets))
    return hidden


def secrets_of(folder: Path, environs: list[dict[str, str]], named: Collection[str]) -> tuple[str, ...]:
    """Return the values to mask: of the named variables, of the job's secrets, and of secret-like names."""
    about = read(folder / "job.json") or {}
    named = {*named, *about.get("secret_names", ())}
    job = kept(folder) or {"env": {}, "override": {}, "token": ""}
    pairs = [pair for env in (*environs, job["env"], job["override"]) for pair in env.items()]
    by_name = [value for name, value in pairs if name in named]
    return secret_values(map(str, (*by_name, *secret_pairs(pairs), job["token"])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "job_id", nargs="?", default="", help="id of the job, or its last part (default: the newest job)"
    )
    parser.add_argument(
        "--secret", action="append", default=[], help="hide the value of this variable (repeatable)"
    )
    args = parser.parse_args()
    sys.stdout.write(json.dumps(seen(find_job(args.job_id), args.secret)) + "\n")
    return 0
