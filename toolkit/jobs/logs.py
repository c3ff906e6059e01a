"""Output of a job: the output so far, or all output until the job's end.

With `transport: exec` each host has a part of the job, and hosts do not report to each other. The client that
follows the job stops the other parts if one fails or its host is gone, because their ranks would wait for it.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from toolkit.cluster.session import Session
from toolkit.core.answers import Tail, read_answer
from toolkit.core.causes import words_of
from toolkit.core.command import TIMED_OUT, Result, command
from toolkit.core.runner import ContainerRunner, Runner
from toolkit.errors import NotReady, ToolkitError, Unreachable
from toolkit.jobs.exec_mode import Parts, end_parts
from toolkit.jobs.records import job_parts, job_status
from toolkit.jobs.status import FAULTS, JobStatus, parse_status, shifted
from toolkit.plan.context import reason as reason_of
from toolkit.protocol.decode import MOST_BYTES
from toolkit.protocol.host_list import host_list
from toolkit.protocol.jobs import Cause, Ended, Status
from toolkit.protocol.names import JOBS, program
from toolkit.protocol.outcomes import EXIT_LOST
from toolkit.remote.fanout import fan_out

# Seconds before each new attempt to reach a host that stopped answering; a jump host can be restarting.
_PAUSES = (0.0, 5.0, 10.0)
_ON_THE_WAY_S = 1.0  # longer than the delay of output from a host
# Seconds after which main has detected a lost host, and between two checks whether a rank has moved.
_DETECTED_S, _POLL_S = 60.0, 1.0
MOST_LINE = 1 << 20  # bytes

# Prints the seconds since the last start of a rank, from its file `rank-N.run`.
_SINCE_START = "import json, sys, time; print(time.time() - json.load(open(sys.argv[1]))['starts'][-1])"
_QUERY_S = 30.0

Sink = Callable[[bytes], None]
# A host, and the status of its part or the error of the query.
Told = queue.SimpleQueue[tuple[str, Status | Exception]]


@dataclass(frozen=True)
class Excerpt:
    """A selection of a job's output; the complete merged log by default.

    Args:
        rank: this rank's own log, whole, in place of the merged one.
        host: only the output of the ranks on this host.
        ago: only lines of the last seconds, this many.
        since: only what came after this moment, seconds since the epoch.
        tail: only this number of lines at the end.
        fold: show a line that several ranks print once.
    """

    rank: int | None = None
    host: str = ""
    ago: float | None = None
    since: float | None = None
    tail: int | None = None
    fold: bool = False

    def words(self) -> list[str]:
        """Return it as options of toolkit/container/logs/follow.py."""
        named = {"rank": self.rank, "host": self.host or None, "ago": self.ago, "since": self.since}
        words = [
            w for n, v in {**named, "tail": self.tail}.items() if v is not None for w in (f"--{n}", str(v))
        ]
        return [*words, *(["--fold"] if self.fold else [])]


ALL = Excerpt()


def show_log(session: Session, job: JobStatus, sink: Sink, what: Excerpt, on: bool) -> None:
    """Copy the output of a job so far to ``sink``; with ``on``, continue until its end.

    Raises:
        NotReady: the job has no such rank or host.
    """
    used = [*dict(job.hosts), *job.former_hosts]
    if what.host and what.host not in used:
        known = host_list(used)
        raise NotReady(
            f"job {job.id} has had no ranks on {what.host}; hosts that had ranks: {known}", "toolkit jobs"
        )
    more = () if on else ("--now",)
    if what.rank is None and session.inventory.in_parts:
        show_parts(session, job.id, sink, what, more)
        return
    if on and what.rank is not None:
        _follow_rank(session, job, what.rank, sink, what)
        return
    host = session.inventory.main
    if what.rank is not None:
        host = _host_of(session, job, what.rank) or job.host_of(what.rank)
    copy(session.container(host), job.id, sink, what, *more)


def _host_of(session: Session, job: JobStatus, rank: int) -> str:
    """Return the host on which a rank runs; in an elastic job, the host that has started the rank last.

    Empty if no host of an elastic job that answers has started the rank.

    Raises:
        NotReady: the job has no such rank.
    """
    planned = job.host_of(rank)
    if not job.elastic:
        return planned
    ask = command("python3", "-c", _SINCE_START, str(JOBS / job.id / "logs" / f"rank-{rank}.run"))

    def since_start(host: str) -> float:
        result = session.container(host).run(ask, _QUERY_S)
        if not result.ok:  # the host has not started the rank
            return math.inf
        return read_answer(float, result.stdout, host, f"the start of rank {rank}")

    # By the clock of each host, because the clocks differ.
    ages = fan_out(dict(job.hosts), since_start)[0]
    found = min(ages, key=lambda host: ages[host], default="")
    return found if math.isfinite(ages.get(found, math.inf)) else ""


def _follow_rank(session: Session, job: JobStatus, rank: int, sink: Sink, what: Excerpt) -> None:
    """Copy a rank's log until the rank has ended, also from the hosts to which restarts move the rank."""
    host, left = _host_of(session, job, rank) or job.host_of(rank), dict[str, float]()
    while True:
        error: ToolkitError | None = None
        try:
            copy(session.container(host), job.id, sink, what)
        except ToolkitError as failed:
            error = failed
        left[host] = time.monotonic()
        moved = _host_after_restart(session, job.id, rank, host, isinstance(error, Unreachable))
        if not moved:
            if error:
                raise error
            return
        # A host to which the rank returns has the output of the earlier attempt too.
        ago = time.monotonic() - left[moved] if moved in left else None
        host, what = moved, replace(what, tail=None, since=None, ago=ago)
        sink(f"[toolkit] rank {rank} has moved to {host} in a restart\n".encode())


