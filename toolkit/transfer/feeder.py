"""Sender of this machine: chunks to the hosts that receive from this machine, and digests to all hosts."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
from collections.abc import Callable, Sequence

from toolkit.protocol.chunks import HEAD, ZSTD
from toolkit.transfer.host import Member
from toolkit.transfer.payload import Payload

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Bound on the chunks in transit to a host that this machine feeds: the number that takes this many seconds.
# A longer queue would delay orders to that host.
_ROW_SECONDS, _ROW_FIRST, _ROW_LEAST, _ROW_MOST = 0.3, 16, 2, 96
# Chunks per second of a link about as fast as compression: 200 MB/s, 1.7 Gb/s.
_QUICK = 800.0
# The fastest useful level: 300 to 450 MB/s on one core, more than most links carry.
_LEVEL = 1
_WORTH = 0.95
# After a chunk that did not shrink, this many chunks are not tried; the number doubles each time.
_SKIP, _MOST = 4, 64


class Packer:
    """Compressor for the chunks of one link; it compresses only chunks that shrink."""

    def __init__(self) -> None:
        self._compress = zstd.compress
        self._skip, self._left = _SKIP, 0

    def pack(self, chunk: bytes, worth: bool) -> tuple[bool, bytes]:
        """Return whether the chunk is compressed, and its bytes.

        Args:
            worth: whether the link needs longer for the chunk than the compression.
        """
        if not worth:
            return False, chunk
        if self._left:
            self._left -= 1
            return False, chunk
        packed = self._compress(chunk, _LEVEL)
        if len(packed) < _WORTH * len(chunk):
            self._skip = _SKIP
            return True, packed
        self._left, self._skip = self._skip, min(2 * self._skip, _MOST)
        return False, chunk


class Supply:
    """Chunks of one transfer.

    Args:
        failed: called with an error of this machine.
    """

    def __init__(self, payload: Payload, failed: Callable[[Exception], None]) -> None:
        self._payload, self._failed = payload, failed
        self._lock = threading.Lock()
        self._members: Sequence[Member] = ()
        # Numbers of chunks whose digest was sent. Feeding can start at any chunk, so the numbers have gaps.
        self._announced: set[int] = set()

    def begin(self, members: Sequence[Member]) -> None:
        """Start to serve these hosts."""
        self._members = members

    def close(self) -> None:
        self._payload.settle()

    def feed(self, member: Member, wanted: bool, rate: Callable[[], float | None]) -> None:
        """Start to send chunks to a host from the chunk that it requested, or stop.

        Args:
            rate: chunks per second that the host received recently, None if unknown.
        """
        with member.changed:
            member.feeding += 1
            order = member.feeding
            member.data.clear()
            member.sent = 0
            member.changed.notify_all()
        if wanted:
            threading.Thread(target=self._feed, args=(member, order, rate), daemon=True).start()

    def _feed(self, member: Member, order: int, rate: Callable[[], float | None]) -> None:
        try:
            with member.changed:
                member.changed.wait_for(lambda: member.take_at is not None or member.feeding != order)
                at = member.take_at
            if at is not None and member.feeding == order:
                self._send(member, order, at, rate)
        except Exception as error:
            if member.feeding == order:
                self._failed(error)

    def _send(self, member: Member, order: int, at: int, rate: Callable[[], float | None]) -> None:
        packer, packs = Packer(), all(one.zstd for one in self._members)
        with contextlib.closing(self._payload.chunks(at)) as chunks:
            for number, chunk in chunks:
                self.close()  # the thread that reads now would keep the reading open
                self._announce(number, chunk)
                waited = _wait(member, order, number, rate)
                worth = waited or (rate() or 0.0) < _QUICK
                packed, data = packer.pack(chunk, worth and packs)
                head = HEAD.pack(b"C", ZSTD if packed else 0, number, len(data))
                with member.changed:
                    if member.feeding != order:
                        return
                    member.data.append(head + data)
                    member.fed += len(head + data)
                    member.sent = number + 1
                    member.changed.notify_all()

    def _announce(self, number: int, chunk: bytes) -> None:
        """Send the digest of a chunk to all hosts, once, before any host receives the chunk."""
        with self._lock:
            if number in self._announced:
                return
            self._announced.add(number)
            sum_ = hashlib.sha256(chunk).digest()
            for member in self._members:
                member.digest(number, sum_)


def _wait(member: Member, order: int, number: int, rate: Callable[[], float | None]) -> bool:
    """Wait until a chunk can be sent; return whether there was a wait."""

    def may() -> bool:
        few = len(member.data) < 2 and number - member.at < _row(rate())
        return member.feeding != order or (few and number < member.limit)

    with member.changed:
        if may():
            return False
        while not may():
            member.changed.wait(0.05)
        return True


def _row(rate: float | None) -> int:
    if rate is None:
        return _ROW_FIRST
    return int(min(max(_ROW_SECONDS * rate, _ROW_LEAST), _ROW_MOST))
