"""Copies a job's merged output to stdout as it grows, until the job has ended."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from pathlib import Path

from common import (
    EXIT_BROKEN,
    EXIT_NO_INPUT,
    FINAL_STATES,
    SUPERVISOR_MARK,
    fail,
    is_marked,
    job_folder,
    read_status,
)

POLL_S = 0.05
START_S = 30.0  # for how long a job may take to appear


def _copy(source: int) -> None:
    while True:
        data = os.read(source, 1 << 18)
        if not data:
            return
        while data:
            data = data[os.write(1, data) :]


def _open(path: Path) -> int:
    deadline = time.monotonic() + START_S
    while True:
        try:
            return os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            if time.monotonic() > deadline:
                fail(EXIT_NO_INPUT, f"{path} has not appeared within {START_S:.0f} s")
            time.sleep(POLL_S)


def _ended(job_id: str, give_up: float) -> str | None:
    """None while the job runs, else "" or what is wrong."""
    status = read_status(job_id)
    if status is None:
        late = time.monotonic() > give_up
        return "the supervisor has written no status" if late else None
    if status["state"] in FINAL_STATES:
        return ""
    if is_marked(status["pid"], SUPERVISOR_MARK, job_id):
        return None
    status = read_status(job_id)  # it may have ended between the two looks
    if status is not None and status["state"] in FINAL_STATES:
        return ""
    return "the supervisor is gone and has left no result"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job_id")
    parser.add_argument("--from", dest="start", type=int, default=0, metavar="BYTE")
    args = parser.parse_args()
    # the reader may leave at any time; dying of SIGPIPE says no word about it
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    source = _open(job_folder(args.job_id) / "output.log")
    os.lseek(source, args.start, os.SEEK_SET)
    give_up = time.monotonic() + START_S
    reader = select.poll()
    reader.register(1, 0)  # no event asked for: it reports only that the reader has gone
    while True:
        problem = _ended(args.job_id, give_up)  # asked before copying: what is there then is all
        _copy(source)
        if problem is not None:
            break
        if reader.poll(POLL_S * 1000):
            return 0  # the reader has gone while the job was silent
    if problem:
        fail(EXIT_BROKEN, problem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