def _host_after_restart(session: Session, job: str, rank: int, host: str, lost: bool) -> str:
    """Return the other host on which a rank runs now, empty if there is none.

    Args:
        lost: the connection to its previous host broke; main detects that later than this machine.
    """
    until = time.monotonic() + (_DETECTED_S if lost else 0.0)
    while True:
        try:
            status = job_status(session, job)
        except ToolkitError:
            return ""
        with suppress(NotReady):  # after a restart on fewer hosts, the rank does not exist
            if (now := _host_of(session, status, rank)) and now != host:
                return now
        if status.final or (status.state != "restarting" and time.monotonic() > until):
            return ""
        time.sleep(_POLL_S)


def follow(session: Session, job: str, sink: Sink, what: Excerpt = ALL) -> JobStatus:
    """Copy a job's output to ``sink`` until the job has ended; return how it went, without its record.

    Raises:
        ToolkitError: no host is left that could report its end.
    """
    if session.inventory.in_parts:
        session.container_sessions.leave()
        ended = follow_parts(session, job, sink, what)
        assert ended is not None  # without a time limit, the output is complete
        return ended
    if container_session := session.container_sessions.take(session.inventory.main):
        result = container_session.follow((job, *what.words(), "--status"), sink)
        final = raise_if_failed(result, job, session.inventory.main).strip()
    else:
        final = copy(session.main, job, sink, what, "--status").strip()
    if not final:
        raise ToolkitError(f"the log reader exited before job {job} ended", f"toolkit attach {job}")
    return parse_status(
        job, read_answer(Ended, final, session.inventory.main, f"the final state of job {job}").status
    )


def wait_for_end(session: Session, job: str, seconds: float | None = None) -> bool:
    """Return True if the job ends within this number of seconds, otherwise False."""
    if session.inventory.in_parts:
        return follow_parts(session, job, None, ALL, seconds) is not None
    ask = (*program("logs.follow"), job, "--silent")
    # The program on the host ends at the limit or with this program, whichever is first.
    result = session.run_inside(session.inventory.main, ask, seconds)
    if not result.ok and result.status != TIMED_OUT:
        raise ToolkitError(f"cannot wait for the end of job {job}: {reason_of(result)}", "toolkit jobs")
    return result.ok


def copy(runner: Runner, job: str, sink: Sink, what: Excerpt, *more: str) -> str:
    """Run follow.py in a container; return its standard error.

    Raises:
        ToolkitError: it failed, or was ended.
    """
    ask = command(*program("logs.follow"), job, *what.words(), *more)
    return raise_if_failed(runner.stream(ask, sink), job, runner.name)


