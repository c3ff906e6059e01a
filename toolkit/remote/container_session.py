"""One process inside a container for all that a command asks of it; see ``toolkit/container/session.py``.

To start a process in a container takes an engine a tenth of a second. A run asks four things of main, so
they go to one process, which is started while the host is still asked what it is.
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
from toolkit.protocol.decode import DecodeError, decode, load_json
from toolkit.protocol.names import program
from toolkit.protocol.session import ENDED, MOST_BYTES, Heard

# Without site-packages and the image's Python variables: it starts faster, and no settings change it.
_PROGRAM = command(*program("session", "-S", "-E"))

# Seconds without any byte to or from the process after which a host counts as hung while it owes an answer.
ANSWER_S = 60.0


class Desk:
    """A session with the process: lines of JSON in both directions, and bytes announced by a line."""

    def __init__(self, runner: ContainerRunner, clock: Callable[[], float] = time.monotonic) -> None:
        self.runner = runner
        self.sent = 0  # bytes
        self._clock, self._moved = clock, clock()
        self._late: ToolkitError | None = None
        self._told: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._lines = LineStream(runner.name, MOST_BYTES)
        self._sink: Sink | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._hold, name="desk", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """True if the session is unusable: its process has ended, or did not answer in time."""
        return self._ended.is_set() or self._late is not None

    def say(self, message: Mapping[str, object], data: Iterable[bytes] = ()) -> None:
        """Send a line, followed by bytes."""
        self.give((json.dumps(message, separators=(",", ":")).encode() + b"\n",))
        self.give(data)

    def give(self, data: Iterable[bytes]) -> None:
        """Send bytes; another thread reads them from ``data`` as fast as they can be sent."""
        self._told.put(data)

    def hear(self, about: str, seconds: float | None = None) -> Heard:
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
                heard = self._heard.get(timeout=max(0.0, self._moved + limit - self._clock()))
            except queue.Empty:
                if self._clock() < self._moved + limit:
                    continue
                raise self._give_up(about, limit) from None
            if heard == ENDED:
                self._heard.put(heard)  # for the next call
            elif heard.working:  # a sign of life during long work
                continue
            return heard

    def _give_up(self, about: str, seconds: float) -> ToolkitError:
        what = f"its container has not answered for {seconds:g} s; toolkit waited for {about}"
        fix = "toolkit check; a state directory on a hung disk or NFS server is the most frequent cause"
        self._late = ToolkitError(what, fix, self.runner.name)
        self.leave()
        return self._late

    def follow(self, words: Iterable[str], sink: Sink) -> Result:
        """Let the process become follow.py, forward its output, and return its result.

        Raises:
            ToolkitError: the connection broke; or what ``sink`` raises.
        """
        self._sink = sink
        self.say({"do": "follow", "words": list(words)})
        self.leave()
        self._ended.wait()  # as long as the job runs; the connection has a deadline of its own
        return self._outcome()

    def leave(self) -> None:
        """Let the process end after the messages that were sent to it."""
        self._told.put(None)

    def finish(self) -> Result:
        """Leave, and return the result of the process.

        Raises:
            ToolkitError: the connection broke, or the process hangs.
            OSError: an error of this machine while it sent data.
        """
        self.leave()
        if not self._ended.wait(ANSWER_S):
            raise self._give_up("the end of the program there", ANSWER_S)
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
        self._heard.put(ENDED)
        self._told.put(None)  # the feeding thread waits for an item

    def _words(self) -> Iterator[bytes]:
        while (told := self._told.get()) is not None:
            for data in told:
                self.sent += len(data)
                yield data
                self._moved = self._clock()  # asked for more: it is on its way

    def _take(self, data: bytes) -> None:
        self._moved = self._clock()
        if self._sink is not None:
            self._sink(data)
            return
        for line in self._lines.take(data):
            try:
                value = load_json(line, MOST_BYTES)
            except DecodeError:  # a word of the engine
                continue
            if isinstance(value, dict) and value:
                with answer_of(self.runner.name, "what it was asked in its container"):
                    heard = decode(Heard, value)
                if heard != ENDED:  # a message of a newer toolkit
                    self._heard.put(heard)


class Desks:
    """The desks of a command, one in each container at most."""

    def __init__(self) -> None:
        self._desks: dict[tuple[str, str], Desk] = {}
        self._lock = threading.Lock()

    def open(self, runner: Runner, container: str) -> Desk:
        """Return the desk in a host's container, a new one where there is none that goes on."""
        key = (runner.name, container)
        with self._lock:
            if key not in self._desks or self._desks[key].has_ended:
                self._desks[key] = Desk(ContainerRunner(runner, container))
            return self._desks[key]

    def ask(self, host: str, message: Mapping[str, object], about: str) -> Heard:
        """Return the answer of the desk that is open on a host; ``ENDED`` where none is, or it has no answer.

        Raises:
            ToolkitError: see ``Desk.hear``.
        """
        desk = self._on(host)
        if desk is None:
            return ENDED
        desk.say(message)
        return desk.hear(about)

    def tell(self, host: str, message: Mapping[str, object]) -> None:
        """Say what has no answer to the desk that is open on a host, if one is."""
        if (desk := self._on(host)) is not None:
            desk.say(message)

    def take(self, host: str) -> Desk | None:
        """Return the desk that is open on a host, and leave it to the caller; None where none is."""
        desk = self._on(host)
        with self._lock:
            self._desks = {key: one for key, one in self._desks.items() if one is not desk}
        return desk

    def leave(self, but: str = "") -> None:
        """Let all end, but the one on this host."""
        with self._lock:
            for (host, _), desk in self._desks.items():
                if host != but:
                    desk.leave()
            self._desks = {key: desk for key, desk in self._desks.items() if key[0] == but}

    def _on(self, host: str) -> Desk | None:
        with self._lock:
            found = [one for (name, _), one in self._desks.items() if name == host and not one.has_ended]
        return found[0] if found else None
