"""Copies a job's output to stdout: the merged log or one rank's, up to now or to the job's end."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from toolkit.container.conventions import (
    JOB_TAG,
    RESTART,
    SUPERVISOR_TAG,
    fail,
    is_tagged,
    job_folder,
    lease_path,
)
from toolkit.container.files import read
from toolkit.container.job.rank_records import RUN_FIELDS, is_record
from toolkit.container.job_file import load_job
from toolkit.container.job_list import read_status
from toolkit.container.logs.collapse import LauncherTraceback, LineCollapser
from toolkit.container.logs.log import Reader, RecordedTimes, Written, offset_at, offset_of_last_lines
from toolkit.protocol.outcomes import EXIT_BROKEN, EXIT_NO_INPUT, FINAL_STATES

LOG = "output.log"
POLL_S = 0.05
FOLDED_RANKS = 3  # with two ranks a summary would be as long as the lines
ANY = (b"",)  # prefixes of every line
START_S = 30.0  # time limit for a job to appear
RESTART_S = 120.0  # longer than from the end of an attempt to the leases of the next one


class Output:
    """Printed part of a log: all, collapsed, only one host's ranks, or nothing."""

    def __init__(self, fold: bool, host: str, silent: bool, merged: bool = False) -> None:
        self._traceback = LauncherTraceback() if merged else None
        self._fold = LineCollapser() if fold else None
        self._prefixes = prefixes_of(host)
        self._rest = b""
        self._silent = silent

    def show(self, data: bytes, written: Written | None = None) -> None:
        """Print the data.

        Args:
            written: its earliest and its latest time, by the monotonic clock; None for now.
        """
        if self._prefixes != ANY:
            *lines, self._rest = (self._rest + data).split(b"\n")
            data = b"".join(line + b"\n" for line in lines if line.startswith(self._prefixes))
        now = time.monotonic()
        self._folded(self._traceback.feed(data, now) if self._traceback else data, now, written)

    def tick(self) -> None:
        now = time.monotonic()
        if self._traceback:
            self._folded(self._traceback.tick(now), now)
        if self._fold:
            self._put(self._fold.tick(now))

    def _folded(self, data: bytes, now: float, written: Written | None = None) -> None:
        self._put(self._fold.feed(data, now, written) if self._fold else data)

    def close(self) -> None:
        if self._traceback:
            self._folded(self._traceback.close(), time.monotonic())
        if self._fold:
            self._put(self._fold.close())

    def _put(self, data: bytes) -> None:
        while data and not self._silent:
            data = data[os.write(1, data) :]


def prefixes_of(host: str) -> tuple[bytes, ...]:
    """Return the prefixes of lines of the ranks and of the launcher on a host; ANY without a host."""
    return (f"[{host} ".encode(), f"[{host}] ".encode()) if host else ANY


def _wait_for(path: Path, job_id: str) -> None:
    deadline = time.monotonic() + START_S
    while not path.exists():
        # The supervisor creates the job's log first.
        status = read_status(job_id) if path.name == LOG else None
        if status and not is_tagged(status["pid"], SUPERVISOR_TAG, job_id) and not path.exists():
            fail(EXIT_BROKEN, "the supervisor exited before it created the log of the job")
        if time.monotonic() > deadline:
            fail(EXIT_NO_INPUT, f"{path} did not appear within {START_S:.0f} s")
        time.sleep(POLL_S)


def _ended(job_id: str, give_up: float) -> str | None:
    """Return None while the job runs, otherwise "" or the problem."""
    status = read_status(job_id)
    if status is None:
        late = time.monotonic() > give_up
        return "the supervisor has written no status" if late else None
    if status["state"] in FINAL_STATES:
        return ""
    if is_tagged(status["pid"], SUPERVISOR_TAG, job_id):
        return None
    status = read_status(job_id)  # it can end between the two checks
    if status is not None and status["state"] in FINAL_STATES:
        return ""
    return "the supervisor exited without writing a result"


