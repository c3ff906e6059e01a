"""A data set as shards: what travels, what is kept account of, and what is sent again when a file changes.

A shard is small files together, or a piece of a large one. Where one ends is told by the names and sizes of
the files near by, so that a file which changes, comes or goes alters its own shard and few beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

# Bytes: small files are joined to at least the first and at most the second; a larger file goes in pieces.
LEAST, MOST, PIECE = 2**23, 2**25, 2**24
# What an entry counts besides its content, so that a million empty files are not one shard.
_ENTRY = 256

if TYPE_CHECKING:
    Entry = list[Any]
else:
    Entry = list  # hosts can have Python 3.8


@dataclass(frozen=True)
class Shard:
    """One shard: its name, which is made of its entries; these as they travel; the bytes of all of it.

    ``room``: bytes that its files take.
    """

    name: str
    entries: bytes = field(repr=False)
    size: int
    room: int

    @property
    def head(self) -> bytes:
        """What comes before the contents."""
        return len(self.entries).to_bytes(4, "big") + self.entries


@dataclass(frozen=True)
class Content:
    """What a data set holds.

    Args:
        identity: 32 hexadecimal digits, equal for equal names, modes, sizes and times of all files.
        files, size: how many files and links, and the bytes in them.
    """

    identity: str
    files: int
    size: int
    shards: tuple[Shard, ...] = field(repr=False)


def pack(entries: Iterable[Entry]) -> Content:
    """Return a data set's content.

    Args:
        entries: ``["d", path, mode]``, ``["l", path, target]`` and ``["f", path, mode, mtime_ns, size]``,
            by path; paths relative, bytes that are no UTF-8 as surrogates.
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
    """Whether a shard may end behind a file: on average once in ``LEAST`` bytes."""
    drawn = hashlib.blake2b(path.encode(errors="surrogateescape"), digest_size=4).digest()
    return int.from_bytes(drawn, "big") * LEAST < weight << 32


def _shard(entries: list[Entry]) -> Shard:
    text = json.dumps(entries, separators=(",", ":")).encode()
    sizes = [entry[-1] for entry in entries if entry[0] in "fp"]
    # A file takes whole blocks, a folder at least one.
    room = sum(-(-size // 4096) * 4096 for size in sizes) + 4096 * sum(entry[0] == "d" for entry in entries)
    return Shard(shard_name(text), text, 4 + len(text) + sum(sizes), room)


def shard_name(entries: bytes) -> str:
    """Return the name of a shard, by its entries as they are sent."""
    return hashlib.sha256(entries).hexdigest()[:32]
