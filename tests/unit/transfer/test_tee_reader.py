"""One reading for several takers: what is read how often, what is kept, who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator

import pytest

from tests.unit.container_world import PATIENCE_S
from toolkit.transfer.tee_reader import LEAST, PIECE, Readings, Tap

SIZE = 40 * PIECE + 17


class Source:
    """Bytes by key; counts how often each is read, and what was given of it."""

    def __init__(self) -> None:
        self.begun: list[Hashable] = []
        self.given = 0
        self.closed = 0
        self.breaks_at = -1

    def __call__(self, key: Hashable) -> Iterator[bytes]:
        self.begun.append(key)
        whole = content(key)
        try:
            for at in range(0, len(whole), 100_000):
                if 0 <= self.breaks_at <= at:
                    raise ValueError("broken")
                self.given = at + 100_000
                yield whole[at : at + 100_000]
        finally:
            self.closed += 1


def content(key: Hashable) -> bytes:
    return (str(key).encode() + bytes(range(256))) * (SIZE // 256 + 1)


def take(tap: Tap, pieces: int) -> bytes:
    return b"".join(next(tap) for _ in range(pieces))


def test_takers_at_one_pace_share_a_reading() -> None:
    source = Source()
    readings = Readings(source)
    taps = [readings.tap("x") for _ in range(3)]
    got = [b"", b"", b""]
    for pieces in zip(*taps, strict=True):
        got = [have + piece for have, piece in zip(got, pieces, strict=True)]
    assert got == [content("x")] * 3 and source.begun == ["x"] and source.closed == 1


def test_who_comes_later_takes_what_is_still_here() -> None:
    source = Source()
    readings = Readings(source)
    first = readings.tap("x")
    head = take(first, 5)
    assert b"".join(readings.tap("x")) == head + b"".join(first) == content("x")
    # Also after the end, when no other reader takes from it.
    assert b"".join(readings.tap("x")) == content("x")
    assert b"".join(readings.tap("y")) == content("y") and source.begun == ["x", "y"]


def test_a_slow_one_reads_again_and_holds_nobody_back() -> None:
    source = Source()
    readings = Readings(source, budget=2 * LEAST)
    slow, quick = readings.tap("x"), readings.tap("x")
    head = take(slow, 1)
    assert b"".join(quick) == content("x") and source.begun == ["x"]
    kept = sum(len(piece) for one in readings.live for piece in one.pieces)
    assert kept <= 2 * LEAST + PIECE
    assert head + b"".join(slow) == content("x") and source.begun == ["x", "x"]
    assert source.closed == 2


def test_what_cannot_be_read_twice_goes_at_the_pace_of_the_slowest() -> None:
    source = Source()
    readings = Readings(source, budget=LEAST, repeatable=False)
    slow, quick = readings.tap(None), readings.tap(None)
    head, got = take(slow, 1), b""
    thread = threading.Thread(target=lambda: results.append(b"".join(quick)))
    results: list[bytes] = []
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and source.given <= LEAST + 3 * PIECE
    got = head + b"".join(slow)
    thread.join(PATIENCE_S)
    assert got == results[0] == content(None) and source.begun == [None]


def test_a_taker_that_gives_up_sets_the_others_free() -> None:
    source = Source()
    readings = Readings(source, budget=LEAST, repeatable=False)
    slow, quick = readings.tap(None), readings.tap(None)
    take(slow, 1)
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append(b"".join(quick)))
    thread.start()
    thread.join(0.1)
    slow.close()
    thread.join(PATIENCE_S)
    assert results == [content(None)]


def test_an_error_reaches_all_and_the_next_tries_anew() -> None:
    source = Source()
    source.breaks_at = 10 * PIECE
    readings = Readings(source)
    one, two = readings.tap("x"), readings.tap("x")
    take(one, 1), take(two, 1)
    for tap in (one, two):
        with pytest.raises(ValueError, match="broken"):
            list(tap)
    assert source.begun == ["x"]
    source.breaks_at = -1
    assert b"".join(readings.tap("x")) == content("x") and source.begun == ["x", "x"]


def test_the_end_of_all() -> None:
    source = Source()
    readings = Readings(source)
    tap = readings.tap("x")
    take(tap, 2)
    readings.close()
    assert source.closed == 1
    with pytest.raises(ConnectionAbortedError):
        next(tap)
    other = Readings(source).tap("x")
    take(other, 1)
    other.close()
    assert source.closed == 2
    with pytest.raises(ConnectionAbortedError):
        next(other)