def _rank_ended(end: Path, job_id: str) -> bool:
    """Return whether a rank has ended and was not started again.

    Args:
        end: the exit record, which can belong to an earlier start, and which a killed rank does not write.
    """
    run, ended = read(end.with_suffix(".run")), read(end)
    if not is_record(run, RUN_FIELDS):
        return end.exists()
    written = is_record(ended) and (ended["attempt"], ended["pid"]) == (run["attempt"], run["pid"])
    return written or not is_tagged(run["pid"], JOB_TAG, job_id)


def _can_restart(job_id: str) -> bool:
    """Return whether the job can still start a rank again, as far as this host knows.

    The supervisor runs on main. Other hosts have the job's lease during an attempt, and a mark in between.
    """
    if read_status(job_id) is not None:
        return _ended(job_id, 0.0) is None
    folder = job_folder(job_id)
    with suppress(OSError, ValueError):
        if float(lease_path(folder).read_bytes()) > time.monotonic():
            return True
    with suppress(OSError):
        return time.time() < (folder / RESTART).stat().st_mtime + RESTART_S
    return False


def _start(path: Path, args: argparse.Namespace) -> int:
    """Return the offset of the log at which to start."""
    offsets: list[int] = [args.start]
    if args.ago is not None:
        offsets.append(offset_at(path, time.time() - args.ago))
    if args.since is not None:
        offsets.append(offset_at(path, args.since))
    if args.tail is not None:
        offsets.append(offset_of_last_lines(path, args.tail, prefixes_of(args.host)))
    return max(offsets)


def main(words: Sequence[str] | None = None) -> int:
    """Copy the output of a job.

    Args:
        words: the arguments; by default those of this process.
    """
    with suppress(BrokenPipeError):
        return _follow(words)
    return 0


def _follow(words: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job_id")
    parser.add_argument("--from", dest="start", type=int, default=0, metavar="BYTE")
    parser.add_argument("--ago", type=float, metavar="SECONDS")
    parser.add_argument("--since", type=float, metavar="EPOCH")
    parser.add_argument("--tail", type=int, metavar="LINES")
    parser.add_argument("--rank", type=int, help="print the log of this rank (only on its host)")
    parser.add_argument("--host", default="", help="print only lines of this host")
    parser.add_argument(
        "--fold", action="store_true", help="collapse identical lines and hide torchrun's traceback"
    )
    parser.add_argument("--now", action="store_true", help="print the current content and exit")
    parser.add_argument("--silent", action="store_true", help="wait for the end and print nothing")
    parser.add_argument("--status", action="store_true", help="print status.json to stderr at the end")
    args = parser.parse_args(words)
    # the reader can leave at any time; death by SIGPIPE prints nothing
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    folder = job_folder(args.job_id)
    path = folder / LOG if args.rank is None else folder / "logs" / f"rank-{args.rank}.log"
    end = path.with_suffix(".exit")
    if args.now and not path.exists():
        fail(EXIT_NO_INPUT, f"{path} does not exist")
    _wait_for(path, args.job_id)
    log, recorded = Reader(path, _start(path, args)), RecordedTimes(path)
    fold = args.fold and load_job(args.job_id)["world_size"] >= FOLDED_RANKS
    output = Output(fold, args.host, args.silent, args.fold and args.rank is None)
    give_up = time.monotonic() + START_S
    reader = select.poll()
    reader.register(1, 0)  # no event requested: it reports only that the reader has gone
    while True:
        # checked before copying, so that the copy is complete
        problem: str | None = ""
        if not args.now:
            if args.rank is None:
                problem = _ended(args.job_id, give_up)
            elif not _rank_ended(end, args.job_id) or _can_restart(args.job_id):
                problem = None
        for data in log.rest():
            for part, written in recorded.split(data, log.offset):
                output.show(part, written)
        output.tick()
        if problem is not None:
            break
        if reader.poll(POLL_S * 1000):
            return 0  # the reader has gone while the job was silent
    output.close()
    if problem:
        fail(EXIT_BROKEN, problem)
    if args.status:
        status = json.dumps(read_status(args.job_id))
        sys.stderr.write(f'{{"status": {status}, "now": {time.time()}}}\n')
    return 0
