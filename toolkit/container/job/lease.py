"""Holds a job's lease on one host: the host ends the job's processes if main no longer sends heartbeats.

    job.lease JOB [--attempt N] [--cluster NAME] [--owner NAME] [--slots NUMBERS] [--gpus UUIDS]

The supervisor starts it on every host of the job, on workers through the cluster's ssh, and sends heartbeats.
N is the attempt whose ranks it watches; the other words show in `ps`, to everybody on the host, which slots
and GPUs are taken and by which user.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from toolkit.container.conventions import (
    ATTEMPT,
    HEARTBEAT_S,
    JOB_TAG,
    LEASE_S,
    RESTART,
    STOPPING,
    SUPERVISOR_TAG,
    fail,
    job_folder,
    lease_path,
    program,
    temporary_folder,
)
from toolkit.container.files import write_json
from toolkit.container.job.orphans import end, find, send, still_alive
from toolkit.container.job.rank_records import own_records
from toolkit.container.job.threads import Owned
from toolkit.container.job.variables import Variables, forget, keep
from toolkit.container.job_file import load_host, load_job
from toolkit.protocol.outcomes import EXIT_NO_INPUT, EXIT_USAGE

# A partitioned host ends its ranks this soon after the lease has expired.
LAPSE_GRACE_S = 3.0
DEATH_S = 0.1  # interval at which ranks are checked
# The program that logs gauges starts later than the ranks, to which it leaves the processor.
GAUGES_AFTER_S = 1.0


class Lease:
    """Host's side of a lease: answers requests of main, and detects the end of its heartbeats."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self.folder = job_folder(job_id)
        self.job_id = job_id
        self.attempt = attempt
        self.host = load_host()["host"]
        # Read now: if the file server is lost together with main, it cannot be read when the lease expires.
        self.grace = min(load_job(job_id)["grace"], LAPSE_GRACE_S)
        self.lock = threading.Lock()
        self.released = False
        self.deaths = Owned(self.report_deaths)
        self.path = lease_path(self.folder)
        self.file = alone(self.path)

    def renew(self, heard: float) -> None:
        """Write in place until when ranks can run: rank.py also reads it, in case this process is killed."""
        with suppress(OSError):
            os.pwrite(self.file, b"%020.3f\n" % (heard + LEASE_S), 0)

    def hear(self) -> str:
        """Serve main until it is gone; return the reason, empty if main has released the lease."""
        heard = looked = time.monotonic()
        rest = b""
        while True:
            # Input that has arrived counts even if it is read late: a busy host does not mean that main is
            # gone.
            readable, _, _ = select.select([0], [], [], HEARTBEAT_S)
            self.deaths.check()
            now = time.monotonic()
            if now > looked + 2 * HEARTBEAT_S:
                # This process stalled, and perhaps main too: do not count that time as silence of main.
                heard += now - looked
                self.renew(heard)
            looked = now
            if not readable:
                if now < heard + LEASE_S:
                    continue
                return f"the main container sent no heartbeat for {LEASE_S:.0f} s"
            data = os.read(0, 1 << 16)
            if not data:
                return "" if self.released else "the main container closed the connection"
            heard = now
            self.renew(heard)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.take(json.loads(line))

    def report_deaths(self) -> None:
        """Report each failed rank to main, once, as soon as it has failed."""
        reported: set[tuple[int, int]] = set()
        while not self.released:
            for record in own_records(self.folder, self.host, self.attempt):
                who = record["rank"], record["pid"]
                if record["exit_code"] != 0 and who not in reported:
                    reported.add(who)
                    self.say({"n": 0, "death": record})
            time.sleep(DEATH_S)

    def say(self, message: dict[str, Any]) -> None:
        with self.lock, suppress(OSError):
            os.write(1, json.dumps(message).encode() + b"\n")

    def keep(self, variables: Variables) -> None:
        """Keep the variables of this host's ranks in memory."""
        try:
            keep(self.folder, variables)
        except OSError as error:
            why = f"the lease process cannot keep the variables of the job in memory: {error.strerror}"
            self.say({"n": 0, "failed": why})

    def take(self, request: dict[str, Any]) -> None:
        """Handle a request of main without blocking the heartbeats."""
        if request["do"] == "variables":
            self.keep(request["variables"])  # before any other request
            return
        if request["do"] == "release":
            self.released = True
        threading.Thread(target=self.answer, args=(request,), daemon=True).start()

    def answer(self, request: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"n": request["n"]}
        try:
            if request["do"] == "end":
                reply["left"] = end(self.job_id, request["grace"], request["ranks"], request["keep"])
            elif request["do"] == "interrupt":
                for process in find(self.job_id, ranks=True):
                    send(process["pid"], self.job_id, signal.SIGKILL)
            elif request["do"] == "records":
                reply["records"] = own_records(self.folder, self.host, self.attempt)
            elif request["do"] == "clock":
                reply["now"] = time.time()
            elif request["do"] == "port":
                reply["port"] = free_port(load_host()["address"], request["from"])
            elif request["do"] == "attempt":
                (self.folder / STOPPING).unlink(missing_ok=True)
                write_json(self.folder / ATTEMPT, request["attempt"])
                reply["ready"] = True
        except Exception as error:  # any error: main waits for an answer
            reply["error"] = repr(error)
        self.say(reply)

    def lapse(self, why: str) -> None:
        """End the job's processes on this host, and record that in the job's logs."""
        left = end(self.job_id, self.grace)
        what = still_alive(left) or "toolkit stopped the ranks on this host"
        with suppress(OSError), (self.folder / "logs" / "lease.log").open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {why}; {what}\n")


