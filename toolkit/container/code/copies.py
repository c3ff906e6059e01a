"""Copies of a tree: made file by file, and brought from one tree to the next.

A tree is a list of entries: path, kind, mode, size, mtime in nanoseconds, sha256 or a link's target. Ranks
can write where copies are kept, so nothing but its content tells that a copy is the tree.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from typing import Any

from toolkit.container.code.packs import PIECE, Packs
from toolkit.protocol.code_tree import bucket_digests, raw, tree_digest


def digest_of(entries: list[list[Any]], number: int) -> str:
    """Return the identity of a tree whose entries are in so many buckets."""
    return tree_digest(bucket_digests(entries, number))


def make(code: bytes, entry: list[Any], packs: Packs, folders: set[bytes]) -> None:
    """Make one entry of a copy."""
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
    """Remove from a copy what differs from the tree; return the entries that the copy lacks.

    Every file is read and compared by its sha256: mode, size and times prove nothing about a file in a
    folder that ranks can write, and neither does a list that is kept beside it.

    Raises:
        OSError: the copy holds something that cannot be removed, or is no folder.
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
    """Return whether a file or link is what the entry says."""
    _, kind, mode, size, mtime, content = entry
    with suppress(OSError):
        if kind == "l":
            return os.readlink(path) == raw(content)
        # Without waiting for whoever writes into a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(descriptor)
            if (about.st_mode, about.st_size, about.st_mtime_ns) != (0o100000 | mode, size, mtime):
                return False
            sha = hashlib.sha256()
            while size and (data := os.read(descriptor, min(size, PIECE))):
                sha.update(data)
                size -= len(data)
            # A file with a second name could be changed by that name later.
            return about.st_nlink == 1 and sha.hexdigest() == content
        finally:
            os.close(descriptor)
    return False
