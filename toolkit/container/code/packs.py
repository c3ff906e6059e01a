"""File contents on disk by their digest, and copies of a tree assembled from them.

Packs are written once; other values are read completely or not at all. A tree is a list of entries: path,
kind, mode, size, mtime in nanoseconds, sha256 or a link's target. Ranks can write to the copies, so only the
content of a copy shows that it matches the tree.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from toolkit.protocol.code_tree import bucket_digests, raw, tree_digest

PIECE = 2**20
MOST = 2**28  # most bytes of a value


class Spoiled(Exception):
    """A pack does not match its index."""


def open_file(path: str, flags: int) -> int:
    """Open a file that ranks can replace, without following a link or blocking on a pipe.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def save(path: str, value: object) -> None:
    """Write a value with its checksum; a reader sees all of it or nothing."""
    text = json.dumps(value, separators=(",", ":")).encode()
    fresh = f"{path}.{os.urandom(4).hex()}"
    try:
        with open(fresh, "wb") as file:
            file.write(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        os.rename(fresh, path)
    except BaseException:
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise


def load(path: str) -> Any:
    """Return a value that `save` wrote, None if it is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError), open(path, "rb", opener=open_file) as file:
        head, _, text = file.read(MOST).partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() == head:
            return json.loads(text)
    return None


class Packs:
    """Stored contents by their sha256."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.indexes: dict[str, list[Any]] = {}
        self.where: dict[str, tuple[str, int, int]] = {}
        self._open: dict[str, int] = {}
        for name in sorted(os.listdir(folder)):
            stem, _, ending = name.partition(".")
            if ending == "json":
                self.indexes[stem] = _rows(load(f"{folder}/{name}"))
                for content, offset, size in self.indexes[stem]:
                    self.where[content] = (stem, offset, size)

    def pieces(self, content: str) -> Iterator[bytes]:
        """Yield the bytes of a content; its checksum is verified at the end."""
        stem, offset, size = self.where[content]
        sha = hashlib.sha256()
        with suppress(OSError):
            if stem not in self._open:
                self._open[stem] = open_file(f"{self.folder}/{stem}.pack", os.O_RDONLY)
            while size:
                data = os.pread(self._open[stem], min(size, PIECE), offset)
                if not data:
                    break
                offset, size = offset + len(data), size - len(data)
                sha.update(data)
                yield data
        if size or sha.hexdigest() != content:
            self.drop(stem)
            raise Spoiled(content)

    def drop(self, stem: str) -> None:
        """Remove a pack; its contents are requested again when needed."""
        for ending in ("json", "pack"):
            with suppress(OSError):
                os.unlink(f"{self.folder}/{stem}.{ending}")
        self.indexes.pop(stem, None)
        self.where = {content: place for content, place in self.where.items() if place[0] != stem}


def _rows(index: Any) -> list[Any]:
    """Return the rows of an index: content, offset, size; empty if the index is invalid."""
    rows = index if isinstance(index, list) else []
    for row in rows:
        if not isinstance(row, list) or [type(cell) for cell in row] != [str, int, int]:
            return []
        if not (0 <= row[1] < 2**62 and 0 <= row[2] < 2**62):
            return []
    return rows


class PackWriter:
    """Writer of a pack in a private folder; `keep` moves it to the other packs."""

    def __init__(self, folder: str) -> None:
        self.stem = os.urandom(8).hex()
        self.path = f"{folder}/{self.stem}"
        self.index: list[list[Any]] = []
        self._file = open(self.path, "xb")  # noqa: SIM115 - `keep` closes it
        self._start = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def added(self, content: str) -> None:
        """Register the bytes written since the last call as this content."""
        end = self._file.tell()
        self.index.append([content, self._start, end - self._start])
        self._start = end

    def keep(self, packs: str) -> None:
        self._file.close()
        os.rename(self.path, f"{packs}/{self.stem}.pack")
        save(f"{packs}/{self.stem}.json", self.index)


def digest_of(entries: list[list[Any]], number: int) -> str:
    """Return the digest of a tree whose entries are in this number of buckets."""
    return tree_digest(bucket_digests(entries, number))


def make(code: bytes, entry: list[Any], packs: Packs, folders: set[bytes]) -> None:
    """Create one entry of a copy."""
    path, kind, mode, _, mtime, content = entry
    target = code + b"/" + raw(path)
    parent = os.path.dirname(target)
    if parent not in folders:
        os.makedirs(parent, exist_ok=True)
        folders.add(parent)
    if kind == "l":
        os.symlink(raw(content), target)
        return
    descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode | 0o200)
    try:
        for data in packs.pieces(content):
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        if not mode & 0o200:
            os.fchmod(descriptor, mode)
        os.utime(descriptor, ns=(mtime, mtime))
    except BaseException:
        os.unlink(target)
        raise
    finally:
        os.close(descriptor)


def survey(code: bytes, entries: list[list[Any]]) -> list[list[Any]]:
    """Remove entries of a copy that differ from the tree; return the missing entries.

    Every file is read and compared by its sha256: mode, size and times prove nothing about a file in a
    folder that ranks can write, and neither does a list that is kept beside it.

    Raises:
        OSError: the copy contains an entry that cannot be removed, or is not a folder.
    """
    wanted = {entry[0]: entry for entry in entries}
    lacks = dict(wanted)
    inner: list[bytes] = []
    start = len(code) + 1

    def walk(folder: bytes) -> None:
        with os.scandir(folder) as found:
            for one in found:
                if one.is_dir(follow_symlinks=False):
                    if one.stat(follow_symlinks=False).st_mode != 0o40755:
                        os.chmod(one.path, 0o755)
                    walk(one.path)
                    inner.append(one.path)
                    continue
                path = one.path[start:].decode("utf-8", "surrogateescape")
                entry = wanted.get(path)
                if entry and _is(one.path, entry):
                    del lacks[path]
                else:
                    os.unlink(one.path)

    if not stat.S_ISDIR(os.lstat(code).st_mode):
        raise NotADirectoryError(code)
    walk(code)
    parents: set[str] = set()
    for path in wanted:
        parent = path.rpartition("/")[0]
        while parent and parent not in parents:
            parents.add(parent)
            parent = parent.rpartition("/")[0]
    for folder in inner:  # the inner ones first
        if folder[start:].decode("utf-8", "surrogateescape") not in parents:
            os.rmdir(folder)
    return [entry for path, entry in lacks.items()]


def _is(path: bytes, entry: list[Any]) -> bool:
    """Return whether a file or link matches its entry."""
    _, kind, mode, size, mtime, content = entry
    with suppress(OSError):
        if kind == "l":
            return os.readlink(path) == raw(content)
        # Do not block on a pipe without a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(descriptor)
            if (about.st_mode, about.st_size, about.st_mtime_ns) != (0o100000 | mode, size, mtime):
                return False
            sha = hashlib.sha256()
            while size and (data := os.read(descriptor, min(size, PIECE))):
                sha.update(data)
                size -= len(data)
            # A file with a second hard link could be changed through it later.
            return about.st_nlink == 1 and sha.hexdigest() == content
        finally:
            os.close(descriptor)
    return False
