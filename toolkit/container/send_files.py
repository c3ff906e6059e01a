"""Lists and sends the files of jobs on this host: `list FOLDER PATTERN…`, `send`, `jobs FOLDER`.

A pattern is relative to FOLDER or absolute; the name of an existing file is not a pattern. Of FOLDER
itself, only files that the job wrote are found, not its code, unless they are named. `send` reads a
JSON list of [path, size, inode], as listed, from standard input and writes for each file a line of JSON, then
the number of bytes in the line: no more than were listed, so that the client knows the total.

`jobs` writes the same for all jobs in FOLDER: logs, records and what the jobs wrote to their code. A line
with `refused` names a file or folder that cannot be read; the last line contains `end`.
"""

from __future__ import annotations

import glob
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Any

from toolkit.container.code.packs import load, open_file

PIECE = 2**20
# Some file systems round modification times down, by less than this number of nanoseconds.
ROUNDED = 2 * 10**9
SHOWN = 20


def say(**message: Any) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")


class Finder:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        # The job's code is not newer than this time, and is in this list; see snapshot.py.
        sent = os.path.join(os.path.dirname(folder), ".sent")
        try:
            self.sent_at = os.stat(sent).st_mtime_ns
        except OSError:
            self.sent_at = 0
        self.sent = load(sent)  # None if an earlier version of toolkit sent the code

    def wrote(self, path: str) -> bool:
        if not path.startswith(self.folder + "/"):
            return True
        try:
            status = os.lstat(path)
            if status.st_ctime_ns > self.sent_at:
                return True
            if self.sent is None:
                return False
            # If the clock of the host was set back, files of the job seem to be older than the code.
            sent = self.sent.get(path[len(self.folder) + 1 :])
            if stat.S_ISLNK(status.st_mode):
                return bool(sent != os.readlink(path))
            if not isinstance(sent, list):
                return True
            size, mtime = sent
            return bool(size != status.st_size or not 0 <= mtime - status.st_mtime_ns < ROUNDED)
        except FileNotFoundError:
            return False  # the job is still running

    def find(self, pattern: str) -> Iterator[tuple[str, str]]:
        """Yield the files of a pattern, each with its path for the client."""
        whole = os.path.normpath(os.path.join(self.folder, pattern))
        inside = whole == self.folder or whole.startswith(self.folder + "/")
        if os.path.lexists(whole):
            base = self.folder if inside else os.path.dirname(whole)
            yield from self.below(whole, base, True)
            return
        base = self.folder if inside else fixed_part(whole)
        for path in matches("/", whole.split("/")[1:]):
            yield from self.below(path, base, False)

    def below(self, path: str, base: str, named: bool) -> Iterator[tuple[str, str]]:
        # A named link is followed; a link found inside a folder is not.
        if os.path.isdir(path) and (named or not os.path.islink(path)):
            for root, folders, files in os.walk(path):
                links = [name for name in folders if os.path.islink(os.path.join(root, name))]
                folders[:] = sorted(name for name in folders if name not in links and name != "__pycache__")
                for name in sorted(files + links):
                    inner = os.path.join(root, name)
                    if self.wrote(inner):
                        yield inner, os.path.relpath(inner, base)
        elif named:
            yield os.path.realpath(path), os.path.relpath(path, base)
        elif self.wrote(path):
            yield path, os.path.relpath(path, base)


def matches(start: str, parts: list[str]) -> Iterator[str]:
    """Yield what the components of a pattern match in a folder.

    Unlike in the module glob, a link is followed only if the pattern names it.
    """
    if not parts:
        yield start
        return
    part, rest = parts[0], parts[1:]
    if part != "**":
        for path in sorted(glob.glob(os.path.join(glob.escape(start), part))):
            if not (rest and glob.has_magic(part) and os.path.islink(path)):
                yield from matches(path, rest)
    elif rest:
        for root, folders, _ in os.walk(start):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from matches(root, rest)
    elif os.path.isdir(start):
        yield os.path.join(start, "")  # with everything in it


