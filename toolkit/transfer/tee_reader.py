"""Shared reading: one reading serves all concurrent consumers of the same bytes, in bounded memory.

The first consumer that needs the next piece reads it for all. The last pieces are kept for the others. A
consumer that falls behind them gets a reading of its own, so a slow host does not delay the others. A
complete reading that is still in memory also serves later consumers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator

PIECE = 2**18
# Bytes that all readings keep together, and the minimum for one reading.
BUDGET, LEAST = 2**27, 2**21

Start = Callable[[Hashable], Iterator[bytes]]


class Readings:
    """Readings by key.

    Args:
        start: starts a reading of a key, with the same bytes every time.
        budget: bytes that all readings keep together.
        repeatable: whether a second reading returns the same bytes; otherwise all consumers run at the rate
            of the slowest one.
    """

    def __init__(self, start: Start, budget: int = BUDGET, repeatable: bool = True) -> None:
        self.start, self.budget, self.repeatable = start, budget, repeatable
        self.changed = threading.Condition()
        self.live: list[_Reading] = []
        self.closed = False

    def tap(self, key: Hashable) -> Tap:
        """Return the bytes of a key for one consumer, at the consumer's own rate."""
        return Tap(self, key)

    def keep(self) -> int:
        """Bytes that one reading can keep."""
        return max(LEAST, self.budget // max(1, sum(bool(reading.taps) for reading in self.live)))

    def trim(self, reading: _Reading) -> None:
        """Discard pieces beyond the budget: unused readings first, then the reading's oldest pieces."""
        kept = sum(one.end - one.begin for one in self.live)
        for idle in [one for one in self.live if not one.taps]:
            if kept > self.budget:
                self.live.remove(idle)
                kept -= idle.end - idle.begin
        needed = reading.end if self.repeatable else reading.slowest()
        while reading.end - reading.begin > self.keep() and reading.begin < needed:
            reading.begin += len(reading.pieces.popleft())

    def join(self, tap: Tap) -> _Reading:
        """Return a reading that still has the next piece of the tap; start one if there is none."""
        for reading in self.live:
            if reading.key == tap.key and reading.begin <= tap.at and not reading.error:
                reading.taps.add(tap)
                return reading
        reading = _Reading(tap.key, self.start(tap.key))
        reading.taps.add(tap)
        self.live.append(reading)
        return reading

    def leave(self, tap: Tap) -> None:
        reading, tap.reading = tap.reading, None
        if reading is None:
            return
        reading.taps.discard(tap)
        whole = reading.done and not reading.begin
        if not reading.taps and not whole and reading in self.live:
            self.live.remove(reading)
            if not reading.pulling:  # the thread that reads now closes it afterwards
                reading.close()

    def close(self) -> None:
        """End all readings; a consumer that still waits for one gets an error."""
        with self.changed:
            self.closed = True
            for reading in self.live:
                if not reading.pulling:
                    reading.close()
            self.live.clear()
            self.changed.notify_all()


class _Reading:
    """One reading of a key: the pieces from offset ``begin`` up to ``end`` are in memory."""

    def __init__(self, key: Hashable, source: Iterator[bytes]) -> None:
        self.key, self.source = key, source
        self.filled = filter(None, source)
        self.pieces: deque[bytes] = deque()
        self.rest = b""
        self.begin = self.end = 0
        self.pulling = self.done = False
        self.error: BaseException | None = None
        self.taps: set[Tap] = set()

    def pull(self) -> bytes:
        """Read the next piece: PIECE bytes, fewer only at the end."""
        parts, size = [self.rest], len(self.rest)
        while size < PIECE:
            data = next(self.filled, b"")
            if not data:
                break
            parts.append(data)
            size += len(data)
        whole = b"".join(parts)
        self.rest = whole[PIECE:]
        return whole[:PIECE]

    def at(self, offset: int) -> bytes:
        # All pieces except the last have the same length.
        return self.pieces[(offset - self.begin) // PIECE]

    def slowest(self) -> int:
        return min((tap.at for tap in self.taps), default=self.end)

    def close(self) -> None:
        close = getattr(self.source, "close", None)
        if close:
            close()


class Tap:
    """Bytes of one key for one consumer; an iterator of pieces."""

    def __init__(self, readings: Readings, key: Hashable) -> None:
        self.readings, self.key = readings, key
        self.reading: _Reading | None = None
        self.at = 0
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        readings = self.readings
        while True:
            with readings.changed:
                if self.closed or readings.closed:
                    readings.leave(self)
                    raise ConnectionAbortedError("the reader of the data stream was closed")
                reading = self._current()
                if self.at < reading.end:
                    piece = reading.at(self.at)
                    self.at += len(piece)
                    readings.changed.notify_all()
                    return piece
                if reading.error:
                    readings.leave(self)
                    raise reading.error
                if reading.done:
                    readings.leave(self)
                    raise StopIteration
                if reading.pulling or self._must_wait(reading):
                    readings.changed.wait()
                    continue
                reading.pulling = True
            self._pull(reading)

    def prime(self) -> None:
        """Start the reading, so that the first piece is available when it is needed."""
        readings = self.readings
        with readings.changed:
            if self.closed or readings.closed:
                return
            reading = self._current()
            if reading.pulling or reading.done or reading.error or self.at < reading.end:
                return
            reading.pulling = True
        self._pull(reading)

    def _current(self) -> _Reading:
        if self.reading is not None and self.at < self.reading.begin:
            self.readings.leave(self)
        if self.reading is None:
            self.reading = self.readings.join(self)
        return self.reading

    def _must_wait(self, reading: _Reading) -> bool:
        if self.readings.repeatable:
            return False
        return reading.end - reading.slowest() >= self.readings.keep()

    def _pull(self, reading: _Reading) -> None:
        readings = self.readings
        piece, error = b"", None
        try:
            piece = reading.pull()
        except BaseException as problem:
            error = problem
        with readings.changed:
            reading.pulling = False
            if reading not in readings.live:
                reading.close()
            reading.error = error
            reading.done = not piece and not error
            if piece:
                reading.pieces.append(piece)
                reading.end += len(piece)
            readings.trim(reading)
            readings.changed.notify_all()

    def close(self) -> None:
        """Stop receiving; a reading without consumers ends."""
        with self.readings.changed:
            self.closed = True
            self.readings.leave(self)
            self.readings.changed.notify_all()
