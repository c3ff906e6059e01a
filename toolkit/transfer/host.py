"""One host of a transfer: the commands that start its program, the orders to it and its reports."""

from __future__ import annotations

import base64
import json
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from enum import Enum

from toolkit.core.answers import LineStream, answer_of
from toolkit.core.command import Command, command, script
from toolkit.core.container import CONFINED
from toolkit.core.host_programs import packed
from toolkit.core.runner import Runner
from toolkit.errors import ToolkitError, Unreachable
from toolkit.protocol.chunks import CHUNK, HEAD
from toolkit.protocol.decode import decode_json
from toolkit.protocol.relay import RelayMessage
from toolkit.transfer.keys import RelayKey
from toolkit.transfer.payload import Segment
from toolkit.transfer.schedule import HERE, Line

# Bytes done, bytes in all.
Advance = Callable[[int, int], None]

# Seconds until the program on a host answers: the others wait only a few seconds for it (relay.py). Seconds
# until it listens: all hosts wait.
STARTED, LISTENS = 60.0, 20.0
# Seconds between two messages that contain only digests.
_FLUSH = 0.1
# Reports of a host that wait to be handled; a host sends about ten in a second.
_MOST_REPORTS = 4096
_AGAIN = "run the same command again"


@dataclass(frozen=True)
class Brought:
    """Result of a transfer on one host.

    Args:
        segments: the segments that the host has stored.
        refused: error about a segment that could not be stored; empty if all were stored.
        wire: bytes received, as compressed.
        fed: bytes of those that this machine sent.
        seconds: from the start of the chain to the last chunk.
        giver: host that sent the last chunk, empty for this machine.
        note: remark about the route of the chunks.
    """

    segments: tuple[Segment, ...]
    refused: str = ""
    wire: int = 0
    fed: int = 0
    seconds: float = 0.0
    giver: str = HERE
    note: str = ""


class Obstacle(Enum):
    """An obstacle that keeps a host from a transfer."""

    LATE = "the transfer to the other hosts had already started"
    NO_PYTHON = "the host has no Python that can run the transfer program"
    FAILED = "the transfer program did not start"


@dataclass(frozen=True)
class Declined:
    """A host that cannot take part, with the reason for users."""

    obstacle: Obstacle
    reason: str


@dataclass
class _Load:
    status: int
    output: str


