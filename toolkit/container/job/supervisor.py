"""Supervises one job: its attempts one after another, their merged output, its status and result."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType

from toolkit.container.conventions import (
    ATTEMPT,
    JOB_TAG,
    PEER_FAILED,
    SUPERVISOR_TAG,
    fail,
    job_folder,
)
from toolkit.container.diagnose.watchdog import Watchdog
from toolkit.container.files import reserve, write_json
from toolkit.container.job.attempt import Attempt
from toolkit.container.job.elastic import reserve_of
from toolkit.container.job.exec_mode import PEER
from toolkit.container.job.launch import raise_limit, too_few_descriptors
from toolkit.container.job.lease_client import Leases
from toolkit.container.job.orphans import end_everywhere
from toolkit.container.job.rank_records import End
from toolkit.container.job.restarts import (
    Restarts,
    acquire_leases,
    count,
    next_job,
    part_of_attempt,
    slot_lock,
    taken,
    taken_by_another,
    too_few,
)
from toolkit.container.job.variables import AllVariables, receive
from toolkit.container.job_file import Host, Job, load_job
from toolkit.container.job_list import Status, keep_status
from toolkit.container.logs.log import Log, size_of
from toolkit.protocol.host_list import host_list
from toolkit.protocol.outcomes import (
    EXIT_BROKEN,
    EXIT_LOST,
    EXIT_STARTED,
    EXIT_USAGE,
    JobState,
    next_state,
)

TICK_S = 0.05
MOST_RESTARTS = 100  # number of restarts for which space is reserved
ENDING = frozenset((signal.SIGTERM, signal.SIGINT, PEER_FAILED))  # signals that end a job


class Supervisor:
    def __init__(self, job: Job, log: Log) -> None:
        self.job = job
        self.variables: AllVariables | None = None
        self.folder = job_folder(job["id"])
        self.log = log
        self.restarts = Restarts(job)
        self.watchdog = Watchdog(job["id"], job["stall_after"] or math.inf, time.monotonic())
        self.leases: Leases | None = None
        self.attempt: Attempt | None = None
        self.unswept: dict[str, str] = {}
        self.stop_signal = 0  # the first signal that ends the job
        self.printed_reason = ""  # the reason of the attempt's end, once printed
        self.began = time.monotonic()
        self.status: Status = {
            "state": JobState.STARTING.value,
            "exit_code": None,
            "started": time.time(),
            "ended": None,
            "pid": os.getpid(),
            "reason": "",
            "unswept": [],
            "hosts": taken(job["hosts"]),
            "restarts": self.restarts.done,
            "cause": {},
            "asked": None,
            "lost_host": "",
        }

    def on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if not self.stop_signal and signum != PEER_FAILED:
            self.status["asked"] = time.time()
        self.stop_signal = self.stop_signal or signum

    def save(self) -> None:
        keep_status(self.folder, self.status)

    def write(self, data: bytes) -> None:
        with suppress(OSError):  # with a full disk the job loses its merged output but continues
            if data:
                self.log.write(data)

    def say(self, message: str) -> None:
        self.write(f"[toolkit] {message}\n".encode())

    def _tell(self, reason: str) -> None:
        """Print the reason of an attempt's end immediately: its ranks can take a while to end."""
        self.printed_reason = reason
        self.say(reason)

    def refuse(self, reason: str) -> None:
        """End the job before any start."""
        self.say(reason)
        self.finish(End("failed", EXIT_STARTED, reason))

    def finish(self, end: End) -> None:
        """Write the final status."""
        self.log.close()
        self.status["exit_code"], self.status["reason"] = end.code, end.reason
        self.status["ended"], self.status["unswept"] = time.time(), sorted(self.unswept)
        self.status["cause"], self.status["lost_host"] = end.record, end.lost_host
        self._enter(end.state)

    def _enter(self, state: str) -> None:
        """Change the state of the job, and write the status."""
        self.status["state"] = next_state(self.status["state"], state)
        self.save()

    def run(self) -> None:
        """Run the job to its end; afterwards status.json is final."""
        try:
            end = self._attempts()
        except Exception as error:  # any error: the job ends, and the status becomes final
            end = self._broken(error)
            if self.attempt:
                self._try(self.attempt.abandon)
            self._try(lambda: self._sweep(self.job["hosts"], 1.0))
        self._try(self.watchdog.close)
        # Spare hosts and dropped hosts have kept the files for another attempt.
        if idle := self.restarts.idle(self.job["hosts"], self.unswept):
            self._try(lambda: self._sweep(idle, 0.0))
        for host, why in self.unswept.items():
            self.say(f"a process of the job might be left on {host}: {why}")
        # Do not repeat a reason that was printed already.
        if rest := end.reason.removeprefix(self.printed_reason).removeprefix("; "):
            self.say(rest)
        if self.leases:
            self._try(self.leases.close)
        self.finish(end)

    def _broken(self, error: Exception) -> End:
        """Return the end after an error of the supervisor: the job's own end, if known, plus the error."""
        what = f"the supervisor failed: {error!r}"
        first = self.attempt.cause if self.attempt else None
        if first is None:
            return End("failed", EXIT_BROKEN, what)
        return first._replace(reason=f"{first.reason}; {what}")

    def _try(self, work: Callable[[], object]) -> None:
        """Run one of the final steps. An error is printed to the log and does not prevent the others."""
        try:
            work()
        except Exception as error:
            self.say(f"the supervisor failed: {error!r}")

    def _sweep(self, hosts: Sequence[Host], grace: float) -> None:
        try:
            self._swept(end_everywhere({**self.job, "hosts": list(hosts)}, grace))
        except Exception as error:
            self._swept({host["name"]: repr(error) for host in hosts})
            raise

    def _attempts(self) -> End:
        if over := self._over():  # an end was requested before any start
            self._sweep(self.job["hosts"], 0.0)
            return over
        self.leases = Leases(self.job, self.variables)
        while True:
            began = time.monotonic()
            self.attempt = Attempt(
                self.job, self.leases, self._take_output, self._tell, self._beat, self._may_go_on
            )
            self.attempt.start()
            self.watchdog.restart(time.monotonic())
            self._enter(JobState.RUNNING)
            end, left = self.attempt.run(self.restarts.may_follow)
            self._swept(left)
            if not self.restarts.may_follow(end):
                return end._replace(reason=end.reason + self.restarts.why_not(end))
            if last := self._prepare(end, time.monotonic() - began):
                # Remove what the hosts kept for another attempt.
                self._swept(end_everywhere(self.job, 0.0))
                return last

    def _prepare(self, end: End, lasted: float) -> End | None:
        """Prepare the next attempt; return an end if there is none."""
        assert self.leases is not None
        wait = self.restarts.note(end, list(self.status["hosts"]), lasted)
        number, most = len(self.restarts.done), self.job["max_restarts"]
        self._enter(JobState.RESTARTING)
        self.say(f"restart {number} of {most} in {wait:g} s")
        self.leases.close()
        self.leases = None
        until = time.monotonic() + wait
        while time.monotonic() < until and self._over() is None:
            time.sleep(TICK_S)
        candidates = self.restarts.candidates()
        lost = [end.host] if end.code == EXIT_LOST else []
        self.leases = acquire_leases(
            self.job, self.variables, candidates, number, lost, lambda: self._over() is not None
        )
        if over := self._over():
            return over
        there = [host for host in candidates if host["name"] in self.leases.there()]
        # --min-hosts counts the selected hosts, and a job with few ranks can use fewer.
        least = min(self.job["min_hosts"] or self.restarts.wanted, self.restarts.wanted)
        if len(there) < least:
            return end._replace(reason=f"{end.reason}; no restart: {too_few(there, least)}")
        hosts, error = self._reserve(there, least)
        error = error or self._take(hosts, number)
        return end._replace(reason=f"{end.reason}; no restart: {error}") if error else None

    def _reserve(self, there: Sequence[Host], least: int) -> tuple[list[Host], str]:
        """Take the slots of the preferred hosts with free slots; return an error if they are too few."""
        with slot_lock():
            held = taken_by_another(self.job, there)
            hosts = [host for host in there if host["name"] not in held][: self.restarts.wanted]
            if len(hosts) < least:
                return [], next(iter(held.values()))
            self.status["hosts"] = taken(hosts)
            self.save()
        return hosts, ""

    def _take(self, hosts: Sequence[Host], number: int) -> str:
        """Move the job to these hosts, whose slots it has; return the error, empty on success."""
        assert self.leases is not None
        names = [host["name"] for host in hosts]
        reserve = [host["name"] for host in reserve_of({**self.job, "hosts": list(hosts)})]
        self.leases.keep([self.job["main"], *names, *reserve])
        port = self.leases.tell(names[0], {"do": "port", "from": self.job["master_port"] + 1}).get("port")
        job = next_job(self.job, hosts, number, int(port or self.job["master_port"]))
        try:
            write_json(self.folder / ATTEMPT, part_of_attempt(job))
        except OSError as error:
            return f"{self.job['main']} cannot write {self.folder / ATTEMPT}: {error.strerror}"
        self.job = job
        for name in dict.fromkeys([job["main"], *names, *self.leases.there()]):
            reply = self.leases.tell(name, {"do": "attempt", "attempt": part_of_attempt(job)})
            if reply.get("ready"):
                continue
            # Its ranks would start with the addresses and ports of the previous attempt.
            if "error" not in reply:
                self.leases.lose(name)  # the attempt ends, and another restart can follow
                continue
            what = f"{name} could not store the files of the restart: {reply['error']}"
            if name in (job["main"], *names):
                return what
            self.say(what)
            self.leases.leave(name)  # a spare host for an elastic launcher
        self.say(f"restart {number}: {count(job['world_size'], 'rank')} on {host_list(names)}")
        self._mark_output()
        return ""

    def _mark_output(self) -> None:
        """Record the start of the output of the attempt after the last failure."""
        self.restarts.done[-1]["from"] = size_of(self.folder / "output.log")
        self.save()

    def _may_go_on(self, end: End, hosts: Sequence[Host]) -> bool:
        """Return whether an elastic launcher restarts its ranks on these hosts after this end.

        The caller holds the lock of the slots.
        """
        if not self.restarts.may_follow(end):
            return False
        self.restarts.note(end, list(self.status["hosts"]), math.inf)
        number, most = len(self.restarts.done), self.job["max_restarts"]
        self.status["hosts"] = taken(hosts)
        self.save()
        names = host_list(host["name"] for host in hosts)
        self.say(f"{end.reason}; restart {number} of {most} by {self.job['launcher']} on {names}")
        self._mark_output()
        self.watchdog.restart(time.monotonic())
        return True

    def _beat(self) -> End | None:
        """Perform the periodic work of a running attempt; return an end from outside, if any."""
        if line := self.watchdog.tick(time.monotonic()):
            self.say(line)
        return self._over()

    def _over(self) -> End | None:
        """Return the end that was requested from outside the job, if any.

        Raises:
            Exception: the exception that ended the thread of the leases.
        """
        if self.leases is not None:
            self.leases.check()
        if self.stop_signal == PEER_FAILED:
            return self._peer_failed()
        if self.stop_signal:
            name = signal.Signals(self.stop_signal).name
            return End("stopped", 128 + self.stop_signal, f"stopped by {name}", wanted=True)
        limit = self.job["timeout"]
        if limit is not None and time.monotonic() > self.began + limit:
            return End(
                "timeout", 124, f"the job did not end within its time limit of {limit:g} s", wanted=True
            )
        return None

    def _peer_failed(self) -> End:
        try:
            host, _, why = (self.folder / PEER).read_text().partition("\n")
        except OSError:
            what = "stopped because the job failed on another host"
            return End("stopped", 128 + signal.SIGTERM, what)
        # It precedes all consequences, whatever the ranks' own records contain.
        return End("failed", EXIT_LOST, why.strip(), record={"ended": 0.0}, lost_host=host)

    def _take_output(self, data: bytes) -> None:
        if data:
            self.watchdog.heard(time.monotonic())
        self.write(data)

    def _swept(self, left: Mapping[str, str | None]) -> None:
        """Record the result of the cleanup of these hosts; that of others stays."""
        for host, why in left.items():
            self.unswept.pop(host, None)
            if why:
                self.unswept[host] = why


