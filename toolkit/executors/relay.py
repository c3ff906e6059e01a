"""An image to many hosts at once: each gives to the next what it gets, and this machine sends it once.

On every host runs toolkit/inside/relay.py for as long as the transfer lasts. Here is decided who gives to
whom (``toolkit.core.relay_line``), and from here come the digests that alone make a chunk count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.core.command import Command, script
from toolkit.core.image_parts import ImageParts, groups_for
from toolkit.core.relay_line import HERE, Drop, Feed, Give, Line, Order, Take
from toolkit.effects.image_chunks import CHUNK, Archive, make_archives, read_chunks
from toolkit.effects.image_source import ImageSource
from toolkit.effects.pack import Packer
from toolkit.effects.relay_keys import RelayKey, RelayKeys
from toolkit.effects.runner import Runner
from toolkit.errors import ToolkitError, Unreachable

# Bytes done, bytes in all.
Advance = Callable[[int, int], None]

# Fewer bytes than these go to each host from here: until the hosts have met they would be there.
LEAST = 2**20

_PROGRAM = Path(__file__).resolve().parent.parent / "inside" / "relay.py"
_START = r"""
no() { echo "{\"missing\": \"$1\"}"; exit; }
command -v python3 >/dev/null || no "it has no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' || no "its python3 is older than 3.8"
exec python3 -I -S -c "$2" "$1"
"""
# As in relay.py.
_HEAD = struct.Struct(">cBII")
_ZSTD = 1
# Seconds that the first host waits for the others, and that a host has for its first word.
_MEET, _ANSWER = 5.0, 20.0
# Seconds between two looks at the line, and between two messages that carry nothing but digests.
_LOOK, _FLUSH = 0.1, 0.02
# Chunks on their way to a host that is fed from here: what takes so many seconds, within bounds. A longer
# row would hold up orders to that host.
_ROW_SECONDS, _ROW_LEAST, _ROW_MOST = 0.3, 2, 32


@dataclass(frozen=True)
class Brought:
    """What came of it on one host.

    Args:
        archives: those that its engine has loaded.
        refused: what the engine said to one that it did not load; empty when it took all.
        wire: bytes that came in, compressed as they were.
        giver: host that gave the last chunk, empty for this machine.
        note: what else there is to say about the way it took.
    """

    archives: tuple[Archive, ...]
    refused: str = ""
    wire: int = 0
    giver: str = HERE
    note: str = ""


class Relay:
    """One image on its way to several hosts.

    Args:
        source, parts: what is sent.
        identity, token: of the image, and of this try.
        hosts: who may take part; the line forms when each of them is there or has said that it is not.
    """

    def __init__(
        self, source: ImageSource, parts: ImageParts, identity: str, token: str, hosts: Collection[str]
    ) -> None:
        self.source, self.parts, self.identity, self.token = source, parts, identity, token
        self.archives: tuple[Archive, ...] = ()
        self._lock = threading.Lock()
        self._waiting = set(hosts)
        self._members: dict[str, _Member] = {}
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._begun = threading.Event()
        self._closed = False
        self._line = Line({}, 0)
        self._announced = 0
        self._started = 0.0

    def absent(self, host: str) -> None:
        """This host takes no part; the others need not wait for it."""
        with self._lock:
            self._waiting.discard(host)
            complete = not self._waiting
        if complete:
            self._events.put(lambda: None)

    def bring(self, runner: Runner, address: str, first: int, advance: Advance) -> Brought | str:
        """Let a host take the layers from ``first`` on, from others or from here, and load them.

        Returns:
            What came of it, or why the host cannot take part.

        Raises:
            Unreachable: the connection to the host broke.
            Unreadable: the layers cannot be read.
        """
        member = _Member(runner, address, first, advance, self._tell)
        reason = member.start()
        if reason or not self._join(member):
            member.close()
            self.absent(member.host)
            return reason or "the others had begun"
        member.finished.wait()
        if member.error is not None:
            raise member.error
        return member.brought(self._line)

    def failed(self, error: Exception) -> None:
        """It cannot go on, for a reason on this machine."""
        for member in list(self._members.values()):
            member.fail(error)
            member.close()

    def close(self) -> None:
        """End it, wherever it is."""
        self._closed = True
        for member in list(self._members.values()):
            member.close()
        self._events.put(lambda: None)

    # What happens, one thing after another in a thread of its own

    def _tell(self, event: Callable[[], None]) -> None:
        self._events.put(event)

    def _join(self, member: _Member) -> bool:
        with self._lock:
            if self._begun.is_set() or self._closed:
                return False
            if not self._members:
                threading.Thread(target=self._conduct, daemon=True, name="relay").start()
            self._members[member.host] = member
            self._waiting.discard(member.host)
        self._events.put(lambda: None)
        return True

    def _conduct(self) -> None:
        try:
            self._meet()
            self._begin()
            looked = time.monotonic()
            while not self._closed and not all(m.ended.is_set() for m in self._members.values()):
                with contextlib.suppress(queue.Empty):
                    self._events.get(timeout=_LOOK)()
                now = time.monotonic()
                for member in self._members.values():
                    self._hear(member, now)
                if now - looked >= _LOOK:
                    looked = now
                    self._apply(self._line.look(self._sent(), self._busy(), now))
                if self._line.finished:
                    # A host that loads yet would lose the rest with its program.
                    for member in self._members.values():
                        if member.finished.is_set():
                            member.close()
        except Exception as error:
            self.failed(error)

    def _meet(self) -> None:
        until = time.monotonic() + _MEET
        while True:
            with self._lock:
                if not self._waiting or time.monotonic() >= until or self._closed:
                    self._begun.set()
                    return
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=_LOOK)()

    def _begin(self) -> None:
        sizes = [layer.size for layer in self.parts.layers]
        groups = groups_for(sizes, {m.first for m in self._members.values()})
        self.archives = make_archives(self.parts, groups, self.identity, self.token)
        keys, starts = RelayKeys(), {}
        for host, member in self._members.items():
            member.archives = tuple(one for one in self.archives if one.group.start >= member.first)
            starts[host] = member.archives[0].first
            member.begin(keys.of(host))
        # Nobody can be told whom to give to before that one listens.
        until = time.monotonic() + _ANSWER
        while not all(m.port or m.ended.is_set() for m in self._members.values()):
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=_LOOK)()
            if time.monotonic() > until or self._closed:
                break
        self._announced = min(starts.values())
        self._started = now = time.monotonic()
        self._line = Line(starts, self.archives[-1].end)
        for host, member in self._members.items():
            if not member.port:
                member.fail(ToolkitError("its relay did not begin", "run the same command again", host))
                del self._line.at[host]
        self._apply(self._line.begin(now))

    def _hear(self, member: _Member, now: float) -> None:
        line, host = self._line, member.host
        while member.said:
            what = member.said.popleft()
            if "at" in what and "limit" in what:
                self._apply(line.moved(host, int(what["at"]), now))
            elif "takes" in what:
                member.taken(what["takes"], int(what["at"]))
            elif "lost" in what:
                gone, begun = "gone" in what, bool(what["begun"])
                self._apply(line.lost(host, str(what["lost"]), begun, gone, str(what["why"]), now))
        if member.ended.is_set() and host in line.at:
            self._apply(line.gone(host, now))

    def _apply(self, orders: list[Order]) -> None:
        for order in orders:
            member = self._members[order.host]
            if isinstance(order, Take):
                member.order(do="take", host=order.giver)
            elif isinstance(order, Give):
                taker = self._members.get(order.taker)
                address, port = (taker.address, taker.port) if taker else ("", 0)
                member.order(do="give", host=order.taker, address=address, port=port)
            elif isinstance(order, Feed):
                member.feed(self, order.wanted)
            elif isinstance(order, Drop):
                member.fail(ToolkitError(order.why, "run the same command again", order.host))
                member.close()
                self._apply(self._line.gone(order.host, time.monotonic()))

    def _sent(self) -> dict[str, int]:
        return {host: member.sent for host, member in self._members.items()}

    def _busy(self) -> set[str]:
        return {host for host, member in self._members.items() if member.at >= member.limit}

    # What is sent

    def chunks(self, number: int) -> Iterator[tuple[int, bytes]]:
        return read_chunks(self.source, self.archives, number)

    def announce(self, number: int, chunk: bytes) -> None:
        """Tell all hosts the digest of a chunk, once, before anybody gets it."""
        with self._lock:
            if number < self._announced:
                return
            self._announced = number + 1
            sum_ = hashlib.sha256(chunk).digest()
            for member in self._members.values():
                member.digest(number, sum_)

    def packs(self) -> bool:
        """Whether every host can undo zstd."""
        return all(member.zstd for member in self._members.values())

    def row(self, host: str) -> int:
        """Return how many chunks may be on their way from here to a host."""
        rate = self._line.rate(host, time.monotonic()) or 0.0
        return int(min(max(_ROW_SECONDS * rate, _ROW_LEAST), _ROW_MOST))


@dataclass
class _Load:
    status: int
    said: str


class _Member:
    """One host: what it is told, what it says, what is fed to it."""

    def __init__(
        self,
        runner: Runner,
        address: str,
        first: int,
        advance: Advance,
        tell: Callable[[Callable[[], None]], None],
    ) -> None:
        self.runner, self.address, self.first, self._advance, self._tell = (
            *(runner, address, first),
            *(advance, tell),
        )
        self.host = runner.name
        self.archives: tuple[Archive, ...] = ()
        self.zstd, self.port = False, 0
        self.at = self.limit = self.sent = self.wire = 0
        self.giver = HERE
        self.said: deque[dict[str, object]] = deque()
        self.finished, self.ended, self._ready = threading.Event(), threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._loads: dict[int, _Load] = {}
        self._line = b""
        self._changed = threading.Condition()
        self._orders: list[bytes] = []
        self._digests: list[tuple[int, bytes]] = []
        self._data: deque[bytes] = deque()
        self._closed = False
        self._stderr = self._missing = ""
        self._feeding = 0  # rises with every order to feed or not to
        self._take_at: int | None = None

    # The program over there

    def start(self) -> str:
        """Start the program on the host; return why it does not run, empty when it does."""
        command = script(_START, self.address, _PROGRAM.read_text(encoding="utf-8"))
        threading.Thread(target=self._run, args=(command,), daemon=True, name=f"relay {self.host}").start()
        self._ready.wait(_ANSWER)
        if isinstance(self.error, Unreachable):
            raise self.error
        if self._missing or self.ended.is_set():
            return self._missing or self._stderr.strip().rpartition("\n")[2] or "its relay did not start"
        return "" if self._ready.is_set() else "its relay did not answer"

    def _run(self, command: Command) -> None:
        try:
            result = self.runner.stream(command, self._hear, self._frames())
            self._stderr = result.stderr
            reason = result.stderr.strip().rpartition("\n")[2] or f"status {result.status}"
            self.fail(ToolkitError(f"its relay ended: {reason}", "run the same command again", self.host))
        except Exception as error:
            self.fail(error)
        finally:
            self.ended.set()
            self._ready.set()
            self.finished.set()
            self._tell(lambda: None)

    def _hear(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            what = json.loads(line)
            if "missing" in what:
                self._missing = str(what["missing"])
                self._ready.set()
                self.close()  # it reads nothing that could end what waits for it
            elif "ready" in what:
                self.zstd = bool(what["zstd"])
                self._ready.set()
            elif "port" in what:
                self.port = int(what["port"])
            elif "loaded" in what:
                self._loads[int(what["loaded"])] = _Load(int(what["status"]), str(what["said"]))
                self._judge()
            else:
                if "limit" in what:
                    self._moved(int(what["at"]), int(what["limit"]), int(what["wire"]))
                self.said.append(what)
        if lines:
            self._tell(lambda: None)

    def _moved(self, at: int, limit: int, wire: int) -> None:
        with self._changed:
            self.at, self.limit, self.wire = at, limit, wire
            self._changed.notify_all()
        total = sum(one.size for one in self.archives)
        if self.archives:
            self._advance(min((at - self.archives[0].first) * CHUNK, total), total)

    def _judge(self) -> None:
        bad = any(load.status for load in self._loads.values())
        if bad or len(self._loads) == len(self.archives):
            self.error = None
            self.finished.set()

    def brought(self, line: Line) -> Brought:
        """Return what came of it, once it is finished."""
        good = [number for number, load in sorted(self._loads.items()) if not load.status]
        bad = [load.said for _, load in sorted(self._loads.items()) if load.status]
        note = ""
        if self.host in line.direct:
            note = f"not from another host: {line.direct[self.host]}"
        if self.host in line.passed:
            note = f"after the others: {line.passed[self.host]}"
        archives = tuple(self.archives[number] for number in good)
        refused = (bad[0].strip() or "docker load failed") if bad else ""
        return Brought(archives, refused, self.wire, self.giver, note)

    def fail(self, error: Exception) -> None:
        if not self.finished.is_set():
            self.error = error
            self.finished.set()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._feeding += 1
            self._changed.notify_all()

    # What it is told

    def begin(self, key: RelayKey) -> None:
        loads = [(one.first, one.end) for one in self.archives]
        self.order(do="begin", loads=loads, key=key.key, cert=key.cert, ca=key.ca)

    def order(self, **order: object) -> None:
        text = json.dumps(order).encode()
        with self._changed:
            self._orders.append(_HEAD.pack(b"J", 0, 0, len(text)) + text)
            if order["do"] == "take":
                self._take_at = None
                if order["host"] is not None:
                    self.giver = str(order["host"])
            self._changed.notify_all()

    def taken(self, giver: object, at: int) -> None:
        """It has done as it was told to: it takes from this one now, and needs this chunk next."""
        if giver == self.giver:
            with self._changed:
                self._take_at = at
                self._changed.notify_all()

    def digest(self, number: int, sum_: bytes) -> None:
        if self.archives and number >= self.archives[0].first:
            with self._changed:
                self._digests.append((number, sum_))
                self._changed.notify_all()

    def _frames(self) -> Iterator[bytes]:
        """What goes to its standard input: orders first, then digests, then chunks."""
        flushed = 0.0
        while True:
            with self._changed:
                while True:
                    due = flushed + _FLUSH - time.monotonic()
                    if self._orders or self._data or self._closed or (self._digests and due <= 0):
                        break
                    self._changed.wait(due if self._digests else None)
                if self._closed:
                    return
                pieces, self._orders = self._orders, []
                if self._digests:
                    first, sums = self._digests[0][0], b"".join(sum_ for _, sum_ in self._digests)
                    pieces.append(_HEAD.pack(b"D", 0, first, len(sums)) + sums)
                    self._digests, flushed = [], time.monotonic()
                if not pieces and self._data:
                    pieces.append(self._data.popleft())
                    self._changed.notify_all()
            yield b"".join(pieces)

    # What is fed to it from here

    def feed(self, relay: Relay, wanted: bool) -> None:
        with self._changed:
            self._feeding += 1
            self._data.clear()
            self.sent = 0
            self._changed.notify_all()
        if wanted:
            threading.Thread(target=self._feed, args=(relay, self._feeding), daemon=True).start()

    def _feed(self, relay: Relay, order: int) -> None:
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._take_at is not None or self._feeding != order)
                at = self._take_at
            if at is None or self._feeding != order:
                return
            packer = Packer()
            with contextlib.closing(relay.chunks(at)) as chunks:  # type: ignore[type-var]
                for number, chunk in chunks:
                    relay.announce(number, chunk)
                    waited = self._wait(relay, number, order)
                    if self._feeding != order:
                        return
                    packed, data = packer.pack(chunk, waited and relay.packs())
                    head = _HEAD.pack(b"C", _ZSTD if packed else 0, number, len(data))
                    with self._changed:
                        if self._feeding != order:
                            return
                        self._data.append(head + data)
                        self.sent = number + 1
                        self._changed.notify_all()
        except Exception as error:
            if self._feeding == order:
                relay.failed(error)

    def _wait(self, relay: Relay, number: int, order: int) -> bool:
        """Wait until a chunk may go; return whether that took time."""

        def may() -> bool:
            return self._feeding != order or (
                number < self.limit and number - self.at < relay.row(self.host) and len(self._data) < 2
            )

        with self._changed:
            if may():
                return False
            while not may():
                self._changed.wait(0.05)
            return True
