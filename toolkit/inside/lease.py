"""Holds a job's lease on one host: what the job runs there lives no longer than main is heard from.

The supervisor starts it on every host of the job, on workers through the cluster's ssh, and beats. Its words
say to everybody on the host, by `ps`, which slots and GPUs are taken and by whom.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from common import LEASE, LEASE_S, SUPERVISOR_MARK, fail, job_folder, load_host, load_job
from records import own_records
from sweep import end

# So that a host that is cut off has ended its ranks a moment after the lease.
LAPSE_GRACE_S = 3.0


class Lease:
    """The host's side: answers what main asks, and notices when it asks no more."""

    def __init__(self, job_id: str) -> None:
        self.folder = job_folder(job_id)
        self.job_id = job_id
        self.lock = threading.Lock()
        self.released = False
        self.file = os.open(self.folder / LEASE, os.O_RDWR | os.O_CREAT, 0o600)

    def renew(self) -> None:
        """Say until when ranks may run, in place: rank.py reads it too, for the case that we are killed."""
        with suppress(OSError):
            os.pwrite(self.file, b"%020.3f\n" % (time.monotonic() + LEASE_S), 0)

    def hear(self) -> str:
        """Serve main until it is gone; returns what happened, empty when main has said that all is over."""
        heard = time.monotonic()
        rest = b""
        while True:
            # What has come counts, however late we are to read it: a busy host is not a main that is gone.
            readable, _, _ = select.select([0], [], [], max(0.0, heard + LEASE_S - time.monotonic()))
            if not readable:
                return f"main was not heard from for {LEASE_S:.0f} s"
            data = os.read(0, 1 << 16)
            if not data:
                return "" if self.released else "main is gone"
            heard = time.monotonic()
            self.renew()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.take(json.loads(line))

    def take(self, request: dict[str, Any]) -> None:
        """Do what main asks, and go on listening meanwhile."""
        if request["do"] == "release":
            self.released = True
        threading.Thread(target=self.answer, args=(request,), daemon=True).start()

    def answer(self, request: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"n": request["n"]}
        try:
            if request["do"] == "end":
                reply["left"] = end(self.job_id, request["grace"], request["ranks"])
            elif request["do"] == "records":
                reply["records"] = own_records(self.folder)
        except OSError as error:
            reply["error"] = str(error)
        with self.lock, suppress(OSError):
            os.write(1, json.dumps(reply).encode() + b"\n")

    def lapse(self, why: str) -> None:
        """End what the job runs here, and leave a word about it in the job's logs."""
        grace = min(load_job(self.job_id)["grace"], LAPSE_GRACE_S)
        left = end(self.job_id, grace)
        what = f"still alive: {left}" if left else "the ranks here were ended"
        with suppress(OSError), (self.folder / "logs" / "lease.log").open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {why}; {what}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job_id")
    for name in ("--cluster", "--owner", "--slots", "--gpus"):
        parser.add_argument(name, default="", help="for those who look at this host's processes")
    job_id = parser.parse_args().job_id
    if not job_folder(job_id).is_dir():
        fail(66, f"{load_host()['host']} has no folder of job {job_id}")
    os.environ.pop(SUPERVISOR_MARK, None)
    # The end of the connection comes as a signal too; what ends us is the end of what we are told.
    for signum in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    lease = Lease(job_id)
    lease.renew()
    why = lease.hear()
    if why:
        lease.lapse(why)
    with suppress(OSError):
        (lease.folder / LEASE).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
