"""One process inside a container for all that a command asks of it; see ``toolkit/container/session.py``.

To start a process in a container takes an engine a tenth of a second. A run asks four things of main, so
they go to one process, which is started while the probe of the host still runs.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from toolkit.core.answers import LineStream, answer_of
from toolkit.core.command import Result, command
from toolkit.core.runner import ContainerRunner, Runner, Sink
from toolkit.errors import ToolkitError
from toolkit.protocol.decode import DecodeError, TooLarge, decode, load_json
from toolkit.protocol.jobs import ENDED, MOST_BYTES, SessionAnswer
from toolkit.protocol.names import program

# Without site-packages and the image's Python variables: it starts faster, and no settings change it.
_PROGRAM = command(*program("session", "-S", "-E"))

# Answers that wait to be received, and the bytes of them: each message to the process has one answer.
_MOST_WAITING, _MOST_WAITING_BYTES = 64, MOST_BYTES
# Seconds without any byte to or from the process after which a host counts as hung while it owes an answer.
ANSWER_S = 60.0


class ContainerSession:
    """A session with the process: lines of JSON in both directions, and bytes announced by a line."""

    def __init__(self, runner: ContainerRunner, clock: Callable[[], float] = time.monotonic) -> None:
        self.runner = runner
        self.sent = 0  # bytes
        self._clock, self._moved = clock, clock()
        self._late: ToolkitError | None = None
        self._outgoing: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[SessionAnswer] = queue.SimpleQueue()
        self._waiting = 0  # bytes of the answers that came since none waited
        self._lines = LineStream(runner.name, MOST_BYTES)
        self._sink: Sink | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._hold, name="container-session", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """True if the session is unusable: its process has ended, or did not answer in time."""
        return self._ended.is_set() or self._late is not None

    def send(self, message: Mapping[str, object], data: Iterable[bytes] = ()) -> None:
        """Send a line, followed by bytes."""
        self.send_bytes((json.dumps(message, separators=(",", ":")).encode() + b"\n",))
        self.send_bytes(data)

    def send_bytes(self, data: Iterable[bytes]) -> None:
        """Send bytes; another thread reads them from ``data`` as fast as they can be sent."""
        self._outgoing.put(data)

    def receive(self, about: str, seconds: float | None = None) -> SessionAnswer:
        """Return the next answer; ``ENDED`` after the end of the process.

        Args:
            about: name of the expected answer, for the error.
            seconds: time without any byte to or from the process after which it counts as hung; ``ANSWER_S``
                by default.

        Raises:
            ToolkitError: the process hangs; names the host and the expected answer.
        """
        limit = ANSWER_S if seconds is None else seconds
        self._moved = self._clock()
        while True:
            if self._late is not None:
                raise self._late
            try:
                answer = self._answers.get(timeout=max(0.0, self._moved + limit - self._clock()))
            except queue.Empty:
                if self._clock() < self._moved + limit:
                    continue
                raise self._give_up(about, limit) from None
            if answer == ENDED:
                self._answers.put(answer)  # for the next call
            return answer

    def _give_up(self, about: str, seconds: float) -> ToolkitError:
        what = f"the container has not answered for {seconds:g} s; toolkit waited for {about}"
        fix = "toolkit check  # often the cause is a state directory on a hung disk or NFS server"
        self._late = ToolkitError(what, fix, self.runner.name)
        self.leave()
        return self._late

    def follow(self, words: Iterable[str], sink: Sink) -> Result:
        """Let the process become follow.py, forward its output, and return its result.

        Raises:
            ToolkitError: the connection broke; or what ``sink`` raises.
        """
        self._sink = sink
        self.send({"do": "follow", "words": list(words)})
        self.leave()
        self._ended.wait()  # as long as the job runs; the connection has a deadline of its own
        return self._outcome()

    def leave(self) -> None:
        """Let the process end after the messages that were sent to it."""
        self._outgoing.put(None)

    def finish(self) -> Result:
        """Leave, and return the result of the process.

        Raises:
            ToolkitError: the connection broke, or the process hangs.
            OSError: an error of this machine while it sent data.
        """
        self.leave()
        if not self._ended.wait(ANSWER_S):
            raise self._give_up("the exit of the container session", ANSWER_S)
        return self._outcome()

    def _outcome(self) -> Result:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _hold(self) -> None:
        try:
            self._result = self.runner.stream(_PROGRAM, self._take, self._words())
        except BaseException as error:  # raised again by _outcome()
            self._error = error
        self._ended.set()
        self._answers.put(ENDED)
        self._outgoing.put(None)  # the feeding thread waits for an item

    def _words(self) -> Iterator[bytes]:
        while (pieces := self._outgoing.get()) is not None:
            for data in pieces:
                self.sent += len(data)
                yield data
                self._moved = self._clock()  # the connection requested more data, so the earlier data is sent

    def _take(self, data: bytes) -> None:
        self._moved = self._clock()
        if self._sink is not None:
            self._sink(data)
            return
        for line in self._lines.take(data):
            with answer_of(self.runner.name, "an answer of the container session"):
                try:
                    value = load_json(line, MOST_BYTES)
                except TooLarge:
                    raise
                except DecodeError:  # output of the container engine
                    continue
                if not isinstance(value, dict) or not value:
                    continue
                answer = decode(SessionAnswer, value)
            # Otherwise a message of a newer toolkit, or a sign of life during long work.
            if answer != ENDED and not answer.working:
                self._keep(answer, len(line))

    def _keep(self, answer: SessionAnswer, length: int) -> None:
        self._waiting = length + (0 if self._answers.empty() else self._waiting)
        if self._answers.qsize() >= _MOST_WAITING or self._waiting > _MOST_WAITING_BYTES:
            what = "the container sent more answers than toolkit requested"
            raise ToolkitError(what, "toolkit status -v", self.runner.name)
        self._answers.put(answer)


class ContainerSessions:
    """Container sessions of a command, at most one in each container."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], ContainerSession] = {}
        self._lock = threading.Lock()

    def open(self, runner: Runner, container: str) -> ContainerSession:
        """Return the session in a host's container; open one if none is usable."""
        key = (runner.name, container)
        with self._lock:
            if key not in self._sessions or self._sessions[key].has_ended:
                self._sessions[key] = ContainerSession(ContainerRunner(runner, container))
            return self._sessions[key]

    def ask(self, host: str, message: Mapping[str, object], about: str) -> SessionAnswer:
        """Return the answer of the open session on a host; ``ENDED`` without a session or an answer.

        Raises:
            ToolkitError: see ``ContainerSession.receive``.
        """
        session = self._on(host)
        if session is None:
            return ENDED
        session.send(message)
        return session.receive(about)

    def notify(self, host: str, message: Mapping[str, object]) -> None:
        """Send a message that has no answer to the open session on a host, if there is one."""
        if (session := self._on(host)) is not None:
            session.send(message)

    def take(self, host: str) -> ContainerSession | None:
        """Return the open session on a host and hand it over to the caller; None without a session."""
        session = self._on(host)
        with self._lock:
            self._sessions = {key: one for key, one in self._sessions.items() if one is not session}
        return session

    def leave(self, but: str = "") -> None:
        """Let all sessions end except the one on host ``but``."""
        with self._lock:
            for (host, _), session in self._sessions.items():
                if host != but:
                    session.leave()
            self._sessions = {key: session for key, session in self._sessions.items() if key[0] == but}

    def _on(self, host: str) -> ContainerSession | None:
        with self._lock:
            found = [one for (name, _), one in self._sessions.items() if name == host and not one.has_ended]
        return found[0] if found else None