class Member:
    """One host of a transfer: orders to it, reports from it, chunks for it."""

    def __init__(
        self,
        runner: Runner,
        address: str,
        need: Hashable,
        advance: Advance,
        wake: Callable[[], None],
    ) -> None:
        self.runner, self.address, self.need, self._advance, self._wake = (
            *(runner, address, need),
            *(advance, wake),
        )
        self.host = runner.name
        self.segments: tuple[Segment, ...] = ()
        self._total = 0
        self.zstd, self.port = False, 0
        self.at = self.limit = self.sent = self.wire = 0
        self.fed = 0
        self._best = (0, 0)  # the highest `at` and `limit` that count as progress
        self.busy = False  # it receives less than it could, for a reason of its own
        self.reported_at = 0.0  # time of its last progress report
        self.rate: float | None = None  # recent chunks per second
        self.moved = 0.0  # time of its last chunk
        self.progress = time.monotonic()  # time at which it last received or stored data
        self.giver = HERE
        self.messages: deque[RelayMessage] = deque()
        self.finished, self.ended, self._ready = threading.Event(), threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._loads: dict[int, _Load] = {}
        self._bad = False
        self._lines = LineStream(self.host)
        self.changed = threading.Condition()
        self._orders: list[bytes] = []
        self._digests: list[bytes] = []
        self.data: deque[bytes] = deque()
        self._closed = False
        self._stderr = self._missing = ""
        self.feeding = 0  # incremented by every order to start or stop feeding
        self.take_at: int | None = None

    # The program on the host

    def start(self, program: Command) -> Declined | None:
        """Start the program on the host; return the reason if it is not running, otherwise None."""
        threading.Thread(target=self._run, args=(program,), daemon=True, name=f"relay {self.host}").start()
        self._ready.wait(STARTED)
        if isinstance(self.error, Unreachable):
            raise self.error
        if self._missing:
            return Declined(Obstacle.NO_PYTHON, self._missing)
        if self.ended.is_set():
            what = self.error.what if isinstance(self.error, ToolkitError) else str(self.error)
            return Declined(Obstacle.FAILED, self._stderr.strip().rpartition("\n")[2] or what)
        if self._ready.is_set():
            return None
        reason = f"the transfer program of the host sent no reply within {STARTED:.0f} s"
        return Declined(Obstacle.FAILED, reason)

    def _run(self, command: Command) -> None:
        try:
            result = self.runner.stream(command, self._hear, self._frames())
            self._stderr = result.stderr
            reason = result.stderr.strip().rpartition("\n")[2] or f"exit status {result.status}"
            self.fail(
                ToolkitError(f"the transfer program of the host exited early: {reason}", _AGAIN, self.host)
            )
        except Exception as error:
            self.fail(error)
        finally:
            self.close()  # otherwise its feeder would wait forever
            self.ended.set()
            self._ready.set()
            self.finished.set()
            self._wake()

    def _hear(self, data: bytes) -> None:
        lines = self._lines.take(data)
        for line in lines:
            with answer_of(self.host, "the transfer report"):
                what = decode_json(RelayMessage, line)
            if what.missing is not None:
                self._missing = what.missing
                self._ready.set()
                self.close()  # it reads nothing, so a waiting feeder would not end
            elif what.ready:
                self.zstd = what.zstd
                self._ready.set()
            elif what.port is not None:
                self.port = what.port
            elif what.loaded is not None:
                if what.loaded >= len(self.segments):
                    raise ToolkitError(
                        f"the host reports that it stored segment {what.loaded}, which toolkit did not send",
                        _AGAIN,
                        self.host,
                    )
                self._judge(what.loaded, _Load(what.status, what.said))
            else:
                if what.at is not None and what.limit is not None:
                    self.busy, self.reported_at = what.busy, time.monotonic()
                    self._moved(what.at, what.limit, what.wire)
                if len(self.messages) >= _MOST_REPORTS:
                    raise ToolkitError(
                        "the transfer program of the host sends reports faster than toolkit reads them",
                        _AGAIN,
                        self.host,
                    )
                self.messages.append(what)
        if lines:
            self._wake()

    def _moved(self, at: int, limit: int, wire: int) -> None:
        with self.changed:
            # A chunk counts once: a host whose reports go back and forth makes no progress.
            end = self.segments[-1].end if self.segments else 0
            best = (max(self._best[0], min(at, end)), max(self._best[1], min(limit, 2 * end)))
            if best[0] > self._best[0]:
                self.moved = time.monotonic()
            if best != self._best:
                self.progress, self._best = time.monotonic(), best
            self.at, self.limit, self.wire = at, limit, wire
            self.changed.notify_all()
        if self.segments:
            self._advance(min((at - self.segments[0].first) * CHUNK, self._total), self._total)

    def _judge(self, number: int, load: _Load) -> None:
        self._loads[number] = load
        self.progress = time.monotonic()
        self._bad = self._bad or load.status != 0
        if self._bad or len(self._loads) == len(self.segments):
            self.error = None
            self.finished.set()

    def brought(self, line: Line, started: float) -> Brought:
        """Return the result of a finished host."""
        good = [number for number, load in sorted(self._loads.items()) if not load.status]
        bad = [load.output for _, load in sorted(self._loads.items()) if load.status]
        note = ""
        if self.host in line.direct:
            note = f"received from your machine, not from another host: {line.direct[self.host]}"
        if self.host in line.passed:
            note = f"received after the other hosts: {line.passed[self.host]}"
        put_away = tuple(self.segments[number] for number in good)
        refused = (bad[0].strip() or "the transfer failed without an error message") if bad else ""
        seconds = max(0.0, self.moved - started)
        return Brought(put_away, refused, self.wire, self.fed, seconds, self.giver, note)

    def fail(self, error: Exception) -> None:
        if not self.finished.is_set():
            self.error = error
            self.finished.set()

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.feeding += 1
            self.changed.notify_all()

    # Orders

    def begin(self, key: RelayKey, more: dict[str, object]) -> None:
        self._total = sum(one.size for one in self.segments)
        loads = [(one.first, one.end) for one in self.segments]
        self.order(do="begin", loads=loads, key=key.key, cert=key.cert, ca=key.ca, **more)

    def order(self, **order: object) -> None:
        text = json.dumps(order).encode()
        with self.changed:
            self._orders.append(HEAD.pack(b"J", 0, 0, len(text)) + text)
            if order["do"] == "take":
                self.take_at = None
                if order["host"] is not None:
                    self.giver = str(order["host"])
            self.changed.notify_all()

    def taken(self, giver: object, at: int) -> None:
        """Record that the host has followed an order: its current giver and its next chunk."""
        if giver == self.giver:
            with self.changed:
                self.take_at = at
                self.changed.notify_all()

    def digest(self, number: int, sum_: bytes) -> None:
        if self.segments and number >= self.segments[0].first:
            with self.changed:
                self._digests.append(HEAD.pack(b"D", 0, number, len(sum_)) + sum_)
                self.changed.notify_all()

    def _frames(self) -> Iterator[bytes]:
        """Yield its standard input: orders first, then digests, then chunks."""
        flushed = 0.0
        while True:
            with self.changed:
                while True:
                    due = flushed + _FLUSH - time.monotonic()
                    if self._orders or self.data or self._closed or (self._digests and due <= 0):
                        break
                    self.changed.wait(due if self._digests else None)
                if self._closed:
                    return
                pieces, self._orders = self._orders, []
                if self._digests:
                    pieces += self._digests
                    self._digests, flushed = [], time.monotonic()
                if not pieces and self.data:
                    pieces.append(self.data.popleft())
                    self.changed.notify_all()
            yield b"".join(pieces)


