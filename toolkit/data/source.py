"""A data set on this machine: what it holds by a look at its folder, and the bytes of its shards."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.protocol.shards import Content, Entry, Shard, pack

_PIECE = 2**20
# What the toolkit keeps beside data on a host; a folder that was staged may be staged from again.
_OURS = ".toolkit-"
_AGAIN = "let nothing write there meanwhile, and run the same command again: what has come is not sent twice"


def read_content(source: Path) -> Content:
    """Return what a folder or a file holds, by names, modes, sizes and times; no file is opened.

    Folders, files and links travel; links as they are. Anything else, a socket say, does not.

    Raises:
        ToolkitError: it is not there, or a folder in it cannot be read.
    """
    try:
        if source.is_dir():
            return pack(sorted(_walk(str(source), ""), key=lambda entry: str(entry[1])))
        return pack([_file(source.name, source.stat())])
    except OSError as error:
        what = f"cannot read the data {error.filename or source}: {error.strerror or error}"
        raise ToolkitError(what, "make it readable, or correct data: in the hosts file") from error


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
    return ["f", path, about.st_mode & 0o777, about.st_mtime_ns, about.st_size]


def read_shard(source: Path, shard: Shard) -> Iterator[bytes]:
    """Yield a shard's bytes, in pieces of any length.

    Raises:
        ToolkitError: a file cannot be read, or is not what it was when the content was looked at.
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
        raise ToolkitError(f"cannot read the data {path}: {error.strerror or error}", _AGAIN) from error
    if left or (about.st_mtime_ns, about.st_size) != (entry[3], entry[4]):
        raise ToolkitError(f"{path} has changed since the plan was made", _AGAIN)