def fixed_part(pattern: str) -> str:
    """Return the folder above the first component with a wildcard."""
    parts = pattern.split("/")
    first = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return "/".join(parts[:first]) or "/"


def modified(status: os.stat_result) -> int:
    """Return the time of a file in nanoseconds, limited to the times that the client accepts."""
    return max(-(2**62), min(status.st_mtime_ns, 2**62))


def about(path: str, name: str) -> dict[str, Any] | None:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return {"path": path, "name": name, "link": os.readlink(path)}
    if not stat.S_ISREG(status.st_mode):
        return None
    found = {"path": path, "name": name, "size": status.st_size, "mtime": modified(status)}
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


def same(path: str, other: str) -> bool:
    return path == other or os.path.realpath(path) == os.path.realpath(other)


def list_files(folder: str, patterns: list[str]) -> int:
    if not os.path.isdir(folder):
        say(nothing=True)
        return 0
    finder = Finder(os.path.realpath(folder))
    seen: dict[str, tuple[str, str]] = {}
    for pattern in patterns:
        count = 0
        for path, name in finder.find(pattern):
            try:
                found = about(path, name)
            except FileNotFoundError:
                continue  # the job is still running
            if found and name not in seen:
                seen[name] = (path, pattern)
                say(**found)
            elif found and not same(path, seen[name][0]):
                say(collides=name, patterns=[seen[name][1], pattern])
                return 0
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
                say(refused="the file was replaced by a larger file during the download")
                continue
            left = min(status.st_size, size)  # a log grows while the job runs
            say(size=left, mtime=modified(status))
            while left:
                data = file.read(min(left, PIECE))
                if not data:
                    sys.stderr.write(f"{path} became shorter while it was read\n")
                    return 1
                left -= len(data)
                out.write(data)
    out.flush()
    return 0


def send_jobs(jobs: str) -> int:
    """Send logs, records and what the jobs wrote; never job.json, whose variables can be secrets."""
    os.chdir(jobs)
    for job in sorted(filter(re.compile("[A-Za-z0-9]").match, os.listdir("."))):
        if not os.path.isdir(job):
            continue
        try:
            os.lstat(f"{job}/.sent")  # without its code, the job did not start
        except OSError as error:
            refuse(error)
            continue
        finder = Finder(f"{job}/code")
        for root, folders, files in os.walk(job, onerror=refuse):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for path in (f"{root}/{name}" for name in sorted(files)):
                if path not in (f"{job}/job.json", f"{job}/.sent"):
                    send_new(path, finder)
    say(end=True)
    return 0


def send_new(path: str, finder: Finder) -> None:
    """Send a file that the job wrote, with its size at the start."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode) or not finder.wrote(path):
            return
        file = open(path, "rb", buffering=0, opener=open_file)  # noqa: SIM115 - closed below
    except OSError as error:
        refuse(error)
        return
    failed: OSError | None = None
    with file:
        left = os.fstat(file.fileno()).st_size
        say(name=path, size=left)
        while left:
            data = b""
            try:
                data = b"" if failed else file.read(min(left, PIECE))
            except OSError as error:
                failed = OSError(error.errno, error.strerror, path)
            # The client expects the announced size, also of a file that became shorter.
            data = data or bytes(min(left, PIECE))
            left -= len(data)
            sys.stdout.buffer.write(data)
    if failed:
        refuse(failed)


def refuse(error: OSError) -> None:
    """Name a file or folder that cannot be read. It is no loss if another process removed it."""
    if not isinstance(error, FileNotFoundError):
        say(name=error.filename, refused=error.strerror)


def main() -> int:
    if sys.argv[1] == "list":
        return list_files(sys.argv[2], sys.argv[3:])
    if sys.argv[1] == "jobs":
        return send_jobs(sys.argv[2])
    return send(json.load(sys.stdin))
