"""Holds a job's lease on one host: what the job runs there lives no longer than main is heard from.

    job.lease JOB [--attempt N] [--cluster NAME] [--owner NAME] [--slots NUMBERS] [--gpus UUIDS]

The supervisor starts it on every host of the job, on workers through the cluster's ssh, and beats. N says
whose ranks to look after; the other words say to everybody on the host, by `ps`, which slots and GPUs are
taken and by whom.
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

from toolkit.container.exits import fail
from toolkit.container.files import write_json
from toolkit.container.job.lease_times import BEAT_S, LEASE_S
from toolkit.container.job.rank_records import own_records
from toolkit.container.job.sweep import end, find, send
from toolkit.container.job.threads import Owned
from toolkit.container.job.variables import Variables, forget, keep
from toolkit.container.job_file import load_host, load_job
from toolkit.container.marks import JOB_MARK, SUPERVISOR_MARK
from toolkit.container.paths import ATTEMPT, STOPPING, job_folder, lease_path, program
from toolkit.protocol.exit_codes import EXIT_NO_INPUT, EXIT_USAGE

# So that a host that is cut off has ended its ranks a moment after the lease.
LAPSE_GRACE_S = 3.0
DEATH_S = 0.1  # how often ranks are looked after


class Lease:
    """The host's side: answers what main asks, and notices when it asks no more."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self.folder = job_folder(job_id)
        self.job_id = job_id
        self.attempt = attempt
        self.host = load_host()["host"]
        self.lock = threading.Lock()
        self.released = False
        self.deaths = Owned(self.report_deaths)
        self.path = lease_path(self.folder)
        self.file = alone(self.path)

    def renew(self, heard: float) -> None:
        """Say until when ranks may run, in place: rank.py reads it too, for the case that we are killed."""
        with suppress(OSError):
            os.pwrite(self.file, b"%020.3f\n" % (heard + LEASE_S), 0)

    def hear(self) -> str:
        """Serve main until it is gone; returns what happened, empty when main has said that all is over."""
        heard = looked = time.monotonic()
        rest = b""
        while True:
            # What has come counts, however late we are to read it: a busy host is not a main that is gone.
            readable, _, _ = select.select([0], [], [], BEAT_S)
            self.deaths.check()
            now = time.monotonic()
            if now > looked + 2 * BEAT_S:
                # We stood still ourselves, and perhaps main with us: that time was not its silence.
                heard += now - looked
                self.renew(heard)
            looked = now
            if not readable:
                if now < heard + LEASE_S:
                    continue
                return f"main was not heard from for {LEASE_S:.0f} s"
            data = os.read(0, 1 << 16)
            if not data:
                return "" if self.released else "main is gone"
            heard = now
            self.renew(heard)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.take(json.loads(line))

    def report_deaths(self) -> None:
        """Tell main of each rank that has failed, once, as soon as it has."""
        told: set[tuple[int, int]] = set()
        while not self.released:
            for record in own_records(self.folder, self.host, self.attempt):
                who = record["rank"], record["pid"]
                if record["exit_code"] != 0 and who not in told:
                    told.add(who)
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
            why = f"it cannot keep the job's variables in memory: {error.strerror}"
            self.say({"n": 0, "failed": why})

    def take(self, request: dict[str, Any]) -> None:
        """Do what main asks, and go on listening meanwhile."""
        if request["do"] == "variables":
            self.keep(request["variables"])  # before anything else is answered
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
            elif request["do"] == "port":
                reply["port"] = free_port(load_host()["address"], request["from"])
            elif request["do"] == "attempt":
                (self.folder / STOPPING).unlink(missing_ok=True)
                write_json(self.folder / ATTEMPT, request["attempt"])
                reply["ready"] = True
        except Exception as error:  # whatever it is: main waits for an answer
            reply["error"] = repr(error)
        self.say(reply)

    def lapse(self, why: str) -> None:
        """End what the job runs here, and leave a word about it in the job's logs."""
        grace = min(load_job(self.job_id)["grace"], LAPSE_GRACE_S)
        left = end(self.job_id, grace)
        what = f"still alive: {left}" if left else "the ranks here were ended"
        with suppress(OSError), (self.folder / "logs" / "lease.log").open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {why}; {what}\n")


def alone(path: Path) -> int:
    """Open the lease's file once no other lease of the job is at work here.

    One that was cut off ends everything of the job first: it must not find what a restart has begun.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(OSError):
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        os.close(file)  # whoever had it before us has removed it at its end


def free_port(address: str, first: int) -> int:
    """The first port from `first` on that can be listened on at our address; `first` where none can."""
    for port in range(first, 65536):
        with closing(socket.socket()) as trial, suppress(OSError):
            trial.bind((address, port))
            return port
    return first


def start_gauges(job_id: str) -> subprocess.Popen[bytes] | None:
    """Start the program that keeps the host's gauges for the report; without it the job goes on.

    It ends with its standard input, whatever ends us, so that no sweep has to find it: it is not marked.
    """
    env = {name: value for name, value in os.environ.items() if name != JOB_MARK}
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
    """End the program that keeps gauges, and give it a moment to write its last row."""
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
    os.environ.pop(SUPERVISOR_MARK, None)
    # The end of the connection comes as a signal too; what ends us is the end of what we are told.
    for signum in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    lease = Lease(job_id, int(about.get("--attempt", "0")))
    lease.renew(time.monotonic())
    lease.deaths.start()
    gauges = start_gauges(job_id)
    try:
        why = lease.hear()
    except Exception as error:  # main would hear neither of ranks that fail nor of this
        why = f"its lease failed: {error!r}"
        lease.say({"n": 0, "failed": why})
    try:
        if why:
            lease.lapse(why)
    finally:
        forget(lease.folder)
        with suppress(OSError):
            lease.path.unlink()
    end_gauges(gauges)
    return 0
