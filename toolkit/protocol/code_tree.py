"""Content digest of a tree of code: entries in buckets, a digest of each bucket, and a digest of the tree."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Any


def raw(path: str) -> bytes:
    """Return a path as bytes of the file system; surrogates in the text become the original bytes."""
    return path.encode("utf-8", "surrogateescape")


def bucket_of(path: str, number: int) -> int:
    """Return the bucket of a path, out of ``number`` buckets."""
    return zlib.crc32(raw(path)) % number


def bucket_digests(entries: Iterable[Sequence[Any]], number: int) -> tuple[bytes, ...]:
    """Return the sha256 of each bucket's entries.

    Args:
        entries: path, kind, mode, size, mtime in nanoseconds, sha256 or a link's target; by path.
    """
    hashes = [hashlib.sha256() for _ in range(number)]
    for path, kind, mode, size, mtime, content in entries:
        name = raw(path)
        hashes[zlib.crc32(name) % number].update(name + raw(f"\0{kind} {mode:o} {size} {mtime} {content}\0"))
    return tuple(one.digest() for one in hashes)


def tree_digest(digests: Sequence[bytes]) -> str:
    """Return a tree's content digest from the digests of its buckets."""
    return hashlib.sha256(b"%d:" % len(digests) + b"".join(digests)).hexdigest()
