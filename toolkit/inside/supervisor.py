"""Owns one job: starts its launches, merges their output, ends them, sweeps, says how it went."""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from threading import Thread
from types import FrameType

from common import (
    EXIT_BROKEN,
    EXIT_LOST,
    EXIT_STARTED,
    EXIT_USAGE,
    FINAL_STATES,
    JOB_MARK,
    ROOT,
    SUPERVISOR_MARK,
    Job,
    Status,
    exit_code_of,
    fail,
    grace_of,
    is_marked,
    job_folder,
    load_job,
    read_status,
    write_json,
)
from launches import Running
from leases import Leases
from logs import Log
from records import blame
from sweep import end_everywhere

TICK_S = 0.05
DRAIN_S = 0.5  # how long a process that outlives its launch may hold the launch's pipe open


class Supervisor:
    def __init__(self, job: Job, log: Log) -> None:
        self.job = job
        self.folder = job_folder(job["id"])
        self.log = log
        self.running: list[Running] = []
        self.selector = selectors.DefaultSelector()
        self.leases: Leases | None = None
        self.stopping: float | None = None  # since when
        self.ending: Thread | None = None  # the ranks, while their output is still copied
        self.killing: Thread | None = None  # everything, when somebody will not wait for the grace
        self.asked = 0  # the first TERM or INT
        self.began = time.monotonic()
        self.status: Status = {
            "state": "starting",
            "exit_code": None,
            "started": time.time(),
            "ended": None,
            "pid": os.getpid(),
            "reason": "",
            "unswept": [],
        }
        self.outcome: tuple[str, int, str] | None = None
        self.launcher_failed = False  # then it is ending its ranks already

    def on_signal(self, signum: int, _frame: FrameType | None) -> None:
        self.asked = self.asked or signum

    def save(self) -> None:
        write_json(self.folder / "status.json", self.status)

    def write(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk costs the job its merged output, not its life
            if data:
                self.log.write(data)

    def say(self, message: str) -> None:
        self.write(f"[toolkit] {message}\n".encode())

    def refuse(self, reason: str) -> None:
        """End before anything was started."""
        self.say(reason)
        self.finish("failed", EXIT_STARTED, reason, [])

    def finish(self, state: str, code: int, reason: str, unswept: list[str]) -> None:
        """Write how it ended; nothing follows."""
        self.log.close()
        self.status["state"], self.status["exit_code"], self.status["reason"] = state, code, reason
        self.status["ended"], self.status["unswept"] = time.time(), unswept
        self.save()

    def run(self) -> None:
        """The job's whole life; afterwards status.json is final."""
        try:
            self.leases = Leases(self.job)
            self._start()
            while any(running.code is None for running in self.running):
                self._step()
        except Exception as error:  # whatever it is: all ends, and the status becomes final
            self.outcome = ("failed", EXIT_BROKEN, f"the supervisor failed: {error!r}")
        state, code, reason = self.outcome or ("succeeded", 0, "")
        for running in self.running:
            running.stop()
        grace = grace_of(self.job)
        if self.stopping is not None:  # they have had their TERM and some of the grace
            grace = max(min(1.0, grace), self.stopping + grace - time.monotonic())
        end = self.leases.end if self.leases else partial(end_everywhere, self.job)
        left = {host: why for host, why in end(grace).items() if why}
        for running in self.running:
            self._drain(running)
        for host, why in left.items():
            self.say(f"cannot say that nothing is left on {host}: {why}")
        if reason:
            self.say(reason)
        if self.leases:
            self.leases.close()
        self.finish(state, code, reason, sorted(left))

    def _start(self) -> None:
        for index in range(len(self.job["launches"])):
            running = Running(self.job, index)
            self.running.append(running)
            assert running.process.stdout is not None
            os.set_blocking(running.process.stdout.fileno(), False)
            self.selector.register(running.process.stdout, selectors.EVENT_READ, running)
        self.status["state"] = "running"
        self.save()

    def _step(self) -> None:
        for key, _ in self.selector.select(TICK_S):
            self._read(key.data)
        now = time.monotonic()
        for running in self.running:
            if running.code is not None:
                continue
            returncode = running.process.poll()
            if returncode is None:
                continue
            running.ended = running.ended or now
            if self._is_open(running) and now < running.ended + DRAIN_S:
                continue
            running.code = exit_code_of(returncode)
            if running.code != 0 and self.outcome is None:
                self.outcome = self._failed(running, running.code)
                self.launcher_failed = True
        if self.asked and self.outcome is None:
            name = signal.Signals(self.asked).name
            self.outcome = ("stopped", 128 + self.asked, f"stopped by {name}")
        limit = self.job["timeout"]
        if limit is not None and self.outcome is None and now > self.began + limit:
            self.outcome = ("timeout", 124, f"not ended within {limit:g} s")
        if self.outcome is None:
            self.outcome = self._lost()
        if self.outcome is not None:
            self._end(now)

    def _failed(self, running: Running, code: int) -> tuple[str, int, str]:
        """How the job has failed, by the first of its causes that can be told."""
        assert self.leases is not None
        records = self.leases.records()
        # A launcher sees a host go, too; but it cannot say why, nor that it was the host.
        lost = self._lost()
        return lost or ("failed", *blame(self.job, records, running.launch["host"], running.name, code))

    def _lost(self) -> tuple[str, int, str] | None:
        assert self.leases is not None
        lost = self.leases.lost()
        return ("failed", EXIT_LOST, f"{lost[0]} is lost: {lost[1]}") if lost else None

    def _end(self, now: float) -> None:
        """Bring the job to its end: ranks first, then the launcher, then what heeds neither."""
        assert self.leases is not None
        grace = grace_of(self.job)
        if grace == 0 and self.asked and self.killing is None:
            self.killing = Thread(target=self.leases.end, args=(0.0,), daemon=True)
            self.killing.start()
        if self.stopping is None and self._ranks_have_ended():
            self.stopping = now
            for running in self.running:
                running.stop()
        # launch.py keeps the grace itself; through ssh it may not be reachable to do so
        if self.stopping is not None and now > self.stopping + grace + 5:
            for running in self.running:
                if running.process.poll() is None:
                    running.process.kill()

    def _ranks_have_ended(self) -> bool:
        """When we are the ones to end the job, its ranks get their grace before the launcher knows.

        Told first, a launcher gives them less: Open MPI one second, and torchrun a TERM of its own.
        """
        if self.launcher_failed or self.killing is not None:
            return True
        if self.ending is None:
            assert self.leases is not None
            self.ending = Thread(target=self.leases.end, args=(grace_of(self.job), True), daemon=True)
            self.ending.start()
        return not self.ending.is_alive()

    def _is_open(self, running: Running) -> bool:
        return running.process.stdout in self.selector.get_map()

    def _read(self, running: Running) -> bool:
        stdout = running.process.stdout
        assert stdout is not None
        try:
            data = os.read(stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if data:
            self.write(running.merger.feed(data))
        else:
            self.selector.unregister(stdout)
            self.write(running.merger.close())
            with suppress(subprocess.TimeoutExpired):  # its end comes a moment after that of its output
                running.process.wait(TICK_S)
        return bool(data)

    def _drain(self, running: Running) -> None:
        while self._is_open(running) and self._read(running):
            pass
        self.write(running.merger.close())


def taken_by_another(job: Job) -> str:
    """What another job that runs here has taken of what this one wants, in words; empty when nothing."""
    for path in (ROOT / "jobs").glob("*/status.json"):
        other = path.parent.name
        status = read_status(other)
        if status is None or other == job["id"] or status["state"] in FINAL_STATES:
            continue
        if not is_marked(status["pid"], SUPERVISOR_MARK, other):
            continue
        theirs = {host["name"]: host["taken"] for host in load_job(other)["hosts"]}
        for host in job["hosts"]:
            both = sorted(set(host["taken"]) & set(theirs.get(host["name"], ())))
            if both:
                return f"slot {both[0]} of {host['name']} was taken by job {other} a moment ago"
    return ""


def main() -> int:
    if len(sys.argv) != 2:
        fail(EXIT_USAGE, "usage: supervisor.py JOB")
    job_id = sys.argv[1]
    job = load_job(job_id)
    if os.environ.get(SUPERVISOR_MARK) != job_id or JOB_MARK in os.environ:
        # what others see of our environment is what we were started with, so start once more
        env = {**os.environ, SUPERVISOR_MARK: job_id}
        env.pop(JOB_MARK, None)
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
    if os.getpid() != os.getsid(0):
        os.setsid()
    path = job_folder(job_id) / "output.log"
    try:
        path.open("xb").close()
    except FileExistsError:
        fail(EXIT_STARTED, f"job {job_id} has been started before")
    supervisor = Supervisor(job, Log(path, job["log_bytes"]))
    with (ROOT / "jobs" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two that start at once: one of them sees the other
        taken = "" if job["share"] else taken_by_another(job)
        if taken:
            supervisor.refuse(taken)
            return EXIT_STARTED
        supervisor.save()
    # a function and not SIG_IGN, which the launches would inherit
    signal.signal(signal.SIGHUP, lambda _signum, _frame: None)
    signal.signal(signal.SIGTERM, supervisor.on_signal)
    signal.signal(signal.SIGINT, supervisor.on_signal)
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
