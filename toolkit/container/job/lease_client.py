"""Supervisor's side of the leases: one process of the program job.lease on each host of the job.

Each process reports continuously; `Held` is one of them, `Leases` all of them.
"""

from __future__ import annotations

import json
import math
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from toolkit.container.conventions import HEARTBEAT_S, JOB_TAG, LOST_S, SUPERVISOR_TAG, program, ssh_args
from toolkit.container.job.elastic import hosts_of
from toolkit.container.job.orphans import CONNECT_S, KILL_ROUNDS, end_on, still_alive
from toolkit.container.job.rank_records import Record, blames_another, is_record
from toolkit.container.job.threads import Owned, on_each
from toolkit.container.job.variables import AllVariables, part_of
from toolkit.container.job_file import Job

ENDING_S = 1.0  # from the end of a lease's output to that of its process
MOST_LINE = 1 << 24  # bytes of a line
CLOCKS_S = 1.0  # a smaller difference of two clocks is not corrected


class Held:
    """One host's lease, from the start of its process to its end."""

    def __init__(
        self,
        job: Job,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Job, str], subprocess.Popen[bytes]] | None = None,
    ) -> None:
        self.host = host
        self.process = (start or start_lease)(job, host)
        assert self.process.stdin is not None and self.process.stdout is not None
        assert self.process.stderr is not None
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            os.set_blocking(pipe.fileno(), False)
        self.begun = self.heard = clock()
        self.answered = False
        self.lost = ""  # the reason, once the host is lost
        self.garbled = False  # it sent an invalid line, so that its host counts as lost
        self.closed_at: float | None = None  # time of the end of its output
        # The number of the request that it must answer to prove that it survived a stall of main.
        self.unsure = 0
        self.rest = b""
        self.unsent = b""

    def send(self, request: dict[str, Any]) -> None:
        """Send a request; nothing to a lease that was released."""
        assert self.process.stdin is not None
        if self.process.stdin.closed:
            return
        self.unsent += json.dumps(request).encode() + b"\n"
        with suppress(OSError):  # a full pipe or a dead reader: the next read shows which
            self.unsent = self.unsent[os.write(self.process.stdin.fileno(), self.unsent) :]

    def release(self) -> None:
        """Let the process on the host exit without ending ranks.

        A lost host is not released: it has not followed its last request, and must end its ranks.
        """
        if not self.lost:
            self.send({"n": 0, "do": "release"})
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        if self.lost:
            self.process.kill()

    def end(self, until: float) -> None:
        """Wait until `until` for the exit of the process, then kill it, and close its pipes."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, until - time.monotonic()))
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def silence(self, now: float) -> str:
        """Return the reason why the host counts as lost, empty if it does not."""
        limit = LOST_S if self.answered else CONNECT_S
        if now - self.heard <= limit:
            return ""
        return f"the host did not answer for {limit:.0f} s"

    def end_of_output(self, now: float) -> str:
        """Return the reason why the host is lost after the end of its output, empty while it can exit."""
        self.closed_at = now if self.closed_at is None else self.closed_at
        code = self.process.poll()
        if code is None:
            return "" if now < self.closed_at + ENDING_S else "the lease process has closed its output"
        assert self.process.stderr is not None
        # Do not read to the end: another process can hold the pipe open.
        text = (self.process.stderr.read() or b"").decode(errors="replace").strip().splitlines()
        if code == 0 and not text:
            return "the host received no heartbeat from the main container in time, and stopped its ranks"
        return text[-1].rstrip(".") if text else f"the lease process exited with code {code}"


def start_lease(job: Job, host: str) -> subprocess.Popen[bytes]:
    """Start lease.py on a host; its standard streams are pipes."""
    words = lease_words(job, host)
    env = {**os.environ}
    if host == job["main"]:
        argv = [sys.executable, *words[1:]]
        env[JOB_TAG] = job["id"]
        env.pop(SUPERVISOR_TAG, None)
    else:
        # This ssh has the supervisor's tag and not the job's: the cleanup on main must not end it.
        argv = ssh_args(host, ["exec", "env", f"{JOB_TAG}={job['id']}", *words])
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )


def reply_of(line: bytes) -> dict[str, Any]:
    """Return the reply of a lease in one line.

    Raises:
        ValueError: the line does not follow the protocol.
    """
    reply = json.loads(line)
    if not isinstance(reply, dict) or not isinstance(reply.get("n"), int):
        raise ValueError("not an answer")
    records = reply.get("records", [])
    if not isinstance(records, list):
        raise ValueError("invalid list of records")
    if not isinstance(reply.get("now", 0.0), (int, float)):
        raise ValueError("not a time")
    records = [*records, *([reply["death"]] if "death" in reply else [])]
    if not all(is_record(record) for record in records):
        raise ValueError("invalid rank record")
    return reply


def lease_words(job: Job, host: str) -> list[str]:
    """Return the command of a host's lease; every user of the host can read its owner, slots and GPUs."""
    own = next((each for each in hosts_of(job) if each["name"] == host), None)
    slots = ",".join(map(str, own["taken"])) if own else ""
    gpus = ",".join(own["gpus"]) if own else ""
    about = ["--cluster", job["cluster"], "--owner", job["owner"], "--slots", slots, "--gpus", gpus]
    return ["python3", *program("job.lease"), job["id"], *about, "--attempt", str(job["attempt"])]


