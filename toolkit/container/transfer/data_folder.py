"""A data set's folder on a host: the record of its written files, their verification and their removal.

Ranks and other users can write in the folder, so none of its content decides what is done there. The account
is a record of the written files, in a separate folder that only the SSH user can read or write:
    journal    a line with a shard's entries before the first of its files gets its name, and a line that
               the shard is complete once all of them are on the disk
    mark       the data set that is complete in the folder; absent while a set is changed
Next to the data there are only
    .toolkit-part-...        incomplete files, each in the folder of the final file

Entries: ["d", path, mode]  ["l", path, target]  ["f", path, mode, mtime_ns, size]
         ["p", path, mode, mtime_ns, size, offset, length] of a file that is too large for one shard
Below the folder, each name is looked up in the descriptor of its own folder, so that no link is followed.
Paths are strings here: a Path costs more than some of the calls to the system that it stands for.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.protocol.shards import Entry, shard_name

JOURNAL, MARK, PART = "journal", "mark", ".toolkit-part-"
# Earlier versions kept the account in the data folder. It is no longer read, and is removed.
OLD = tuple(f".toolkit-data{ending}" for ending in ("", ".new", ".journal", ".journal.new"))
# Some file systems keep times in units of 2 s (FAT).
SAME_TIME = 2 * 10**9

# Descriptors of folders that are kept open; their paths are sorted, so the next file is mostly in the same.
OPEN_FOLDERS = 128
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_WALK = os.O_PATH | os.O_DIRECTORY | _NO_LINK
_LENGTHS = {"d": 3, "l": 3, "f": 5, "p": 7}


class Fault(Exception):
    """Error for the user."""


def shard_line(shard: str, entries: bytes) -> bytes:
    """Return the journal's line about the start of a shard."""
    return b'{"shard":"%s","entries":%s}\n' % (shard.encode(), entries)


def whole_line(shard: str, size: int) -> bytes:
    """Return the journal's line about a complete shard.

    Args:
        shard: empty at the start of a transfer.
        size: total bytes of the complete shards that the data set contains.
    """
    return b'{"whole":"%s","bytes":%d}\n' % (shard.encode(), size)


def parse_entries(text: bytes) -> list[Entry]:
    """Return a shard's entries.

    Raises:
        Fault: an entry is invalid, or its path leads out of the folder.
    """
    try:
        entries: list[Entry] = json.loads(text)
    except (ValueError, RecursionError):
        raise Fault("the list of a shard's entries is not valid JSON") from None
    if type(entries) is not list:
        raise Fault("a shard's entries are not a list")
    for entry in entries:
        if not _is_entry(entry):
            raise Fault(f"{str(entry)[:200]!r} is not an entry of a data set, or is outside the data folder")
    return entries


def _is_entry(entry: Any) -> bool:
    if type(entry) is not list or not entry or type(entry[0]) is not str:
        return False
    if len(entry) != _LENGTHS.get(entry[0]) or not _is_path(entry[1]):
        return False
    if entry[0] == "l":
        return type(entry[2]) is str and bool(entry[2]) and _is_name(entry[2])
    for number in entry[2:]:
        if type(number) is not int or not -(2**63) <= number < 2**63:
            return False
    if not 0 <= entry[2] <= 0o777 or (entry[0] != "d" and entry[4] < 0):
        return False
    return entry[0] != "p" or (entry[5] >= 0 and entry[6] >= 0 and entry[5] + entry[6] <= entry[4])


def _is_path(path: Any) -> bool:
    if type(path) is not str or not _is_name(path):
        return False
    # Few calls, because a set can have a million paths: no empty part, "." or ".." anywhere.
    inner = f"/{path}/"
    return "//" not in inner and "/./" not in inner and "/../" not in inner


