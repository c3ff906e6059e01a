"""Stops a job through its supervisor, and performs the final cleanup if the supervisor has died."""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolkit.container.conventions import (
    GRACE,
    PEER_FAILED,
    SUPERVISOR_TAG,
    fail,
    in_memory,
    is_tagged,
    job_folder,
)
from toolkit.container.files import write_text
from toolkit.container.job.exec_mode import ALL_ENDED, EXEC, PEER, RANKS_ENDED
from toolkit.container.job.orphans import CONNECT_S, end_everywhere
from toolkit.container.job_file import Job, grace_of, load_job
from toolkit.container.job_list import Status, keep_status, read_status
from toolkit.protocol.outcomes import EXIT_BROKEN, EXIT_NO_INPUT, FINAL_STATES

START_S = 5.0  # a job that was just started might not have a status yet
POLL_S = 0.05
SIGN_S = 5.0


def keep_grace(folder: Path, grace: float) -> None:
    """Write the user's grace in seconds; to memory if the disk is full."""
    text, memory = f"{grace}\n", in_memory(folder, GRACE)
    try:
        write_text(folder / GRACE, text)
        memory.unlink(missing_ok=True)
    except OSError:
        with suppress(OSError):  # no other place is left
            write_text(memory, text)


def _first_status(job_id: str) -> Status:
    deadline = time.monotonic() + START_S
    while True:
        status = read_status(job_id)
        if status is not None:
            return status
        if time.monotonic() > deadline:
            fail(EXIT_NO_INPUT, f"job {job_id} was not started on this host")
        time.sleep(POLL_S)


def _wait(job: Job, status: Status, grace: float, deadline: float, ranks: bool) -> Status:
    """Wait until the job or its ranks on this host have ended; return the status."""
    while status["state"] not in FINAL_STATES:
        if ranks and (job_folder(job["id"]) / RANKS_ENDED).exists():
            break
        if not is_tagged(status["pid"], SUPERVISOR_TAG, job["id"]):
            status = _first_status(job["id"])
            if status["state"] in FINAL_STATES:
                break
            outcome = end_everywhere(job, grace)
            status["state"], status["exit_code"] = "failed", EXIT_BROKEN
            status["ended"], status["reason"] = time.time(), "the supervisor exited without writing a result"
            status["unswept"] = sorted(host for host, problem in outcome.items() if problem)
            keep_status(job_folder(job["id"]), status)
            break
        if time.monotonic() > deadline:
            fail(EXIT_BROKEN, f"the supervisor (process {status['pid']}) did not exit in time")
        time.sleep(POLL_S)
        status = _first_status(job["id"])
    return status


@contextmanager
def signs_of_life() -> Iterator[None]:
    """Print an empty line every few seconds: only this program knows for how long the job can take to end."""
    over = threading.Event()

    def print_lines() -> None:
        with suppress(OSError):
            while not over.wait(SIGN_S):
                os.write(1, b"\n")

    thread = threading.Thread(target=print_lines)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job_id")
    parser.add_argument("--interrupt", action="store_true", help="send SIGINT (exit code 130), not SIGTERM")
    parser.add_argument("--failed", action="store_true", help="the job has failed on another host")
    parser.add_argument("--why", default="", help="with --failed: the reason to record")
    parser.add_argument("--lost", default="", help="with --why: the host whose loss ended the job")
    parser.add_argument("--ranks", action="store_true", help="wait only until the ranks on this host exit")
    parser.add_argument(
        "--grace", type=float, help="seconds between TERM and KILL (default: the grace period of the job)"
    )
    args = parser.parse_args()
    signum = PEER_FAILED if args.failed else signal.SIGINT if args.interrupt else signal.SIGTERM
    job = load_job(args.job_id)
    folder = job_folder(job["id"])
    if args.failed and read_status(job["id"]) is None:
        print("{}")  # the job was never started on this host
        return 0
    status = _first_status(job["id"])
    # On a full disk the job is stopped anyway, if necessary without the recorded reason.
    if args.why:
        with suppress(OSError):
            write_text(folder / PEER, f"{args.lost}\n{args.why}\n")
    if not args.ranks and job["transport"] == EXEC:
        with suppress(OSError):
            (folder / ALL_ENDED).touch()
    before = grace_of(job)  # perhaps of another `stop`, whose ranks keep it
    if args.grace is not None:
        keep_grace(folder, args.grace)
    grace = grace_of(job)
    # The worst case: the ranks' grace, then the launcher's, both with a lost host. Grace 0 ends all at once.
    longest = max(before, grace) if grace else 0.0
    deadline = time.monotonic() + 2 * longest + 2 * CONNECT_S + 30
    if status["state"] not in FINAL_STATES and is_tagged(status["pid"], SUPERVISOR_TAG, job["id"]):
        os.kill(status["pid"], signum)
    with signs_of_life():
        status = _wait(job, status, grace, deadline, args.ranks)
    print(json.dumps(status))
    return 0