# The programs below run directly on a host, which possibly has no files of toolkit yet.
_START = r"""
no() { echo "{\"missing\": \"$1\"}"; exit; }
command -v python3 >/dev/null || no "the host has no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' || no "the python3 of the host is older than 3.8"
# These variables let `toolkit down` find the program if its connection hangs, and protect the partial images
# of the image that it receives.
TOOLKIT_CLUSTER=$1 TOOLKIT_RELAY=$2 TOOLKIT_LOAD='docker load --quiet'
export TOOLKIT_CLUSTER TOOLKIT_RELAY TOOLKIT_LOAD; shift 2
exec python3 -I -S -c 'import base64, sys, zlib; exec(zlib.decompress(base64.b64decode(sys.argv.pop())))' "$@"
"""
# With the same variables for `toolkit down`; no image has the content digest `data`.
# Arguments: the data folder, its record, the cluster, the fallback image, then USER:GROUP and the network of
# its container. -X utf8: names of files are UTF-8, also if the image sets another locale.
_START_IN = r"""
folder=$1 account=$2 cluster=$3 image=$4 user=$5 network=$6; shift 6; umask 022
TOOLKIT_CLUSTER=$cluster TOOLKIT_RELAY=data; export TOOLKIT_CLUSTER TOOLKIT_RELAY
no() { echo "{\"missing\": \"$1\"}"; exit; }
mkdir -p "$folder" && (umask 077; mkdir -p "$account") || exit
code='import base64, sys, zlib; exec(zlib.decompress(base64.b64decode(sys.argv.pop())))'
if command -v python3 >/dev/null && python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))'; then
  exec python3 -I -S -X utf8 -c "$code" "$@"
fi
docker image inspect "$image" >/dev/null 2>&1 || \
  no "the host has neither python3 3.8 or newer nor the image of the cluster"
exec docker run --rm -i --network "$network" --user "$user" @confined@ \
  --env TOOLKIT_CLUSTER --env TOOLKIT_RELAY --mount "type=bind,source=$folder,target=$folder" \
  --mount "type=bind,source=$account,target=$account" "$image" python3 -I -S -X utf8 -c "$code" "$@"
""".replace("@confined@", " ".join(CONFINED))


def relay_program(cluster: str, identity: str, address: str) -> Command:
    """Return the command that starts relay.py for an image, under the host's own Python.

    It prints ``{"missing": …}`` if there is no Python. Address: reachable from other hosts.
    """
    return script(_START, cluster, identity, address, _compressed("transfer.relay"))


def load_program(cluster: str, identity: str) -> Command:
    """Return the command that loads an archive of this image, with the same variables as relay.py."""
    variables = (f"TOOLKIT_CLUSTER={cluster}", f"TOOLKIT_RELAY={identity}")
    return command("env", *variables, "docker", "load", "--quiet")


def data_program(folder: str, account: str, cluster: str, image: str, user: str, word: str) -> Command:
    """Return the command that starts data_set.py on a data set's folder; see there for ``word``.

    Args:
        folder, account: data folder and its record; created if missing.
        cluster: name by which `toolkit down` finds the program if its connection hangs.
        image: fallback image, whose container runs the program on a host without Python.
        user: the SSH user there, as ``uid:gid``.
    """
    text = _compressed("transfer.data_set")
    return script(_START_IN, folder, account, cluster, image, user, "none", word, folder, account, text)


def data_relay_program(
    folder: str, account: str, cluster: str, image: str, user: str, address: str
) -> Command:
    """Return the command that starts relay.py for a data set; arguments as above."""
    text = _compressed("transfer.relay")
    return script(_START_IN, folder, account, cluster, image, user, "host", address, text)


def _compressed(name: str) -> str:
    """Return a program as one word; it is most of the traffic if few shards are missing."""
    return base64.b64encode(zlib.compress(packed(name).encode(), 9)).decode()
