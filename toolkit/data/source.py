"""Data set on this machine: the content of its folder, and its shards as payload for the hosts."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.protocol.chunks import CHUNK
from toolkit.protocol.shards import Content, Entry, Shard, pack
from toolkit.transfer.payload import Segment, cut

_PIECE = 2**20
# Prefix of toolkit's files next to data on a host; a staged folder can be the source of another transfer.
_OURS = ".toolkit-"
_AGAIN = "stop writing to the data, and run the same command again  # sends only the missing data"
_UNREADABLE = "in hosts.yaml: set source: to a readable file or folder  # or make the source readable"


def read_content(source: Path) -> Content:
    """Return the content of a folder or a file: names, modes, sizes and times; no file is opened.

    Folders, files and links are sent; links as links. Everything else, for example a socket, is skipped.

    Raises:
        ToolkitError: the source does not exist, or a folder in it cannot be read.
    """
    try:
        if source.is_dir():
            return pack(sorted(_walk(str(source), ""), key=lambda entry: str(entry[1])))
        return pack([_file(source.name, source.stat())])
    except OSError as error:
        what = f"cannot read the data {error.filename or source}: {error.strerror or error}"
        raise ToolkitError(what, _UNREADABLE) from error


def _walk(folder: str, prefix: str) -> Iterator[Entry]:
    with os.scandir(folder) as found:
        for entry in found:
            path = prefix + entry.name
            if not prefix and entry.name.startswith(_OURS):
                continue
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode):
                yield ["d", path, about.st_mode & 0o777]
                yield from _walk(entry.path, f"{path}/")
            elif stat.S_ISLNK(about.st_mode):
                yield ["l", path, os.readlink(entry.path)]  # noqa: PTH115
            elif stat.S_ISREG(about.st_mode):
                yield _file(path, about)


def _file(path: str, about: os.stat_result) -> Entry:
    return ["f", path, about.st_mode & 0o777, _mtime(about), about.st_size]


def _mtime(about: os.stat_result) -> int:
    """Return the time of a file in nanoseconds, limited to 64 bits: a host accepts the years 1677 to 2262."""
    return max(-(2**63), min(about.st_mtime_ns, 2**63 - 1))


def read_shard(source: Path, shard: Shard) -> Iterator[bytes]:
    """Yield a shard's bytes, in pieces of arbitrary length.

    Raises:
        ToolkitError: a file cannot be read, or has changed since the content was read.
    """
    root = str(source if source.is_dir() else source.parent)
    yield shard.head
    for entry in json.loads(shard.entries):
        if entry[0] in "fp":
            at, length = entry[5:] if entry[0] == "p" else (0, entry[4])
            yield from _read(os.path.join(root, entry[1]), entry, at, length)  # noqa: PTH118 - a million times


def _read(path: str, entry: Entry, at: int, left: int) -> Iterator[bytes]:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            file.seek(at)
            while left:
                data = file.read(min(left, _PIECE))
                if not data:
                    break
                left -= len(data)
                yield data
            about = os.fstat(file.fileno())
    except OSError as error:
        fix = _UNREADABLE if isinstance(error, PermissionError) else _AGAIN
        raise ToolkitError(f"cannot read the data {path}: {error.strerror or error}", fix) from error
    if left or (_mtime(about), about.st_size) != (entry[3], entry[4]):
        raise ToolkitError(f"{path} has changed since toolkit made the plan", _AGAIN)


@dataclass(frozen=True)
class _Piece:
    """One shard in the sequence of chunks."""

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
    """Numbers of the shards that a host needs, their destination folder, and its record."""

    numbers: frozenset[int]
    into: str
    account: str


class DataPayload:
    """A data set as a payload; the need of a host is a ``Need``.

    Shards are ordered by the number of hosts that need them, fewest first. Usually one host needs all shards
    that another one needs; then both need the sequence from some shard to its end. A host passes on shards in
    between even if it already has them.
    """

    def __init__(self, source: Path, content: Content) -> None:
        self._source, self._content = source, content
        self._row: tuple[_Piece, ...] = ()

    def lay_out(self, needs: Mapping[str, Hashable]) -> dict[str, tuple[Segment, ...]]:
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

    def order(self, need: Hashable, segments: tuple[Segment, ...]) -> dict[str, object]:
        own = _need(need)
        mine = (
            at for at, one in enumerate(segments) if isinstance(one, _Piece) and one.number in own.numbers
        )
        held = sum(s.size for number, s in enumerate(self._content.shards) if number not in own.numbers)
        return {"into": own.into, "account": own.account, "writes": list(mine), "held": held}

    def prime(self, need: Hashable) -> None:
        """Do nothing: files need no preparation."""

    def chunks(self, number: int) -> Generator[tuple[int, bytes], None, None]:
        for one in self._row:
            if one.end > number:
                for at, chunk in enumerate(cut(read_shard(self._source, one.shard)), one.first):
                    if at >= number:
                        yield at, chunk

    def settle(self) -> None:
        """Do nothing: ``prime`` started nothing."""


def _need(need: Hashable) -> Need:
    assert isinstance(need, Need)
    return need