TICK_S = 0.1
SETTLE_S = 0.25  # longer than the interval at which a lease checks its ranks
# Wait for the rank that failed first if all failed ranks blame another one.
BLAMED_S = 2.0
# Time in which ranks can still end from a failure after which others were restarted.
TROUBLE_S = 15.0
DEATH_S = 0.5  # longer than the time until a death is reported
# Minimum time for which a stall of main explains failures after it.
STOOD_S = 5.0
# Time limit for the answer to a request.
ASK_S = 15.0


def _of_before(heard: float, record: Record, since: float) -> bool:
    """Return whether a death belongs to the failure after which ranks were restarted at `since`."""
    began = heard - record["lasted"]
    return heard <= since or (began < since - DEATH_S and heard < since + TROUBLE_S)


def _may_follow(told: Sequence[tuple[float, Record]], now: float) -> bool:
    """Return whether the report of the rank that failed first can still be missing."""
    wait = BLAMED_S if all(blames_another(record) for _, record in told) else SETTLE_S
    return now <= told[0][0] + wait


class Leases:
    """All leases of a job, served by a thread of their own so that no heartbeat is delayed.

    Args:
        variables: variables of the job, None if it has none; each host gets its part before any request.
        clock: monotonic, in seconds.
        hold: function that starts the lease of a host.
    """

    def __init__(
        self,
        job: Job,
        variables: AllVariables | None = None,
        clock: Callable[[], float] = time.monotonic,
        hold: Callable[[Job, str, Callable[[], float]], Held] = Held,
    ) -> None:
        self._job, self._clock = job, clock
        names = list(dict.fromkeys([job["main"], *(host["name"] for host in hosts_of(job))]))
        self._held = {name: hold(job, name, clock) for name in names}
        if variables is not None:
            for name, held in self._held.items():
                held.send({"n": 0, "do": "variables", "variables": part_of(variables, name)})
        self._lock = threading.Lock()
        self._replies: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._asked: dict[int, str] = {}
        self._deaths: list[tuple[float, Record]] = []
        self._number = 0
        self._closing = False
        self._beaten = self._clock()  # time of the last heartbeat round
        self._stood = (0.0, -math.inf)  # duration and end of the last stall of this process
        self._left: list[Held] = []  # dropped leases that might still run
        self._wake = os.pipe()
        self._thread = Owned(self._serve, self._wake_all)
        self._thread.start()

    def check(self) -> None:
        """Raise the exception that ended the thread of the leases, if any."""
        self._thread.check()

    def lost(self, among: Iterable[str] = ()) -> tuple[str, str] | None:
        """Return the first lost host, of all or of these, and the reason."""
        wanted = set(among) or self._held.keys()
        for host, held in self._held.items():
            if held.lost and host in wanted:
                return host, held.lost
        return None

    def is_lost(self, host: str) -> bool:
        return host in self._held and bool(self._held[host].lost)

    def stood_still(self) -> float:
        """Return the seconds of a recent stall of this process; 0 if there was none.

        A host that has not answered since then might have ended its ranks, even if that shows later.
        """
        now = self._clock()
        seconds, until = max(self._stood, (now - self._beaten, now))
        explains = now < until + STOOD_S or any(held.unsure for held in list(self._held.values()))
        return seconds if seconds > 2 * HEARTBEAT_S and explains else 0.0

    def all_answered(self, hosts: Iterable[str] = ()) -> bool:
        """Return whether every host, or every one of these, has answered or is lost."""
        held = [self._held[host] for host in hosts] or list(self._held.values())
        return all(one.answered or one.lost for one in held)

    def there(self) -> list[str]:
        """Return the hosts that answer."""
        return [host for host, held in self._held.items() if held.answered and not held.lost]

    def keep(self, hosts: Iterable[str]) -> None:
        """Drop the leases of all hosts except these."""
        wanted = set(hosts)
        with self._lock:  # the thread of the leases sends under this lock
            others = [held for host, held in self._held.items() if host not in wanted]
            self._held = {host: held for host, held in self._held.items() if host in wanted}
            self._left += others
            for held in others:
                held.release()

    def leave(self, host: str) -> None:
        """Drop the lease of this host."""
        self.keep([name for name in self._held if name != host])

    def lose(self, host: str) -> None:
        """Count a host as lost because it did not answer a request."""
        if not self.is_lost(host):
            self._lose(self._held[host], f"the host did not answer for {ASK_S:.0f} s")

    def tell(self, host: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return a host's answer; empty without an answer in time."""
        return self._ask(host, request, ASK_S) or {}

    def deaths(self, since: float = -math.inf) -> list[Record]:
        """Return the failed ranks, in the order of their reports.

        Empty until all ranks that failed together have had time to be reported.

        Args:
            since: time of the last restart of ranks; earlier deaths belong to the same failure.
        """
        reported = [(heard, record) for heard, record in self._deaths if not _of_before(heard, record, since)]
        return (
            [record for _, record in reported]
            if reported and not _may_follow(reported, self._clock())
            else []
        )

    def end(self, grace: float, ranks: bool = False, keep: bool = False) -> dict[str, str | None]:
        """End the job's processes on all hosts in parallel; host -> None, or why its state is unknown.

        Args:
            ranks, keep: see `end` in orphans.py.
        """
        return on_each(self._held, lambda host: self._end_on(host, grace, ranks, keep))

    def _end_on(self, host: str, grace: float, ranks: bool, keep: bool) -> str | None:
        request = {"do": "end", "grace": grace, "ranks": ranks, "keep": keep}
        reply = self._ask(host, request, ASK_S + grace + KILL_ROUNDS * 0.1)
        if reply is not None and "left" in reply:
            return still_alive(reply["left"])
        held = self._held[host]
        if held.lost and not held.garbled and host != self._job["main"]:
            # The host ends its ranks automatically, but that is unknown until it is back.
            return held.lost
        return end_on(self._job, host, grace, ranks, keep)

    def interrupt(self, hosts: Iterable[str]) -> None:
        """Kill the ranks on these hosts: they wait for lost ranks, and their launcher does not know it."""
        with self._lock:
            for host in hosts:
                self._held[host].send({"n": 0, "do": "interrupt"})

    def records(self) -> list[dict[str, Any]]:
        """Return the exit records of ranks from all hosts that answer, by the clock of this host."""
        found = on_each(self._held, lambda host: self.tell(host, {"do": "records"}).get("records", []))
        return self.by_own_clock([record for records in found.values() for record in records])

    def by_own_clock(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with times by the clock of this host.

        The clocks of hosts can differ by more than a failure takes to spread.
        """
        behind = on_each({record["host"] for record in records} & self._held.keys(), self._clock_behind)
        return [{**each, "ended": each["ended"] + behind.get(each["host"], 0.0)} for each in records]

    def _clock_behind(self, host: str) -> float:
        """Return the seconds by which the clock of a host is behind; 0 if the delay can explain them."""
        began = time.time()
        reply = self.tell(host, {"do": "clock"})
        half = (time.time() - began) / 2
        middle = began + half
        behind: float = middle - reply.get("now", middle)
        return behind if abs(behind) > half + CLOCKS_S else 0.0

    def close(self) -> None:
        """Release the leases after everything has ended. A second call does nothing."""
        if self._closing:
            return
        self._closing = True
        os.write(self._wake[1], b"x")
        self._thread.join()
        for end in self._wake:
            os.close(end)
        for held in self._held.values():
            held.release()
        until = time.monotonic() + 2.0
        for held in (*self._held.values(), *self._left):
            held.end(until)

    def _ask(self, host: str, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        held = self._held[host]
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            if held.lost or self._thread.error is not None:
                return None
            self._number += 1
            self._replies[self._number], self._asked[self._number] = answer, host
            held.send({"n": self._number, **request})
            number = self._number
        try:
            return answer.get(timeout=seconds) or None
        except queue.Empty:
            return None
        finally:
            with self._lock:
                self._replies.pop(number, None)
                self._asked.pop(number, None)

    def _wake_all(self) -> None:
        """Wake the threads that wait for an answer, because none will come."""
        with self._lock:
            for answer in self._replies.values():
                answer.put({})

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake[0], selectors.EVENT_READ)
            for held in self._held.values():
                assert held.process.stdout is not None
                selector.register(held.process.stdout, selectors.EVENT_READ, held)
            self._go_round(selector)

    def _go_round(self, selector: selectors.BaseSelector) -> None:
        beat = 0.0
        while not self._closing:
            for key, _ in selector.select(TICK_S):
                if key.data is not None:
                    self._read(selector, key.data)
            now = self._clock()
            with self._lock:
                held_now = list(self._held.values())
            if now > self._beaten + 2 * HEARTBEAT_S:
                # This process stalled: do not count that time as silence of the hosts.
                self._stood = (now - self._beaten, now)
                for held in held_now:
                    held.heard += now - self._beaten
                self._ask_who_is_left(held_now)
            self._beaten = now
            if now >= beat + HEARTBEAT_S:
                beat = now
                with self._lock:
                    for held in self._held.values():
                        if not held.lost:
                            held.send({"n": 0, "do": "beat"})
            for held in held_now:
                if held.lost:
                    continue
                if held.closed_at is not None:
                    self._lose(held, held.end_of_output(now))
                elif held.silence(now):
                    # Read first: data that arrived during a stall of this process is not silence.
                    self._read(selector, held)
                    self._lose(held, held.silence(now))

    def _ask_who_is_left(self, hosts: Iterable[Held]) -> None:
        """Send the hosts a request that a lease answers only if it survived the stall of this process."""
        with self._lock:
            self._number += 1
            for held in hosts:
                if not held.lost:
                    held.unsure = self._number
                    held.send({"n": self._number, "do": "beat"})

    def _read(self, selector: selectors.BaseSelector, held: Held) -> None:
        assert held.process.stdout is not None
        try:
            data = os.read(held.process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        now = self._clock()
        if not data:
            with suppress(KeyError):
                selector.unregister(held.process.stdout)
            if not held.lost:
                self._lose(held, held.end_of_output(now))
            return
        if held.garbled:
            return
        held.heard, held.answered = now, True
        *lines, held.rest = (held.rest + data).split(b"\n")
        if len(held.rest) > MOST_LINE:
            lines.append(held.rest)
        for line in lines:
            try:
                reply = reply_of(line)
            except (ValueError, RecursionError):
                # Its other messages cannot be trusted either. The other hosts continue.
                held.garbled = True
                self._lose(held, f"the lease process sent an invalid line: {line[:80]!r}")
                return
            if reply["n"] == held.unsure:
                held.unsure = 0
            if "failed" in reply:
                self._lose(held, str(reply["failed"]))
            if "death" in reply:
                self._deaths.append((self._clock(), reply["death"]))
            with self._lock:
                waiting = self._replies.get(reply["n"])
            if waiting is not None:
                waiting.put(reply)

    def _lose(self, held: Held, why: str) -> None:
        if not why:
            return
        with self._lock:
            held.lost = why
            for number, host in self._asked.items():
                if host == held.host:
                    self._replies[number].put({})
