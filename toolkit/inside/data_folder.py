"""A data set's folder on a host: what we wrote there, what of it is there still, how it is taken away.

In the folder stand, beside the data,
    .toolkit-data.journal    a line with a shard's entries before the first of its files gets its name, and
                             a line that the shard is whole once all of them are on the disk
    .toolkit-data            the mark: which set is there, whole; absent while one is changed
    .toolkit-part-...        files that are not whole yet, each in the folder of the file that it will be

Entries: ["d", path, mode]  ["l", path, target]  ["f", path, mode, mtime_ns, size]
         ["p", path, mode, mtime_ns, size, offset, length] of a file that is too large for one shard
Paths are strings here: a Path costs more than some of the calls to the system that it stands for.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

MARK, JOURNAL, PART = ".toolkit-data", ".toolkit-data.journal", ".toolkit-part-"
# A file system may keep times in units of 2 s (FAT).
SAME_TIME = 2 * 10**9

if TYPE_CHECKING:
    Entry = list[Any]
else:
    Entry = list  # Python 3.8


class Fault(Exception):
    """What a person is told."""


def shard_name(entries: bytes) -> str:
    """Return the name of a shard, by its entries as they travel."""
    return hashlib.sha256(entries).hexdigest()[:32]


class Folder:
    """A data set's folder and what its journal says."""

    def __init__(self, root: str, lock: bool = False) -> None:
        self.root = root
        self.begun: dict[str, list[Entry]] = {}
        self.whole: dict[str, int] = {}  # with the bytes of all that were whole then
        self.ours: dict[str, tuple[Any, ...]] = {}  # by path, as which file it was written last
        self._good: set[str] = set()
        self._lock = -1
        if lock:
            self.lock()
        with contextlib.suppress(FileNotFoundError), open(self.path(JOURNAL), "rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # written when the host lost power
                try:
                    said = json.loads(line)
                except ValueError:
                    continue
                if "whole" in said:
                    self.whole[said["whole"]] = said["bytes"]
                else:
                    self._begin(said["shard"], said["entries"])

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def _begin(self, shard: str, entries: list[Entry]) -> None:
        self.whole.pop(shard, None)
        self.begun[shard] = entries
        self.ours.update((entry[1], _which(entry)) for entry in entries)

    def lock(self) -> None:
        self._lock = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fault(f"another command is at work in {self.root}; wait for its end") from None

    def unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    # What is there

    def has(self, entry: Entry) -> bool:
        """Whether an entry is there as it was written."""
        kind, path = entry[0], self.path(entry[1])
        try:
            if kind == "l":
                return bool(os.readlink(path) == entry[2])
            found = os.lstat(path)
            if kind == "d":
                return stat.S_ISDIR(found.st_mode)
            if stat.S_ISREG(found.st_mode) and _same(found, entry):
                return True
        except OSError:
            pass
        if kind != "p":
            return False
        with contextlib.suppress(OSError):
            return bool(os.lstat(self.part_of(entry)).st_size >= entry[5] + entry[6])
        return False

    def holds(self, shard: str) -> bool:
        """Whether a shard was whole, and all of it is there still."""
        entries = self.begun.get(shard)
        if entries is None or shard not in self.whole:
            return False
        # A later shard may have another version of a file, of which size and time say nothing here.
        return all(self.ours[entry[1]] == _which(entry) and self.has(entry) for entry in entries)

    def mark(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError), open(self.path(MARK), "rb") as file:
            found: dict[str, Any] = json.loads(file.read())
            return found
        return {}

    def part_of(self, entry: Entry) -> str:
        """Where the pieces of a large file are put together."""
        token = hashlib.sha256(repr((entry[1], entry[3], entry[4])).encode("ascii", "backslashreplace"))
        return self.path(os.path.join(os.path.dirname(entry[1]), PART + token.hexdigest()[:24]))

    # Folders

    def folder(self, path: str, mode: int = 0o755) -> str:
        """Make a folder be there, with those above it; return where it is."""
        if path in self._good or not path:
            return self.path(path)
        self.folder(os.path.dirname(path))
        where = self.path(path)
        try:
            found = os.lstat(where)
        except FileNotFoundError:
            os.mkdir(where, mode)
        else:
            if not stat.S_ISDIR(found.st_mode):
                # Never through a link: what lies behind it is not in this folder.
                self._refuse_foreign(path)
                os.unlink(where)
                os.mkdir(where, mode)
        self._good.add(path)
        return where

    def _refuse_foreign(self, path: str) -> None:
        if path not in self.ours and os.path.lexists(self.path(path)):
            raise Fault(
                f"{self.path(path)} is there already and is not the toolkit's; move it, or name another path"
            )

    def begin(self, shard: str, entries: list[Entry]) -> None:
        """Refuse to write over what others wrote."""
        for entry in entries:
            if entry[1].startswith("/") or ".." in entry[1].split("/"):
                raise Fault(f"{entry[1]} is not in the folder")
            if entry[0] != "d":
                self._refuse_foreign(entry[1])
        self._begin(shard, entries)

    def replace(self, part: str, path: str) -> None:
        """Give a file that is whole its name."""
        where = self.path(path)
        try:
            os.replace(part, where)
        except IsADirectoryError:
            below = [e for entries in self.begun.values() for e in entries if e[1].startswith(f"{path}/")]
            self.clear([*below, ["d", path, 0]])
            self._good = {good for good in self._good if good != path and not good.startswith(f"{path}/")}
            os.replace(part, where)

    def clear(self, entries: Iterable[Entry], but: Iterable[str] = ()) -> tuple[int, int]:
        """Remove what we wrote, if nobody has changed it since; return how many files went and stayed."""
        kept = set(but)
        gone = stay = 0
        folders = []
        for entry in entries:
            if entry[0] == "p":
                with contextlib.suppress(OSError):
                    os.unlink(self.part_of(entry))
            if entry[1] in kept:
                continue
            if entry[0] == "d":
                folders.append(entry[1])
                continue
            kept.add(entry[1])
            if not self._in_real_folders(entry[1]) or not os.path.lexists(self.path(entry[1])):
                continue
            if written(self.path(entry[1]), entry):
                os.unlink(self.path(entry[1]))
                gone += 1
            else:
                stay += 1
        for path in sorted(set(folders), reverse=True):
            # Those in which others keep something stay.
            with contextlib.suppress(OSError):
                if self._in_real_folders(path):
                    os.rmdir(self.path(path))
        return gone, stay

    def _in_real_folders(self, path: str) -> bool:
        above = os.path.dirname(path)
        while above:
            if os.path.islink(self.path(above)):
                return False
            above = os.path.dirname(above)
        return True


def _which(entry: Entry) -> tuple[Any, ...]:
    """Tell two files of one path apart."""
    return () if entry[0] == "d" else tuple(entry[2:5])


def _same(found: os.stat_result, entry: Entry) -> bool:
    return bool(found.st_size == entry[4] and abs(found.st_mtime_ns - entry[3]) < SAME_TIME)


def written(path: str, entry: Entry) -> bool:
    with contextlib.suppress(OSError):
        if entry[0] == "l":
            return bool(os.readlink(path) == entry[2])
        found = os.lstat(path)
        return stat.S_ISREG(found.st_mode) and _same(found, entry)
    return False


def sync_disk(root: str) -> None:
    """Bring all of the file system to the disk: many small files at once take one journal commit so."""
    file = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "syncfs"):
            os.sync()
        elif library.syncfs(file):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(file)


def words_of(error: BaseException) -> str:
    text = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
    name = getattr(error, "filename", None)
    return f"{os.fsdecode(name)}: {text}" if name else text