def raise_if_failed(result: Result, job: str, host: str) -> str:
    """Return the standard error of follow.py; raise the errors of ``copy``."""
    if result.ok:
        return result.stderr
    if words := words_of(result.stderr):
        raise ToolkitError(f"cannot show the log of job {job}: {words}", "toolkit jobs", host)
    # The engine kills all processes of a container that it removes, so that no message is written.
    what = (
        f"cannot show the rest of the log of job {job}: the log reader was killed, "
        "probably with its container"
    )
    raise ToolkitError(what, "toolkit status; toolkit jobs", host)


def follow_parts(
    session: Session, job: str, sink: Sink | None, what: Excerpt, seconds: float | None = None
) -> JobStatus | None:
    """Copy the output of all parts until all have ended; return how the job went.

    Args:
        sink: None for nothing at all.
        seconds: after which it is given up; None for never.

    Returns:
        None if it did not end within this number of seconds.

    Raises:
        NotReady: the records of its hosts contradict each other, so that a failure of one must end no other.
        Unreachable: no host answers any more.
    """
    parts, reports = _parts(session, job), Told()
    if parts.disputed:
        raise NotReady(f"cannot follow {job}: {parts.disputed}", f"toolkit logs {job}")
    lock, left = threading.Lock(), set(parts.statuses)
    if parts.silent and sink is not None:
        # Do not end the other parts: possibly only this machine cannot reach the hosts.
        names = host_list(parts.silent)
        sink(f"[toolkit] the output of hosts that did not answer is missing: {names}\n".encode())
    until = None if seconds is None else time.monotonic() + seconds
    for host in parts.statuses:
        lines = None if sink is None else _Lines(sink, lock)
        _Part(session, host, job, lines, what, reports, until).start()
    ending = False
    while left:
        try:
            host, end = reports.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None
        if until is not None and isinstance(end, ToolkitError) and time.monotonic() >= until:
            return None  # the time limit closed the connection, so the host is not the cause
        left.discard(host)
        if isinstance(end, ToolkitError) and not _is_its_own(session, parts, host):
            raise end  # this machine is offline: the job possibly runs normally
        parts.statuses[host] = end if isinstance(end, Status) else _without(host, end)
        if left and not ending and parts.statuses[host].state in FAULTS:
            ending = True
            reason = parts.statuses[host].reason
            why = () if isinstance(end, Status) else ("--why", reason, "--lost", host)
            _, errors = end_parts(session, job, tuple(left), ("--failed", *why), 60)
            for error in errors.values():
                if sink is not None:
                    sink(f"[toolkit] {error}\n".encode())
    return parts.status


def _is_its_own(session: Session, parts: Parts, host: str) -> bool:
    """Return True if only this host is gone: another host of the job still answers."""
    if session.closed:
        return False
    others = [name for name in parts.statuses if name != host]
    answers, _ = fan_out(others, lambda name: session.runners[name].run(command("true"), 10).ok)
    return any(answers.values())


def show_parts(session: Session, job: str, sink: Sink, what: Excerpt, more: Sequence[str]) -> None:
    """Copy the output of all parts so far, host by host; without ``--now``, continue to the end of all.

    Raises:
        ToolkitError: some host did not show its own; the others have.
    """
    parts = _parts(session, job)
    lock, at_once = threading.Lock(), "--now" not in more

    def show(host: str) -> None:
        lines = _Lines(sink, lock)
        try:
            copy(session.container(host), job, lines, what, *more)
        finally:
            lines.close()

    errors: dict[str, ToolkitError] = {}
    if at_once:
        errors = fan_out(parts.statuses, show)[1]
    else:
        for host in parts.statuses:
            try:
                show(host)
            except ToolkitError as error:
                errors[host] = error
    if parts.silent:
        names = host_list(parts.silent)
        raise ToolkitError(
            f"the output of job {job} is incomplete, because these hosts did not answer: {names}",
            "toolkit check",
        )
    if errors:
        raise next(iter(errors.values()))


def _parts(session: Session, job: str) -> Parts:
    found = next((parts for parts in job_parts(session) if parts.id == job), None)
    if found is None:
        raise NotReady(f"there is no job {job}", "toolkit jobs")
    return found