def alone(path: Path) -> int:
    """Open the lease's file as soon as no other lease of the job is active on this host.

    A partitioned lease first ends all processes of the job; it must not end those of a restart.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(OSError):
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        os.close(file)  # the previous holder removed the file at its end


def free_port(address: str, first: int) -> int:
    """Return the first free port from `first` on at this host's address; `first` if none is free."""
    for port in range(first, 65536):
        with closing(socket.socket()) as trial, suppress(OSError):
            trial.bind((address, port))
            return port
    return first


def log_gauges(job_id: str, over: threading.Event) -> None:
    """Log the gauges of this host until the lease is over; the ranks start first."""
    if not over.wait(GAUGES_AFTER_S):
        gauges = start_gauges(job_id)
        over.wait()
        end_gauges(gauges)


def start_gauges(job_id: str) -> subprocess.Popen[bytes] | None:
    """Start the program that logs the host's gauges for the report; the job runs even if this fails.

    It exits when its standard input is closed, so it needs no job tag for the orphan cleanup.
    """
    env = {name: value for name, value in os.environ.items() if name != JOB_TAG}
    with suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-S", "-E", *program("monitor.gauge_log"), job_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )
    return None


def end_gauges(gauges: subprocess.Popen[bytes] | None) -> None:
    """Stop the program that logs gauges, with time to write its last row."""
    if gauges is not None and gauges.stdin is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            gauges.stdin.close()
            gauges.wait(1.0)
        if gauges.poll() is None:
            gauges.kill()


def main() -> int:
    if len(sys.argv) % 2:
        fail(EXIT_USAGE, "usage: job.lease JOB [--attempt N] [--cluster NAME] ...")
    job_id = sys.argv[1]
    about = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    if not job_folder(job_id).is_dir():
        fail(EXIT_NO_INPUT, f"{load_host()['host']} has no folder of job {job_id}")
    os.environ.pop(SUPERVISOR_TAG, None)
    # A closed connection also raises a signal; only the end of the input ends this process.
    for signum in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    lease = Lease(job_id, int(about.get("--attempt", "0")))
    lease.renew(time.monotonic())
    with suppress(OSError):  # a host that the attempt then does without awaits no other attempt
        (lease.folder / RESTART).unlink(missing_ok=True)
    with suppress(OSError):  # the login of a launcher creates the folder if it is missing
        temporary_folder(job_id).mkdir(mode=0o700, exist_ok=True)
    lease.deaths.start()
    over = threading.Event()
    gauges = threading.Thread(target=log_gauges, args=(job_id, over), daemon=True)
    gauges.start()
    try:
        why = lease.hear()
    except Exception as error:  # otherwise main would learn neither of failed ranks nor of this error
        why = f"the lease process failed: {error!r}"
        lease.say({"n": 0, "failed": why})
    try:
        if why:
            lease.lapse(why)
        # Only now: if the ranks could not be ended, each rank.py ends its own by the time in this file.
        with suppress(OSError):
            lease.path.unlink()
    finally:
        forget(lease.folder)
    over.set()
    gauges.join(2.0)
    return 0
