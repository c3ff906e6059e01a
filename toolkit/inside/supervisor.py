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
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import BinaryIO

from common import (
    EXIT_BROKEN,
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
    is_marked,
    job_folder,
    load_job,
    program,
    read_status,
    write_json,
)
from lines import Merger
from records import blame
from sweep import end_everywhere

TICK_S = 0.05
DRAIN_S = 0.5  # how long a process that outlives its launch may hold the launch's pipe open


class Running:
    """One launch that has been started."""

    def __init__(self, job: Job, index: int) -> None:
        self.launch = job["launches"][index]
        self.merger = Merger()
        self.code: int | None = None
        self.ended = 0.0
        argv = [sys.executable, program("launch.py"), job["id"], str(index)]
        if self.launch["host"] != job["main"]:
            remote = ["python3", *argv[1:]]
            argv = [sys.executable, program("agent.py"), self.launch["host"], *remote]
        env = {**os.environ, JOB_MARK: job["id"]}
        env.pop(SUPERVISOR_MARK)
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,  # its end is the order to stop, and our death gives it too
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )

    @property
    def name(self) -> str:
        return f"{Path(self.launch['argv'][0]).name} on {self.launch['host']}"

    def stop(self) -> None:
        """Order the launch to end: TERM to its group, KILL after the grace."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()


class Supervisor:
    def __init__(self, job: Job, log: BinaryIO) -> None:
        self.job = job
        self.folder = job_folder(job["id"])
        self.log = log
        self.running: list[Running] = []
        self.selector = selectors.DefaultSelector()
        self.stopping: float | None = None  # since when
        self.ending: Thread | None = None  # the ranks, while their output is still copied
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

    def on_signal(self, signum: int, _frame: FrameType | None) -> None:
        self.asked = self.asked or signum

    def save(self) -> None:
        write_json(self.folder / "status.json", self.status)

    def write(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk costs the job its merged output, not its life
            self.log.write(data)

    def say(self, message: str) -> None:
        self.write(f"[toolkit] {message}\n".encode())

    def refuse(self, reason: str) -> None:
        """End before anything was started."""
        self.say(reason)
        self.log.close()
        self.status["state"], self.status["exit_code"], self.status["reason"] = "failed", EXIT_STARTED, reason
        self.status["ended"] = time.time()
        self.save()

    def run(self) -> None:
        """The job's whole life; afterwards status.json is final."""
        try:
            self._start()
            while any(running.code is None for running in self.running):
                self._step()
        except Exception as error:  # whatever it is: all ends, and the status becomes final
            self.outcome = ("failed", EXIT_BROKEN, f"the supervisor failed: {error!r}")
        state, code, reason = self.outcome or ("succeeded", 0, "")
        for running in self.running:
            running.stop()
        grace = self.job["grace"]
        if self.stopping is not None:  # they have had their TERM and some of the grace
            grace = max(1.0, self.stopping + grace - time.monotonic())
        left = {host: why for host, why in end_everywhere(self.job, grace).items() if why}
        for running in self.running:
            self._drain(running)
        for host, why in left.items():
            self.say(f"cannot say that nothing is left on {host}: {why}")
        if reason:
            self.say(reason)
        self.log.close()
        self.status["state"], self.status["exit_code"], self.status["reason"] = state, code, reason
        self.status["ended"], self.status["unswept"] = time.time(), sorted(left)
        self.save()

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
                self.outcome = (
                    "failed",
                    *blame(self.job, running.launch["host"], running.name, running.code),
                )
        if self.asked and self.outcome is None:
            name = signal.Signals(self.asked).name
            self.outcome = ("stopped", 128 + self.asked, f"stopped by {name}")
        limit = self.job["timeout"]
        if limit is not None and self.outcome is None and now > self.began + limit:
            self.outcome = ("timeout", 124, f"not ended within {limit:g} s")
        if self.outcome is not None and self.stopping is None and self._ranks_have_ended():
            self.stopping = now
            for running in self.running:
                running.stop()
        # launch.py keeps the grace itself; through ssh it may not be reachable to do so
        if self.stopping is not None and now > self.stopping + self.job["grace"] + 5:
            for running in self.running:
                if running.process.poll() is None:
                    running.process.kill()

    def _ranks_have_ended(self) -> bool:
        """When we are the ones to end the job, its ranks get their grace before the launcher knows.

        Told first, a launcher gives them less: Open MPI one second, and torchrun a TERM of its own.
        """
        assert self.outcome is not None
        if self.outcome[0] == "failed":
            return True  # the launcher is ending them already
        if self.ending is None:
            args = (self.job, self.job["grace"], True)
            self.ending = Thread(target=end_everywhere, args=args, daemon=True)
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
        return bool(data)

    def _drain(self, running: Running) -> None:
        while self._is_open(running) and self._read(running):
            pass
        self.write(running.merger.close())


def running_job(job_id: str) -> str:
    """The id of another job whose supervisor is alive here, empty when there is none."""
    for path in (ROOT / "jobs").glob("*/status.json"):
        other = path.parent.name
        status = read_status(other)
        if status is None or other == job_id or status["state"] in FINAL_STATES:
            continue
        if is_marked(status["pid"], SUPERVISOR_MARK, other):
            return other
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
    try:
        log = (job_folder(job_id) / "output.log").open("xb", buffering=0)
    except FileExistsError:
        fail(EXIT_STARTED, f"job {job_id} has been started before")
    supervisor = Supervisor(job, log)
    with (ROOT / "jobs" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two that start at once: one of them sees the other
        other = "" if job["share"] else running_job(job_id)
        if other:
            supervisor.refuse(f"job {other} is running on this cluster already")
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