def room_for_status(job: Job) -> int:
    """Return the bytes to reserve for the final status: its lines, and the hosts of each attempt."""
    hosts = len(job["hosts"]) + len(job["spares"])
    return (1 << 15) + 64 * hosts * (1 + min(job["max_restarts"], MOST_RESTARTS))


def main() -> int:
    if len(sys.argv) != 2:
        fail(EXIT_USAGE, "usage: job.supervisor JOB")
    job_id = sys.argv[1]
    # Blocked until their handlers are installed: an early Ctrl-C then stops the job instead of this program.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    job = load_job(job_id)
    if os.environ.get(SUPERVISOR_TAG) != job_id or JOB_TAG in os.environ:
        # other processes see only the initial environment of this process, so restart it
        env = {**os.environ, SUPERVISOR_TAG: job_id}
        env.pop(JOB_TAG, None)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)
    if os.getpid() != os.getsid(0):
        os.setsid()
    path = job_folder(job_id) / "output.log"
    try:
        path.open("xb").close()
    except FileExistsError:
        fail(EXIT_STARTED, f"job {job_id} was already started")
    supervisor = Supervisor(job, Log(path, job["log_bytes"]))
    # a function and not SIG_IGN, which the launches would inherit
    signal.signal(signal.SIGHUP, lambda _signum, _frame: None)
    for signum in ENDING:
        signal.signal(signum, supervisor.on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    if job["variables"]:
        try:
            supervisor.variables = receive()
        except ValueError:
            supervisor.refuse(
                "the job's variables did not arrive, because the toolkit command that started the job exited"
            )
            return EXIT_STARTED
    if reason := too_few_descriptors(job, raise_limit()):
        supervisor.refuse(reason)
        return EXIT_STARTED
    try:
        reserve(path.with_name("status.json"), room_for_status(job))
    except OSError as error:
        supervisor.refuse(
            f"{job['main']} cannot reserve disk space for the job's records in {path.parent}: "
            f"{error.strerror}"
        )
        return EXIT_STARTED
    with slot_lock():
        if held := taken_by_another(job, job["hosts"]):
            supervisor.refuse(next(iter(held.values())))
            return EXIT_STARTED
        supervisor.save()
    supervisor.run()
    return 0
