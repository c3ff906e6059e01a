"""Fake hosts in place of the connections of ``SshRunner``, and a clock that needs no waiting.

A command arrives as the line that would be sent. ``valid_answers`` has the answer of a sound host, and a case
changes it. Everything above the connection is the real code: framing, limits, deadlines, decoders, writers.
"""

from __future__ import annotations

import base64
import queue
import re
import shlex
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import paramiko
from rich.live import _RefreshThread

import toolkit.hostsfile.load
import toolkit.init.trust
import toolkit.remote.container_session
import toolkit.remote.ssh
import toolkit.transfer.relay
from toolkit.core.runner import _ANNOUNCE, _BEGUN, _UNTIL_STDIN_ENDS
from toolkit.errors import Unreachable
from toolkit.remote.ssh import MARK
from toolkit.remote.ssh_config import Target

_REAL, _REAL_SLEEP = (time.monotonic, time.time), time.sleep
# Real seconds between two looks of the thread whose wait ends first, and of other threads that wait.
_FIRST_S, _SLICE_S = 0.002, 0.005
_PATIENCE_S = 1.0  # real seconds for the looks of all other threads
_TASKS = Path("/proc/self/task")
# White space or a word of a command line, and a part of a word in quotes.
_TOKEN = re.compile(r"""\s+|((?:[^\s'"\\]+|'[^']*'|"[^"\\]*")+)""")
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_ENDLESS = ("silent", "drops", "flood")  # paces of answers that have no end
# A command without a deadline ends with its connection after this time of silence or noise.
_LOST_S = 900.0
_DROP_S = 5.0  # between two bytes of an answer that trickles
# Seconds by the clock that a command may take beyond the limit that its channel has.
_SLACK_S = 2.0
# Pieces of endless output: of a command that has a deadline, and of one that has none.
_MOST_PIECES, _PIECES = 12_000, 60


class Clock:
    """The clock of a case: it runs as the real one does, and jumps while every thread waits.

    It jumps to the end of the wait that ends first, and only if all other threads are blocked. So the order
    of events does not depend on how much processor time this process gets.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        self._lock = threading.Lock()
        self._ends: dict[int, float] = {}  # of the waits with a limit, by thread
        self._looks: dict[int, int] = {}  # how often these threads have looked for their events

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._ahead += max(0.0, seconds)

    def monotonic(self) -> float:
        return _REAL[0]() + self._ahead

    def time(self) -> float:
        return _REAL[1]() + self._ahead

    def wait(self, seconds: float, look: Callable[[float], bool]) -> bool:
        """Wait until ``look`` returns true, at most this long by the clock; return whether it did.

        Args:
            look: waits for an event; its argument is a limit in real seconds.
        """
        thread, end = threading.get_native_id(), self.monotonic() + seconds
        self._looks.setdefault(thread, 0)
        self._ends[thread] = end
        try:
            while (left := end - self.monotonic()) > 0:
                self._looks[thread] += 1
                first = end <= min(self._ends.copy().values())
                if look(min(left, _FIRST_S if first else _SLICE_S)):
                    return True
                if first and self._all_wait(thread):
                    if look(0):  # the event came after the last look
                        return True
                    self.advance(end - self.monotonic())
            return look(0)
        finally:
            del self._ends[thread]

    def _all_wait(self, thread: int) -> bool:
        """Return whether every other thread is blocked, and was since the look before.

        A thread whose event has come can wait for the interpreter, and is blocked for the kernel too. So each
        thread that waits with a limit must have begun and ended a look meanwhile, without finding its event.
        """
        before = self._blocked(thread)
        if before is None:
            return False
        looks = {other: self._looks[other] for other in self._ends.copy() if other != thread}
        until = _REAL[0]() + _PATIENCE_S
        while True:
            _REAL_SLEEP(_FIRST_S)  # lets threads run that wait for the interpreter alone
            if _REAL[0]() > until or self._ends.keys() - {thread} != looks.keys():
                return False
            if all(self._looks[other] >= number + 2 for other, number in looks.items()):
                return before == self._blocked(thread)

    def _blocked(self, thread: int) -> dict[int, object] | None:
        """Return the wait of each other thread, or how often it was switched; None if one of them can run."""
        found: dict[int, object] = {}
        for task in _TASKS.iterdir():
            number = int(task.name)
            if number == thread:
                continue
            try:
                lines = (task / "status").read_bytes().splitlines()
            except OSError:  # it ended meanwhile
                return None
            state = next(line.split()[1] for line in lines if line.startswith(b"State:"))
            if state != b"S":
                return None
            # One that waits with a limit is switched again and again.
            end = self._ends.get(number)
            found[number] = end or tuple(line for line in lines if b"_switches" in line)
        return found

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let everything that reads a clock, sleeps, or waits with a limit do so by this one."""
        condition, thread, clock = threading.Condition, threading.Thread, self
        kept = time.monotonic, time.time, time.sleep, condition.wait, condition.wait_for, thread.join

        def wait(own: threading.Condition, timeout: float | None = None) -> bool:
            if timeout is None or timeout <= 0 or isinstance(threading.current_thread(), _RefreshThread):
                return kept[3](own, timeout)
            # One waiter for the whole time, and without the lock, as in Condition.wait: each of several
            # short waits could miss a notification at its end; who needs the lock to notify looks blocked.
            own_parts: Any = own
            waiter = threading.Lock()
            waiter.acquire()
            own_parts._waiters.append(waiter)
            state, notified = own_parts._release_save(), False
            try:
                notified = clock.wait(timeout, lambda seconds: waiter.acquire(timeout=seconds))
                return notified
            finally:
                own_parts._acquire_restore(state)
                if not notified and waiter in own_parts._waiters:
                    own_parts._waiters.remove(waiter)

        def wait_for(
            own: threading.Condition, predicate: Callable[[], Any], timeout: float | None = None
        ) -> Any:
            end = None if timeout is None else clock.monotonic() + timeout
            while not (found := predicate()):
                left = None if end is None else end - clock.monotonic()
                if left is not None and left <= 0:
                    break
                own.wait(left)
            return found

        def join(own: threading.Thread, timeout: float | None = None) -> None:
            def ended(seconds: float) -> bool:
                kept[5](own, seconds)
                return not own.is_alive()

            if timeout is None or timeout <= 0:
                kept[5](own, timeout)
            else:
                clock.wait(timeout, ended)

        def sleep(seconds: float) -> None:
            def slept(real: float) -> bool:
                _REAL_SLEEP(real)
                return False

            clock.wait(seconds, slept)

        changed: Any = time, condition, thread
        try:
            changed[0].monotonic, changed[0].time, changed[0].sleep = self.monotonic, self.time, sleep
            changed[1].wait, changed[1].wait_for, changed[2].join = wait, wait_for, join
            yield
        finally:
            changed[0].monotonic, changed[0].time, changed[0].sleep = kept[:3]
            changed[1].wait, changed[1].wait_for, changed[2].join = kept[3:]


