"""A data set as shards: the units of transfer, of accounting, and of resending after a change.

A shard is a group of small files, or a piece of a large file. The names and sizes of neighboring files
determine the end of a shard, so a changed, new or removed file alters only its own shard and few others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

# Bytes: small files are joined to at least the first and at most the second; a larger file goes in pieces.
LEAST, MOST, PIECE = 2**23, 2**25, 2**24
# Bytes that an entry counts in addition to its content, so that a million empty files are not one shard.
_ENTRY = 256

if TYPE_CHECKING:
    Entry = list[Any]
else:
    Entry = list  # hosts can have Python 3.8


@dataclass(frozen=True)
class Shard:
    """One shard: its name, derived from its entries; its entries as sent; its size in bytes.

    ``room``: bytes that its files take on disk.
    """

    name: str
    entries: bytes = field(repr=False)
    size: int
    room: int

    @property
    def head(self) -> bytes:
        """The bytes in front of the contents."""
        return len(self.entries).to_bytes(4, "big") + self.entries


@dataclass(frozen=True)
class Content:
    """The content of a data set.

    Args:
        identity: content digest: 32 hexadecimal digits, from names, modes, sizes and times of all files.
        files, size: number of files and links, and their bytes.
    """

    identity: str
    files: int
    size: int
    shards: tuple[Shard, ...] = field(repr=False)


def pack(entries: Iterable[Entry]) -> Content:
    """Return a data set's content.

    Args:
        entries: ``["d", path, mode]``, ``["l", path, target]`` and ``["f", path, mode, mtime_ns, size]``,
            by path; paths are relative, bytes that are not UTF-8 are surrogates.
    """
    shards: list[Shard] = []
    together: list[Entry] = []
    weight = files = size = 0
    for entry in entries:
        own = entry[4] if entry[0] == "f" else 0
        files, size = files + (entry[0] != "d"), size + own
        if own > MOST:
            shards += (_shard([["p", *entry[1:], at, min(PIECE, own - at)]]) for at in range(0, own, PIECE))
            continue
        if weight and weight + own > MOST:
            shards.append(_shard(together))
            together, weight = [], 0
        together.append(entry)
        weight += own + _ENTRY
        if weight >= LEAST and _ends(entry[1], own + _ENTRY):
            shards.append(_shard(together))
            together, weight = [], 0
    if together:
        shards.append(_shard(together))
    names = "\n".join(sorted(shard.name for shard in shards))
    return Content(shard_name(names.encode()), files, size, tuple(shards))


def _ends(path: str, weight: int) -> bool:
    """Return whether a shard can end behind a file: on average once in ``LEAST`` bytes."""
    drawn = hashlib.blake2b(path.encode(errors="surrogateescape"), digest_size=4).digest()
    return int.from_bytes(drawn, "big") * LEAST < weight << 32


def _shard(entries: list[Entry]) -> Shard:
    text = json.dumps(entries, separators=(",", ":")).encode()
    sizes = [entry[-1] for entry in entries if entry[0] in "fp"]
    # A file takes whole blocks, a folder at least one.
    room = sum(-(-size // 4096) * 4096 for size in sizes) + 4096 * sum(entry[0] == "d" for entry in entries)
    return Shard(shard_name(text), text, 4 + len(text) + sum(sizes), room)


def shard_name(entries: bytes) -> str:
    """Return the name of a shard, from its entries as sent."""
    return hashlib.sha256(entries).hexdigest()[:32]
