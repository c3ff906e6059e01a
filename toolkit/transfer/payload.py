"""Payload of a transfer chain: a sequence of chunks in segments, each of which a host stores as a unit."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Mapping
from typing import Protocol

from toolkit.protocol.chunks import CHUNK


class Segment(Protocol):
    """Segment: chunks from ``first`` up to, not including, ``end``, such as an archive or a data shard."""

    @property
    def first(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def size(self) -> int:
        """Size in bytes."""


class Payload(Protocol):
    """Payload for several hosts; the type of a host's need depends on the kind of payload."""

    def lay_out(self, needs: Mapping[str, Hashable]) -> dict[str, tuple[Segment, ...]]:
        """Number the chunks, and return each host's segments: all from the first that it needs to the end.

        Args:
            needs: by host. At least one host needs the last segment.
        """

    def order(self, need: Hashable, segments: tuple[Segment, ...]) -> dict[str, object]:
        """Return orders to a host for storing the segments, in addition to their chunk numbers."""

    def prime(self, need: Hashable) -> None:
        """Start to read what a host needs while the hosts connect, if the first read takes long."""

    def chunks(self, number: int) -> Generator[tuple[int, bytes], None, None]:
        """Yield numbered chunks, starting at chunk ``number``; the same bytes in every call."""

    def settle(self) -> None:
        """Release what ``prime`` started, after the first reader has started."""


def cut(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield bytes as chunks; only the last chunk can be shorter."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= CHUNK:
            yield bytes(buffer[:CHUNK])
            del buffer[:CHUNK]
    if buffer:
        yield bytes(buffer)
