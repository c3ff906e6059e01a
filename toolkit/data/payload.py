"""A data set as the hosts of a line take it from each other: the shards that any of them lacks, in a row."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.data.source import read_shard
from toolkit.protocol.chunks import CHUNK
from toolkit.protocol.shards import Content, Shard
from toolkit.transfer.payload import Stretch, cut


@dataclass(frozen=True)
class _Piece:
    """One shard in the row of chunks."""

    number: int
    shard: Shard
    first: int

    @property
    def size(self) -> int:
        return self.shard.size

    @property
    def end(self) -> int:
        return self.first + -(-self.size // CHUNK)


@dataclass(frozen=True)
class Need:
    """The shards that a host needs, by their numbers; the folder into which they go, and its account."""

    numbers: frozenset[int]
    into: str
    account: str


class DataCargo:
    """A data set; what a host needs of it is a ``Need``.

    They stand in the row by how many hosts need them, fewest first. Where one host needs all that another
    one does, which is the rule, both need the row from some shard on to its end; a shard in between that a
    host has already goes through its hands to the next.
    """

    def __init__(self, source: Path, content: Content) -> None:
        self._source, self._content = source, content
        self._row: tuple[_Piece, ...] = ()

    def lay_out(self, needs: Mapping[str, Hashable]) -> dict[str, tuple[Stretch, ...]]:
        sets = {host: _need(need).numbers for host, need in needs.items()}
        wanted = sorted(
            frozenset().union(*sets.values()),
            key=lambda number: (sum(number in own for own in sets.values()), number),
        )
        row: list[_Piece] = []
        for number in wanted:
            row.append(_Piece(number, self._content.shards[number], row[-1].end if row else 0))
        self._row = tuple(row)
        return {
            host: self._row[next(at for at, one in enumerate(row) if one.number in own) :]
            for host, own in sets.items()
        }

    def order(self, need: Hashable, stretches: tuple[Stretch, ...]) -> dict[str, object]:
        own = _need(need)
        mine = (
            at for at, one in enumerate(stretches) if isinstance(one, _Piece) and one.number in own.numbers
        )
        return {"into": own.into, "account": own.account, "writes": list(mine)}

    def prime(self, need: Hashable) -> None:
        """Files need no time to begin."""

    def chunks(self, number: int) -> Generator[tuple[int, bytes], None, None]:
        for one in self._row:
            if one.end > number:
                for at, chunk in enumerate(cut(read_shard(self._source, one.shard)), one.first):
                    if at >= number:
                        yield at, chunk

    def settle(self) -> None:
        """Nothing was begun."""


def _need(need: Hashable) -> Need:
    assert isinstance(need, Need)
    return need
