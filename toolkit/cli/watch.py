"""A job in the foreground: its output, and what Ctrl-C, a signal and a lost connection mean to it."""

from __future__ import annotations

import errno
import signal
import sys
import threading
from collections.abc import Callable

from toolkit.cli.common import ask, say
from toolkit.cli.signals import Signals
from toolkit.cluster.session import Session
from toolkit.diagnose.end import end_text
from toolkit.errors import Detached, Unreachable
from toolkit.jobs.control import kill, stop
from toolkit.jobs.logs import Excerpt, follow
from toolkit.jobs.records import job_status
from toolkit.jobs.status import JobStatus

# What the first Ctrl-C does. Without a terminal nobody can be asked, and it stops the job.
ON_INTERRUPT = ("ask", "stop", "detach")
_SIGPIPE = 128 + 13


class _Follower(threading.Thread):
    """Copies the job's output in the background, so that the person can be asked meanwhile."""

    def __init__(self, session: Session, job: str, sink: Callable[[bytes], None], what: Excerpt) -> None:
        super().__init__(daemon=True)
        self._session, self._job, self._sink, self._what = session, job, sink, what
        self.held = threading.Lock()  # while somebody has it nothing is printed
        # To wait for, because a join() that Ctrl-C interrupts takes the thread for ended (Python 3.11).
        self.done = threading.Event()
        self.error: Exception | None = None
        self.ended: JobStatus | None = None

    def run(self) -> None:
        def put(data: bytes) -> None:
            with self.held:
                self._sink(data)

        try:
            self.ended = follow(self._session, self._job, put, self._what)
        except Exception as error:  # raised again by who waits for us
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
) -> JobStatus:
    """Follow a job to its end and say how it went.

    Args:
        what: how much of its output to show, and how.
        sink: takes the output; None to show none.
        pressed: Ctrl-C, or a signal, has come already.

    Raises:
        Detached: the person, a signal or a broken connection took us away from the job; it goes on.
    """
    follower = _Follower(session, job, sink or (lambda data: None), what)
    follower.start()
    while not follower.done.is_set():
        try:
            if pressed:
                pressed = False
                raise KeyboardInterrupt
            follower.done.wait(0.2)
        except KeyboardInterrupt:
            _interrupted(session, job, follower, signals, on_interrupt)
    _raise(follower.error, job, signals)
    return _tell(follower.ended or job_status(session, job))


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
    """Ask what Ctrl-C was meant to do: stop, detach, or nothing. A second one is an answer too."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "stop"
    with follower.held:
        # The question itself is within: who has read it may press the key before write() has come back.
        try:
            ask(f"\n{job} is running.  s: stop it   d: detach, it goes on   Enter: go on watching  ")
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            if signals.got:
                raise Detached(job, "detached by a signal", 128 + signals.got) from None
            return "stop"
    word = line.strip().lower()
    if not line or word in ("d", "detach"):
        return "detach"
    return "stop" if word in ("s", "stop") else ""


def _stop(session: Session, job: str, signals: Signals) -> None:
    try:
        # The offer itself is within: the next Ctrl-C may come before it has been written in full.
        say(f"\nstopping {job} on all hosts (Ctrl-C again: kill it at once)")
        stop(session, job, interrupt=True)
    except KeyboardInterrupt:
        if signals.got:
            raise Detached(
                job, "detached by a signal while it was being stopped", 128 + signals.got
            ) from None
        say(f"\nkilling {job} on all hosts")
        kill(session, job)
        stop(session, job, interrupt=True, grace=0)


def _raise(error: Exception | None, job: str, signals: Signals) -> None:
    if isinstance(error, Unreachable):
        fix = f"it goes on without us; when main answers again: toolkit attach {job}"
        raise Unreachable(f"lost sight of {job}: {error.what}", fix, error.host) from error
    if isinstance(error, BrokenPipeError):
        raise Detached(job, "nobody reads the output any more", _SIGPIPE) from error
    if isinstance(error, OSError) and error.errno == errno.EIO:
        signals.silence()  # the terminal went, and its signal is still on the way
        raise Detached(job, "the terminal is gone", 128 + signal.SIGHUP) from error
    if error is not None:
        raise error


def _tell(ended: JobStatus) -> JobStatus:
    if ended.unswept:
        say(f"  could not look for leftovers on {', '.join(ended.unswept)}; toolkit down does")
    say(end_text(ended))
    return ended
