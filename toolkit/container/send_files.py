"""Lists and sends the files of a job on this host: `list FOLDER PATTERN…`, `send`.

A pattern is relative to FOLDER or absolute; the name of an existing file is not a pattern. Of FOLDER
itself, only files that the job wrote are found, not its code, unless they are named. `send` reads a
JSON list of [path, size, inode], as listed, from standard input and writes for each file a line of JSON, then
the number of bytes in the line: no more than were listed, so that the client knows the total.
"""

from __future__ import annotations

import glob
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

PIECE = 2**20
SHOWN = 20


def say(**message: Any) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")


class Finder:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        # The job's code is not newer than this time; see snapshot.py.
        try:
            self.sent = os.stat(os.path.join(os.path.dirname(folder), ".sent")).st_mtime_ns
        except OSError:
            self.sent = 0

    def wrote(self, path: str, about: os.stat_result) -> bool:
        inside = path.startswith(self.folder + "/")
        return not inside or about.st_ctime_ns > self.sent

    def find(self, pattern: str) -> Iterator[tuple[str, str]]:
        """Yield the files of a pattern, each with its path for the client."""
        whole = os.path.normpath(os.path.join(self.folder, pattern))
        inside = whole == self.folder or whole.startswith(self.folder + "/")
        if os.path.lexists(whole):
            base = self.folder if inside else os.path.dirname(whole)
            yield from self.below(whole, base, True)
            return
        base = self.folder if inside else fixed_part(whole)
        for path in sorted(glob.glob(whole, recursive=True)):
            yield from self.below(path, base, False)

    def below(self, path: str, base: str, named: bool) -> Iterator[tuple[str, str]]:
        # A named link is followed; a link found inside a folder is not.
        if os.path.isdir(path) and (named or not os.path.islink(path)):
            for root, folders, files in os.walk(path):
                links = [name for name in folders if os.path.islink(os.path.join(root, name))]
                folders[:] = sorted(name for name in folders if name not in links and name != "__pycache__")
                for name in sorted(files + links):
                    inner = os.path.join(root, name)
                    if self.wrote(inner, os.lstat(inner)):
                        yield inner, os.path.relpath(inner, base)
        elif named:
            yield os.path.realpath(path), os.path.relpath(path, base)
        elif self.wrote(path, os.lstat(path)):
            yield path, os.path.relpath(path, base)


def fixed_part(pattern: str) -> str:
    """Return the folder above the first component with a wildcard."""
    parts = pattern.split("/")
    first = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return "/".join(parts[:first]) or "/"


def about(path: str, name: str) -> dict[str, Any] | None:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return {"path": path, "name": name, "link": os.readlink(path)}
    if not stat.S_ISREG(status.st_mode):
        return None
    found = {"path": path, "name": name, "size": status.st_size, "mtime": status.st_mtime_ns}
    return {**found, "mode": status.st_mode & 0o777, "inode": status.st_ino}


def neighbours(folder: str, pattern: str) -> tuple[str, list[str]]:
    """Return the nearest existing folder and its content."""
    place = os.path.normpath(os.path.join(folder, pattern))
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    try:
        names = sorted(os.listdir(place))
    except OSError:
        names = []
    return place, names


def list_files(folder: str, patterns: list[str]) -> int:
    if not os.path.isdir(folder):
        say(nothing=True)
        return 0
    finder, seen = Finder(os.path.realpath(folder)), set()
    for pattern in patterns:
        count = 0
        for path, name in finder.find(pattern):
            try:
                found = about(path, name)
            except FileNotFoundError:
                continue  # the job is still running
            if found and name not in seen:
                seen.add(name)
                say(**found)
            count += 1
        if not count:
            place, names = neighbours(finder.folder, pattern)
            say(
                missing=pattern,
                there=os.path.lexists(os.path.normpath(os.path.join(finder.folder, pattern))),
                place=place,
                called=(place + "/").replace(finder.folder + "/", "", 1).rstrip("/"),
                names=names[:SHOWN],
                more=max(0, len(names) - SHOWN),
            )
    return 0


def send(files: list[tuple[str, int, int]]) -> int:
    out = sys.stdout.buffer
    for path, size, inode in files:
        try:
            file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below
        except OSError as error:
            say(refused=error.strerror)
            continue
        with file:
            status = os.fstat(file.fileno())
            if status.st_size > size and status.st_ino != inode:
                say(refused="the file was replaced by a larger file while toolkit downloaded files")
                continue
            left = min(status.st_size, size)  # a log grows while the job runs
            say(size=left, mtime=status.st_mtime_ns)
            while left:
                data = file.read(min(left, PIECE))
                if not data:
                    sys.stderr.write(f"{path} became shorter while it was read\n")
                    return 1
                left -= len(data)
                out.write(data)
    out.flush()
    return 0


def main() -> int:
    if sys.argv[1] == "list":
        return list_files(sys.argv[2], sys.argv[3:])
    return send(json.load(sys.stdin))