def _without(host: str, error: Exception) -> Status:
    """The status of a part whose host does not answer any more.

    Raises:
        Exception: what is no fault of that host.
    """
    if not isinstance(error, ToolkitError):
        raise error
    reason = f"{host} is lost: {error.what}"
    now = time.time()
    return Status(
        state="failed",
        exit_code=EXIT_LOST,
        started=now,
        ended=now,
        reason=reason,
        unswept=(host,),
        # Before its consequences, whatever the ranks' own records contain.
        cause=Cause(ended=0.0),
        lost_host=host,
    )


class _Lines:
    """Passes on whole lines of one host, so that those of several stay apart."""

    def __init__(self, sink: Sink, lock: threading.Lock) -> None:
        self._sink, self._lock, self._rest = sink, lock, b""

    def __call__(self, data: bytes) -> None:
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if newline:
            self._put(whole + newline)
        if len(self._rest) > MOST_LINE:  # passed on without its end: nothing is kept of an endless line
            self._put(self._rest)
            self._rest = b""

    def close(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._put(rest + b"\n")

    def _put(self, data: bytes) -> None:
        with self._lock:
            self._sink(data)


class _Part(threading.Thread):
    """Follows one host's part of a job; puts its status, or what went wrong, on a queue."""

    def __init__(
        self,
        session: Session,
        host: str,
        job: str,
        sink: _Lines | None,
        what: Excerpt,
        reports: Told,
        until: float | None,
    ) -> None:
        super().__init__(name=f"part on {host}", daemon=True)
        self._until = until
        self._session, self.host, self._job = session, host, job
        self._sink, self._what, self._told = sink, what, reports
        self._heard: float | None = None  # time of the last output

    def run(self) -> None:
        try:
            self._told.put((self.host, self._follow_on()))
        except Exception as error:  # the waiting thread raises it again
            self._told.put((self.host, error))

    def _follow_on(self) -> Status:
        """Follow to the end; if the connection breaks, use a new one, because the job possibly continues."""
        runner = self._session.container(self.host)
        error: ToolkitError | None = None
        for pause in (0.0, *_PAUSES):
            time.sleep(pause)
            if self._session.closed or self._left() == 0:
                break
            try:
                if error is not None:
                    runner = self._anew()
                    self._repeat_the_last()
                return self._follow(runner)
            except ToolkitError as again:
                error = error or again
        raise error or Unreachable(
            "the connection to the host was closed", f"toolkit attach {self._job}", self.host
        )

    def _repeat_the_last(self) -> None:
        """Continue where the connection broke, a moment earlier: lines on the way were lost with it."""
        if self._sink is not None and self._heard is not None:
            ago = time.monotonic() - self._heard + _ON_THE_WAY_S
            self._what = replace(self._what, tail=None, since=None, ago=ago)
            self._sink.close()
            note = f"[toolkit] the connection to {self.host} is restored; the last lines can appear twice\n"
            self._sink(note.encode())

    def _put(self, data: bytes) -> None:
        assert self._sink is not None
        self._heard = time.monotonic()
        self._sink(data)

    def _follow(self, runner: ContainerRunner) -> Status:
        if self._sink is None:
            final = self._wait(runner).strip()
        else:
            final = copy(runner, self._job, self._put, self._what, "--status").strip()
            self._sink.close()
        if not final:
            what = f"the log reader exited before job {self._job} ended"
            raise ToolkitError(what, f"toolkit attach {self._job}", self.host)
        ended = read_answer(Ended, final, self.host, f"the final state of job {self._job}")
        return shifted(ended.status, time.time() - ended.now)

    def _wait(self, runner: ContainerRunner) -> str:
        """Wait for the end; what waits there ends with the limit or with this program."""
        ask = command(*program("logs.follow"), self._job, *self._what.words(), "--silent", "--status")
        errors = Tail(MOST_BYTES)
        outer = self._session.runners[self.host]
        result = runner.follow(outer, ask, lambda data: None, errors.take, self._left())
        return raise_if_failed(replace(result, stderr=errors.text + result.stderr), self._job, self.host)

    def _left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def _anew(self) -> ContainerRunner:
        """The same container over a new connection; what else the command does there goes over it as well."""
        self._session.reconnect(self.host)
        return self._session.container(self.host)
