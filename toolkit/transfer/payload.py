"""What the hosts of a line take from each other: a row of chunks in stretches, each put away as a whole."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Mapping
from typing import Protocol

from toolkit.protocol.chunks import CHUNK


class Stretch(Protocol):
    """Chunks from ``first`` up to, not including, ``end``: one archive for an engine, one shard of a set."""

    @property
    def first(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes in it."""


class Cargo(Protocol):
    """One thing that travels to several hosts; what a host needs of it is the kind's own affair."""

    def lay_out(self, needs: Mapping[str, Hashable]) -> dict[str, tuple[Stretch, ...]]:
        """Number the chunks, and return each host's stretches: all from the first that it needs to the end.

        Args:
            needs: by host. At least one host needs the row's last stretch.
        """

    def order(self, need: Hashable, stretches: tuple[Stretch, ...]) -> dict[str, object]:
        """Return what a host is told about putting it away, on top of which chunks there are."""

    def prime(self, need: Hashable) -> None:
        """Begin to read what a host needs, while the hosts meet; for those for whom that takes long."""

    def chunks(self, number: int) -> Generator[tuple[int, bytes], None, None]:
        """Yield chunks with their numbers, from one on; the same bytes each time."""

    def settle(self) -> None:
        """End what ``prime`` began, now that somebody reads."""


def cut(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield bytes as chunks, the last one as short as it is."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= CHUNK:
            yield bytes(buffer[:CHUNK])
            del buffer[:CHUNK]
    if buffer:
        yield bytes(buffer)