def _read_anew(function: Any) -> None:
    """Let a parameter that reads the clock by default read the one that is in use."""
    function.__defaults__ = tuple(
        (lambda: time.monotonic()) if one is _REAL[0] else one for one in function.__defaults__
    )


_read_anew(toolkit.remote.ssh.arriving)
_read_anew(toolkit.remote.container_session.ContainerSession.__init__)


class WaitingQueue:
    """In place of ``queue.SimpleQueue``, which waits in C by the real clock."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()

    def put(self, item: Any) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def get(self, timeout: float | None = None) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: self._items, timeout):
                raise queue.Empty
            return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


class Talk(Protocol):
    """The reaction of a host to one command."""

    def begin(self, say: Say) -> None:
        """Answer what needs no input; ``say.end`` ends the command."""

    def hear(self, data: bytes, say: Say) -> None:
        """Take input."""

    def close(self, say: Say) -> None:
        """Take the end of the input."""


class Say:
    """The output of a talk."""

    def __init__(self, channel: Channel, change: Change) -> None:
        self._channel, self._change = channel, change

    def out(self, data: bytes) -> None:
        self._channel.put(self._change.out(data))

    def err(self, data: bytes) -> None:
        self._channel.put_error(self._change.err(data))

    def end(self, status: int) -> None:
        self._channel.end(self._change.status(status))


class Change:
    """A change of the answer to one command; this one changes nothing."""

    # "" for an answer that comes at once, "silent" for none, "drops" for single bytes that never end,
    # "flood" for output without end, "lost" for a connection that breaks off after the answer.
    pace = ""

    def before(self, mark: bytes) -> bytes:
        """Return what the login shell prints, with the mark that the command begins."""
        return mark

    def out(self, data: bytes) -> bytes:
        return data

    def err(self, data: bytes) -> bytes:
        return data

    def status(self, status: int) -> int:
        return status


class Hosts(Protocol):
    """The hosts of a case."""

    clock: Clock
    bugs: list[Exception]

    def talk(self, host: str, words: list[str], inside: bool) -> tuple[Talk, Change]:
        """Return what the host does with a command, and what the case makes of it.

        Args:
            words: without the programs around it that limit it or lead into a container.
            inside: whether it is to run in a container.
        """

    def refusal(self, host: str) -> str:
        """Return why the host takes no connection, empty if it does."""

    def shown_key(self, host: str) -> Any:
        """Return the ssh key that the host shows."""


def unwrapped(words: list[str]) -> tuple[list[str], bool, bool]:
    """Return the innermost program, whether it announces its begin, and whether it is in a container."""
    begins = inside = False
    while words:
        if words[0] == "timeout":
            at = next(n for n, word in enumerate(words) if re.fullmatch(r"[0-9.]+", word) and n > 2)
            words = words[at + 1 :]
        elif words[0] == "env":
            at = next((n for n, word in enumerate(words[1:], 1) if "=" not in word), len(words))
            words = words[at:]
        elif words[:2] in (["docker", "exec"], ["podman", "exec"]):
            at = 2
            while words[at].startswith("-"):
                at += 2 if words[at] == "-u" else 1
            words, inside = words[at + 1 :], True
        elif words[:2] == ["sh", "-c"] and words[2] == _ANNOUNCE:
            words, begins = words[4:], True
        elif words[:2] == ["sh", "-c"] and words[2] == _UNTIL_STDIN_ENDS:
            words = words[4:]
        elif words[:2] == ["sh", "-c"] and words[2].startswith('eval "exec $(printf'):
            words = split(base64.b64decode(words[4]).decode("utf-8", "surrogateescape"))
        else:
            break
    return words, begins, inside


def split(line: str) -> list[str]:
    """Return ``shlex.split(line)``, for lines as long as a program in much less time."""
    tokens = list(_TOKEN.finditer(line))
    if sum(len(token[0]) for token in tokens) < len(line):
        return shlex.split(line)
    return [_QUOTED.sub(lambda found: found[0][1:-1], token[1]) for token in tokens if token[1]]


def words_of_line(line: str) -> list[str]:
    """Return the argv of a line that ``toolkit.remote.ssh.wire`` made."""
    words = split(line)
    packed = re.search(r"printf %s (\S+) \| base64 -d", words[3]) if len(words) > 3 else None
    if packed and len(words) == 4:
        return split(base64.b64decode(packed[1]).decode("utf-8", "surrogateescape"))
    return words[5:]


class Channel:
    """A paramiko channel as ``SshRunner`` uses it; a fake host answers on the other side."""

    def __init__(self, link: FakeLink) -> None:
        self._link, self._clock = link, link.hosts.clock
        self._changed = threading.Condition()
        self._out: deque[bytes] = deque()
        self._err: deque[bytes] = deque()
        self._timeout: float | None = None
        self._status: int | None = None
        self._closed = False
        self._talk: Talk | None = None
        self._say: Say | None = None
        self._pace = ""
        self._pieces = 0
        self.status_event = threading.Event()
        self.spent = 0.0  # seconds by the clock that this command has let pass
        self.limit: float | None = None
        self.line = ""

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def exec_command(self, line: str) -> None:
        words, begins, inside = unwrapped(words_of_line(line))
        self.line, self.limit = " ".join(words)[:80], self._timeout and self._timeout + _SLACK_S
        self._talk, change = self._link.hosts.talk(self._link.target.name, words, inside)
        self._pace = change.pace
        self.put(change.before(f"{MARK}\n".encode()))
        self.put_error(f"{MARK}\n".encode())
        if begins:
            self.put(_BEGUN.encode())
        self._say = Say(self, change)
        if self._pace not in _ENDLESS:
            self._do(self._talk.begin, self._say)

    def put(self, data: bytes) -> None:
        with self._changed:
            self._out.append(data)
            self._changed.notify_all()

    def put_error(self, data: bytes) -> None:
        with self._changed:
            self._err.append(data)
            self._changed.notify_all()

    def end(self, status: int) -> None:
        with self._changed:
            if self._pace == "lost":
                self._link.break_off()
            self._status = status
            self._changed.notify_all()

    def recv(self, nbytes: int) -> bytes:
        with self._changed:
            while True:
                if self._closed or self._link.broken:
                    raise EOFError("the connection was closed")
                while self._out:
                    data = self._out.popleft()
                    if len(data) > nbytes:
                        self._out.appendleft(data[nbytes:])
                    if data:
                        return data[:nbytes]
                if self._status is not None:
                    self.status_event.set()
                    return b""
                if self._pace in _ENDLESS:
                    data = self._endless(nbytes)
                    if data:
                        return data
                    continue
                self._changed.wait()

    def recv_ready(self) -> bool:
        with self._changed:
            return bool(self._out)

    def _endless(self, nbytes: int) -> bytes:
        """Let time pass; return what comes meanwhile."""
        if self._pace == "silent":
            passes, data = (5.0 if self._timeout is None else self._timeout), b""
        elif self._pace == "drops":
            passes, data = _DROP_S, b"."
        else:
            passes, data = 0.001, b"0123456789abcde\n" * (nbytes // 16)
        self.spent += passes
        self._pieces += 1
        if self._pace == "flood":
            self._clock.advance(passes)
        else:
            self._changed.wait(passes)
        most = _MOST_PIECES if self._timeout is not None else _PIECES
        if self.spent > _LOST_S or (self._pace == "flood" and self._pieces > most):
            self._link.break_off()
            raise EOFError("the connection was lost")
        if self._pace == "silent" and self._timeout is not None:
            raise TimeoutError
        return data

    def recv_stderr(self, nbytes: int) -> bytes:
        with self._changed:
            while not self._err and self._status is None:
                if self._closed or self._link.broken:
                    return b""
                self._changed.wait()
            data = self._err.popleft() if self._err else b""
            if len(data) > nbytes:
                self._err.appendleft(data[nbytes:])
            return data[:nbytes]

    def sendall(self, data: bytes) -> None:
        with self._changed:
            if self._closed or self._link.broken or self._status is not None:
                raise OSError("the channel is closed")
        if self._talk is not None and self._say is not None and self._pace not in _ENDLESS:
            self._do(self._talk.hear, data, self._say)

    def shutdown_write(self) -> None:
        if self._talk is not None and self._say is not None and self._pace not in _ENDLESS:
            self._do(self._talk.close, self._say)

    def _do(self, action: Callable[..., None], *words: Any) -> None:
        try:
            action(*words)
        except Exception as error:
            self._link.hosts.bugs.append(error)
            raise

    def recv_exit_status(self) -> int:
        return -1 if self._status is None else self._status

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class FakeLink:
    """In place of ``toolkit.remote.connect.Link``."""

    hosts: Hosts
    all: list[FakeLink]  # that the case has made

    def __init__(self, target: Target, *rest: Any, **more: Any) -> None:
        self.target, self.lost, self.broken = target, "", False
        self.connection, self.transport = self, self
        self._is_open = False
        self._channels: list[Channel] = []
        self.all.append(self)

    def open(self) -> None:
        if why := self.hosts.refusal(self.target.name):
            raise Unreachable(why, "look at the host", self.target.name)
        self._is_open = True

    @property
    def is_connected(self) -> bool:
        return self._is_open and not self.broken

    def create_session(self) -> Channel:
        if not self.is_connected:
            raise paramiko.SSHException("the connection is closed")
        channel = Channel(self)
        self._channels.append(channel)
        return channel

    def open_channel(self, kind: str, address: tuple[str, int], *rest: Any, **more: Any) -> Channel:
        raise paramiko.ChannelException(2, "Connect failed")

    def run(self, line: str, **more: Any) -> Any:
        raise AssertionError("no terminal is joined to a fake host")

    def shown_key(self) -> Any:
        return self.hosts.shown_key(self.target.name)

    def break_off(self) -> None:
        self.broken, self.lost = True, "the host has not answered for 35 s"
        for channel in self._channels:
            channel.wake()

    def over_limit(self) -> list[str]:
        """Return the commands that took longer than their limit."""
        return [
            f"{one.line}: {one.spent:.1f} s, not {one.limit:.1f} s"
            for one in self._channels
            if one.limit is not None and one.spent > one.limit
        ]

    def is_active(self) -> bool:
        return self.is_connected

    def join(self, timeout: float | None = None) -> None:
        """There is no thread."""

    def close(self) -> None:
        self._is_open, self.broken = False, True
        for channel in self._channels:
            channel.close()


class Queues:
    """In place of the module ``queue`` where it waits with a limit."""

    SimpleQueue = WaitingQueue
    Empty = queue.Empty


def target(inventory: Any, name: str) -> Target:
    """In place of ``target_of``, which asks ``ssh -G``."""
    host = inventory.host(name)
    return Target(name, host.address or name, host.user or "alice", known_hosts=("known_hosts",))


@contextmanager
def in_place_of_hosts(hosts: Hosts) -> Iterator[None]:
    """Let connections lead to fake hosts, for one case."""
    import toolkit.cluster.connect

    places: tuple[tuple[Any, str, Any], ...] = (
        (toolkit.remote.ssh, "Link", FakeLink),
        (toolkit.init.trust, "Link", FakeLink),
        (toolkit.cluster.connect, "target_of", target),
        (toolkit.init.trust, "target_of", target),
        (toolkit.hostsfile.load, "target_of", target),
        (toolkit.remote.container_session, "queue", Queues),
        (toolkit.transfer.relay, "queue", Queues),
    )
    kept = [getattr(module, name) for module, name, _ in places]
    FakeLink.hosts, FakeLink.all = hosts, []
    for module, name, value in places:
        setattr(module, name, value)
    try:
        with hosts.clock.in_use():
            yield
    finally:
        for (module, name, _), value in zip(places, kept, strict=True):
            setattr(module, name, value)


def hang_up() -> None:
    """Close what the command has left open, as the end of its process does."""
    for link in list(FakeLink.all):
        link.close()


# The commands that fake hosts have no answer for, by their first words; of use when a verb is added.
UNKNOWN: Counter[str] = Counter()
