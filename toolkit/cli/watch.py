"""Follows a job in the foreground: prints its output, and handles Ctrl-C, signals and lost connections."""

from __future__ import annotations

import errno
import signal
import sys
import threading
import time
from collections.abc import Callable

from toolkit.cli.common import EXIT_CLOSED_PIPE, ask, discard_stdout, say
from toolkit.cli.signals import Signals
from toolkit.cluster.session import Session
from toolkit.diagnose.known_errors import end_text
from toolkit.errors import Detached, Unreachable
from toolkit.jobs.control import kill, stop
from toolkit.jobs.logs import Excerpt, follow
from toolkit.jobs.records import job_status
from toolkit.jobs.status import JobStatus
from toolkit.protocol.host_list import host_list

# Actions of the first Ctrl-C. Without a terminal, `ask` means `stop`.
ON_INTERRUPT = ("ask", "stop", "detach")
# After this time without output of a new job, a line on a terminal reports that the job is starting.
_QUIET_S = 10.0


class _Follower(threading.Thread):
    """Copies the job's output in the background, so that the user can answer a question meanwhile."""

    def __init__(self, session: Session, job: str, sink: Callable[[bytes], None], what: Excerpt) -> None:
        super().__init__(daemon=True)
        self._session, self._job, self._sink, self._what = session, job, sink, what
        self.held = threading.Lock()  # no output is printed while the question holds this lock
        # Replaces join(): after Ctrl-C, join() treats the thread as ended (Python 3.11).
        self.done = threading.Event()
        self.has_output = False
        self.error: Exception | None = None
        self.ended: JobStatus | None = None

    def run(self) -> None:
        def put(data: bytes) -> None:
            with self.held:
                self.has_output = True
                self._sink(data)

        try:
            self.ended = follow(self._session, self._job, put, self._what)
        except Exception as error:  # `watch` raises it again
            self.error = error
        finally:
            self.done.set()


def watch(
    session: Session,
    job: str,
    signals: Signals,
    what: Excerpt,
    on_interrupt: str = "ask",
    sink: Callable[[bytes], None] | None = None,
    pressed: bool = False,
    starting: str = "",
) -> JobStatus:
    """Follow a job to its end and print its result.

    Args:
        what: the part of the output to print, and its form.
        sink: receives the output; None discards it.
        starting: text to print once on a terminal if no output arrives; empty prints nothing.
        pressed: True if Ctrl-C or a signal arrived before the call.

    Raises:
        Detached: the user, a signal or a closed output detached from the job; the job continues.
        Unreachable: the connection to the job was lost; the job continues.
    """
    follower = _Follower(session, job, sink or (lambda data: None), what)
    follower.start()
    quiet = bool(sink and starting) and sys.stderr.isatty()
    began = time.monotonic()
    while not follower.done.is_set():
        try:
            if pressed:
                pressed = False
                raise KeyboardInterrupt
            follower.done.wait(0.2)
            if quiet and (follower.has_output or time.monotonic() - began > _QUIET_S):
                quiet = False
                _report_quiet(follower, job, starting)
        except KeyboardInterrupt:
            _interrupted(session, job, follower, signals, on_interrupt)
    _raise(follower.error, job, signals)
    return _tell(follower.ended or job_status(session, job))


def _report_quiet(follower: _Follower, job: str, starting: str) -> None:
    with follower.held:
        if not follower.has_output and not follower.done.is_set():
            say(f"no output yet; {starting} (to see the reason, run in another terminal: toolkit why {job})")


def _interrupted(
    session: Session, job: str, follower: _Follower, signals: Signals, on_interrupt: str
) -> None:
    if signals.got:
        raise Detached(job, "detached by a signal", 128 + signals.got)
    answer = _ask(job, follower, signals) if on_interrupt == "ask" else on_interrupt
    if answer == "detach":
        raise Detached(job, "detached")
    if answer == "stop":
        _stop(session, job, signals)
        follower.done.wait(10)


def _ask(job: str, follower: _Follower, signals: Signals) -> str:
    """Ask for the meaning of Ctrl-C: stop, detach, or continue. A second Ctrl-C means stop."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "stop"
    with follower.held:
        # The question is inside `try`: the user can press Ctrl-C before write() returns.
        try:
            ask(f"\n{job} is running.  s: stop the job   d: detach (the job continues)   Enter: continue  ")
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            if signals.got:
                raise Detached(job, "detached by a signal", 128 + signals.got) from None
            return "stop"
        except UnicodeDecodeError:
            line = "\n"  # like any other answer that is not a choice
    word = line.strip().lower()
    if not line or word in ("d", "detach"):
        return "detach"
    return "stop" if word in ("s", "stop") else ""


def _stop(session: Session, job: str, signals: Signals) -> None:
    try:
        # The message is inside `try`: the next Ctrl-C can arrive before it is written completely.
        say(f"\nstopping {job} on all hosts (press Ctrl-C again to kill all ranks immediately)")
        stop(session, job, interrupt=True)
    except KeyboardInterrupt:
        if signals.got:
            raise Detached(
                job, "detached by a signal while the job was being stopped", 128 + signals.got
            ) from None
        say(f"\nkilling {job} on all hosts")
        kill(session, job)
        stop(session, job, interrupt=True, grace=0)


def _raise(error: Exception | None, job: str, signals: Signals) -> None:
    if isinstance(error, Unreachable):
        fix = f"toolkit attach {job}  # when the main host answers again"
        raise Unreachable(f"stopped following {job}: {error.what}", fix, error.host) from error
    if isinstance(error, BrokenPipeError):
        discard_stdout()
        raise Detached(job, "the program that read the output closed the pipe", EXIT_CLOSED_PIPE) from error
    if isinstance(error, OSError) and error.errno == errno.EIO:
        signals.silence()  # the terminal is closed, and SIGHUP has not arrived yet
        raise Detached(job, "the terminal was closed", 128 + signal.SIGHUP) from error
    if isinstance(error, OSError):
        discard_stdout()
        raise Detached(job, f"cannot print the output: {error.strerror}", 1) from error
    if error is not None:
        raise error


def _tell(ended: JobStatus) -> JobStatus:
    if ended.unswept:
        # gpu9 before gpu10, so that numbered hosts are one series.
        hosts = host_list(sorted(ended.unswept, key=lambda name: (len(name), name)))
        say(f"  toolkit could not check {hosts} for leftover processes; to stop them: toolkit gc")
    say(end_text(ended))
    return ended
