"""Copies of a tree: made file by file, and brought from one tree to the next.

A tree is a list of entries: path, kind, mode, size, mtime in nanoseconds, sha256 or a link's target. Kept of
a copy are rows: the same and, behind it, the ctime and the inode that each file got.
"""

from __future__ import annotations

import os
from typing import Any

from packs import Packs


def raw(path: str) -> bytes:
    """A path as the file system has it; bytes that are no UTF-8 stand as surrogates in it."""
    return path.encode("utf-8", "surrogateescape")


def make(code: bytes, entry: list[Any], packs: Packs, folders: set[bytes]) -> list[Any]:
    """Make one entry of a copy; returns it with the ctime and the inode that it got."""
    path, kind, mode, _, mtime, content = entry
    target = code + b"/" + raw(path)
    parent = os.path.dirname(target)
    if parent not in folders:
        os.makedirs(parent, exist_ok=True)
        folders.add(parent)
    if kind == "l":
        os.symlink(raw(content), target)
        about = os.lstat(target)
        return [*entry, about.st_ctime_ns, about.st_ino]
    descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode | 0o200)
    try:
        for data in packs.pieces(content):
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        if not mode & 0o200:
            os.fchmod(descriptor, mode)
        os.utime(descriptor, ns=(mtime, mtime))
        about = os.fstat(descriptor)
    except BaseException:
        os.unlink(target)
        raise
    finally:
        os.close(descriptor)
    return [*entry, about.st_ctime_ns, about.st_ino]


def survey(code: bytes, rows: list[Any], entries: list[list[Any]]) -> list[list[Any]]:
    """Take out of a copy what is not of the tree or not as it was made; returns the entries that it lacks.

    A file is as it was made when size, times, mode and inode are: nobody but the kernel sets a ctime.
    """
    known = {row[0]: row for row in rows}
    wanted = {entry[0]: entry for entry in entries}
    lacks = dict(wanted)
    inner: list[bytes] = []
    start = len(code) + 1

    def walk(folder: bytes) -> None:
        with os.scandir(folder) as found:
            for one in found:
                about = one.stat(follow_symlinks=False)
                if one.is_dir(follow_symlinks=False):
                    if about.st_mode != 0o40755:
                        os.chmod(one.path, 0o755)
                    walk(one.path)
                    inner.append(one.path)
                    continue
                path = one.path[start:].decode("utf-8", "surrogateescape")
                row, entry = known.get(path), wanted.get(path)
                if row and row[:6] == entry and _as_made(row, about):
                    del lacks[path]
                else:
                    os.unlink(one.path)

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


def _as_made(row: list[Any], about: os.stat_result) -> bool:
    if about.st_ctime_ns != row[6] or about.st_ino != row[7]:
        return False
    if row[1] == "l":
        return about.st_mode & 0o170000 == 0o120000
    return (about.st_mode, about.st_size, about.st_mtime_ns) == (0o100000 | row[2], row[3], row[4])