def _is_name(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeError:
        return False


class Account:
    """Files of the account.

    Raises:
        Fault: other users can access its folder.
    """

    def __init__(self, path: str) -> None:
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK)
        about = os.fstat(self._folder)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise Fault(f"{path} must belong to the SSH user and have mode 0700; remove the folder")

    def open(self, name: str, flags: int) -> int:
        return os.open(name, flags | _NO_LINK, 0o600, dir_fd=self._folder)

    def lines(self) -> list[bytes]:
        """Return the journal's lines without a last line that was truncated by a power loss."""
        with contextlib.suppress(FileNotFoundError), os.fdopen(self.open(JOURNAL, os.O_RDONLY), "rb") as file:
            return [line for line in file if line.endswith(b"\n")]
        return []

    def mark(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError), os.fdopen(self.open(MARK, os.O_RDONLY), "rb") as file:
            found = json.loads(file.read())
            if type(found) is dict:
                return found
        return {}

    def save(self, name: str, lines: Iterable[bytes]) -> None:
        """Write one of the files atomically."""
        with os.fdopen(self.open(f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{name}.new", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def drop(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder)


class Folder:
    """A data set's folder and its account."""

    def __init__(self, root: str, account: str, lock: bool = False) -> None:
        self.root, self.account = root, Account(account)
        self.begun: dict[str, list[Entry]] = {}
        self.whole: set[str] = set()
        self.ours: dict[str, Entry] = {}  # by path, as last written
        self._top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folders: dict[str, int] = {}
        self._lock = -1
        if lock:
            self.lock()
        self.read_account()

    def read_account(self) -> None:
        for line in self.account.lines():
            self._read(line)

    def _read(self, line: bytes) -> None:
        """Process a line of the journal; ignore an invalid line."""
        head, found, rest = line.partition(b'","entries":')
        if found:
            shard, text = head[len(b'{"shard":"') :].decode("ascii", "replace"), rest[: -len(b"}\n")]
            with contextlib.suppress(Fault):
                if shard_name(text) == shard:
                    self._begin(shard, parse_entries(text))
            return
        with contextlib.suppress(ValueError, LookupError, TypeError):
            record = json.loads(line)
            if record["whole"] in self.begun and type(record["bytes"]) is int:
                self.whole.add(record["whole"])

    def path(self, name: str) -> str:
        """Return the path of a name in the folder for messages; never for opening it."""
        return os.path.join(self.root, name)

    def _begin(self, shard: str, entries: list[Entry]) -> None:
        self.whole.discard(shard)
        self.begun[shard] = entries
        self.ours.update((entry[1], entry) for entry in (*self._above(entries), *entries))

    def _above(self, entries: list[Entry]) -> list[Entry]:
        """Return an entry for each unrecorded folder above these entries.

        The shard with the folder's own entry can arrive later, or never if the transfer is interrupted.
        """
        found: dict[str, Entry] = {}
        for entry in entries:
            path = entry[1].rpartition("/")[0]
            while path and path not in found and self.ours.get(path, ["l"])[0] != "d":
                found[path] = ["d", path, 0o755]
                path = path.rpartition("/")[0]
        return list(found.values())

    def lock(self) -> None:
        self._lock = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._top)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fault(f"another command uses {self.root}; wait until that command has exited") from None

    def unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    # Verification

    def names(self) -> list[str]:
        top = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._top)
        try:
            return os.listdir(top)
        finally:
            os.close(top)

    def at(self, path: str) -> int:
        """Return a descriptor of an existing folder; it is valid until the next call."""
        if not path:
            return self._top
        if path not in self._folders:
            above, _, name = path.rpartition("/")
            file = os.open(name, _WALK, dir_fd=self.at(above))
            if len(self._folders) >= OPEN_FOLDERS:
                self._close_folders()
            self._folders[path] = file
        return self._folders[path]

    def _close_folders(self) -> None:
        for file in self._folders.values():
            os.close(file)
        self._folders.clear()

    def stat(self, path: str) -> os.stat_result | None:
        """Return the status of a name, None if it does not exist."""
        above, _, name = path.rpartition("/")
        with contextlib.suppress(OSError):
            return os.stat(name, dir_fd=self.at(above), follow_symlinks=False)
        return None

    def written(self, entry: Entry) -> bool:
        """Return whether an entry exists under its name, unchanged."""
        about = self.stat(entry[1])
        if about is None:
            return False
        if entry[0] == "d":
            return stat.S_ISDIR(about.st_mode)
        if entry[0] == "l":
            above, _, name = entry[1].rpartition("/")
            with contextlib.suppress(OSError):
                return bool(os.readlink(name, dir_fd=self.at(above)) == entry[2])
            return False
        same = about.st_size == entry[4] and abs(about.st_mtime_ns - entry[3]) < SAME_TIME
        return bool(same and stat.S_ISREG(about.st_mode))

    def has(self, entry: Entry) -> bool:
        """Return whether an entry exists, under its name or as a file that is being assembled.

        While a file is being assembled, the file under its name is another version, which can have the same
        size and almost the same time.
        """
        about = self.stat(self.part_of(entry)) if entry[0] == "p" else None
        if about is None:
            return self.written(entry)
        return stat.S_ISREG(about.st_mode) and about.st_size >= entry[5] + entry[6]

    def holds(self, shard: str) -> bool:
        """Return whether a shard was complete, and all of it still exists."""
        entries = self.begun.get(shard)
        if entries is None or shard not in self.whole:
            return False
        # A later shard can contain another version of a file; size and time do not reveal that.
        return all(_which(self.ours[entry[1]]) == _which(entry) and self.has(entry) for entry in entries)

    def part_of(self, entry: Entry) -> str:
        """Return the path at which the pieces of a large file are assembled."""
        token = hashlib.sha256(repr((entry[1], entry[3], entry[4])).encode("ascii", "backslashreplace"))
        return beside(entry[1], PART + token.hexdigest()[:24])

    # Creation

    def folder(self, path: str) -> int:
        """Create a folder and its parents if missing; return a descriptor as ``at`` does."""
        if not path or path in self._folders:
            return self.at(path)
        above, _, name = path.rpartition("/")
        self.folder(above)
        try:
            return self.at(path)
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            self._clear_way(path)
        os.mkdir(name, 0o755, dir_fd=self.at(above))
        return self.at(path)

    def _clear_way(self, path: str) -> None:
        """Remove a file or link from the path of a folder if it is ours and unchanged, or refuse."""
        versions = (e for entries in self.begun.values() for e in entries if e[1] == path and e[0] != "d")
        if not any(map(self.written, versions)):
            raise Fault(
                f"{self.path(path)} is a link or a file, but must be a folder; remove the link or file"
            )
        self.drop(path)

    def begin(self, shard: str, entries: list[Entry]) -> None:
        """Refuse to overwrite files of others; files that already match their entry count as ours."""
        for entry in (*self._above(entries), *entries):
            path, about = entry[1], self.stat(entry[1])
            if about is None:
                continue
            if entry[0] == "d":
                if not stat.S_ISDIR(about.st_mode):
                    self._clear_way(path)
            elif path not in self.ours and not self.written(entry):
                raise Fault(
                    f"{self.path(path)} exists already and was not written by toolkit; "
                    "move the file, or set path: of the data set to another folder"
                )
        self._begin(shard, entries)

    def open_part(self, entry: Entry) -> int:
        """Open the file in which the pieces of a large file are assembled."""
        part = self.part_of(entry)
        above, _, name = part.rpartition("/")
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | _NO_LINK
        foreign = Fault(f"{self.path(part)} was not written by toolkit; remove the file")
        try:
            file = os.open(name, flags, 0o600, dir_fd=self.at(above))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, or a pipe
                raise foreign from None
            raise
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_nlink != 1:
            os.close(file)
            raise foreign
        return file

    def replace(self, part: str, path: str) -> None:
        """Rename a complete file in the same folder to its final name."""
        above, _, name = path.rpartition("/")

        def put() -> None:
            file = self.at(above)
            os.replace(part, name, src_dir_fd=file, dst_dir_fd=file)

        try:
            put()
        except IsADirectoryError:
            below = [e for entries in self.begun.values() for e in entries if e[1].startswith(f"{path}/")]
            self.drop_parts(self.begun, f"{path}/")
            self.clear([*below, ["d", path, 0]])
            put()

    # Removal

    def drop(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.at(above))

    def drop_parts(self, shards: Mapping[str, list[Entry]], prefix: str = "") -> None:
        """Remove the incomplete files of an interrupted transfer, of the paths with this prefix."""
        for shard, entries in shards.items():
            if shard not in self.whole:
                for number, entry in enumerate(entries):
                    if entry[1].startswith(prefix):
                        self.drop(beside(entry[1], f"{PART}{shard[:16]}-{number}"))

    def drop_old(self) -> None:
        """Remove the account that an earlier version kept in the data folder."""
        for name in OLD:
            about = self.stat(name)
            if about is not None and stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
                self.drop(name)

    def clear(self, entries: Iterable[Entry], but: Iterable[str] = ()) -> tuple[int, int]:
        """Remove the unchanged files that toolkit wrote; return the numbers of removed and kept files.

        A file is unchanged if it matches any of its entries: an interrupted update leaves either version.
        """
        kept = set(but)
        gone = 0
        changed, folders = set(), set()
        for entry in entries:
            above, _, name = entry[1].rpartition("/")
            if entry[0] == "p":
                self.drop(self.part_of(entry))
            if entry[0] != "d" and entry[1] not in kept:
                if self.written(entry):
                    os.unlink(name, dir_fd=self.at(above))
                    gone += 1
                else:
                    changed.add(entry[1])
            path = entry[1] if entry[0] == "d" else above
            while path and path not in kept and path not in folders:
                folders.add(path)
                path = path.rpartition("/")[0]
        left = map(self.stat, changed)
        stay = sum(about is not None and not stat.S_ISDIR(about.st_mode) for about in left)
        for path in sorted(folders, reverse=True):
            above, _, name = path.rpartition("/")
            # Folders with files of others stay.
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=self.at(above))
        self._close_folders()  # some of them no longer exist
        return gone, stay


def beside(path: str, name: str) -> str:
    """Return the path of another name in the same folder."""
    above, slash, _ = path.rpartition("/")
    return above + slash + name


def _which(entry: Entry) -> tuple[Any, ...]:
    """Return what distinguishes two versions of a file."""
    return () if entry[0] == "d" else tuple(entry[2:5])


def sync_disk(root: str) -> None:
    """Sync the whole file system: many small files then need only one journal commit."""
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
