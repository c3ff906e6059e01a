"""Unpacks the shards of a data set into its folder, see data_folder.py; relay.py receives them.

A shard is a length (4 bytes), its entries as JSON, then the contents of its files. Its name is derived from
the entries. It is complete, and never sent again, once all of it is on the disk and the journal records that.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Iterable
from typing import BinaryIO

from toolkit.container.transfer.data_folder import (
    JOURNAL,
    MARK,
    PART,
    Fault,
    Folder,
    parse_entries,
    shard_line,
    sync_disk,
    whole_line,
    words_of,
)
from toolkit.protocol.shards import Entry, shard_name

# Bytes and seconds after which unpacked data is synced to the disk, all together: a call for every file, or
# for every shard, would cost more than writing them.
SYNC_BYTES, SYNC_EACH = 2**28, 1.0


class Shelf:
    """Unpacker of shards; it reports each shard that is on the disk.

    Args:
        writes: numbers of the shards to write; the others are only forwarded.
        count: number of all shards that arrive.
        say: called with a number, a status and a message.
        held: bytes of the shards of the data set that were complete before.
    """

    def __init__(
        self,
        root: str,
        account: str,
        writes: Iterable[int],
        count: int,
        say: Callable[[int, int, str], None],
        held: int = 0,
    ) -> None:
        self.folder = Folder(root, account, lock=True)
        self.writes, self.left, self.say = set(writes), count, say
        self.total = held
        self.folder.account.drop(MARK)
        self.journal = _append(self.folder.account.open(JOURNAL, os.O_RDWR | os.O_CREAT | os.O_APPEND))
        self.note(whole_line("", held))  # the last total can be that of another data set
        os.umask(0)  # the entries of the set contain the modes
        self.failed = ""
        self._turn = threading.Condition()
        self._writing = threading.Lock()
        self._waiting: list[Unpacking] = []
        threading.Thread(target=self._sync, daemon=True).start()

    def open(self, number: int) -> Unpacking:
        return Unpacking(self, number, number in self.writes)

    def note(self, line: bytes) -> None:
        self.journal.write(line)
        self.journal.flush()

    def unpacked(self, one: Unpacking) -> None:
        with self._turn:
            self._waiting.append(one)
            self._turn.notify()

    def _sync(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._waiting)
                self._turn.wait_for(self._due, SYNC_EACH)
            self.flush()

    def _due(self) -> bool:
        return len(self._waiting) == self.left or sum(one.size for one in self._waiting) >= SYNC_BYTES

    def flush(self) -> None:
        """Sync unpacked shards to the disk; then they are complete."""
        with self._writing:
            with self._turn:
                ready, self._waiting = self._waiting, []
            good = [one for one in ready if not one.failed and one.shard]
            failures = {}
            if good:
                try:
                    sync_disk(self.folder.root)
                    for one in good:
                        self.total += one.size
                        self.note(whole_line(one.shard, self.total))
                        self.folder.whole.add(one.shard)
                    os.fdatasync(self.journal.fileno())
                except OSError as error:
                    failures = dict.fromkeys(good, words_of(error))
            self.left -= len(ready)
            if not self.left:
                self.folder.unlock()
            for one in ready:
                words = one.failed or failures.get(one, "")
                self.say(one.number, 1 if words else 0, words)


class Unpacking:
    """A shard that is being received."""

    def __init__(self, shelf: Shelf, number: int, wanted: bool) -> None:
        self.shelf, self.number = shelf, number
        self.shard = self.failed = ""
        self.size = 0
        self._buffer, self._at = b"", 0
        self._work: Generator[None, bytes, None] | None = self._unpack() if wanted else None
        if self._work:
            next(self._work)

    def good(self) -> bool:
        """Return whether the next shard can be written."""
        return not self.failed

    def kill(self) -> None:
        self.failed, self._work = self.failed or self.shelf.failed, None

    def write(self, data: bytes) -> None:
        """Write a piece; after a failure discard it, because only the next host still needs it."""
        self.size += len(data)
        if self._work is None:
            return
        try:
            self._work.send(data)
        except StopIteration:
            self._work = None
        except (OSError, ValueError, Fault) as error:
            self._fail(words_of(error))

    def _fail(self, words: str) -> None:
        self.failed, self._work = words, None
        self.shelf.failed = self.shelf.failed or words

    def finish(self) -> Unpacking:
        if self._work is not None and not self.failed:
            self._fail("a shard is truncated")
        self.shelf.unpacked(self)
        return self

    def _take(self, count: int) -> Generator[None, bytes, bytes]:
        while len(self._buffer) - self._at < count:
            more = yield
            self._buffer, self._at = self._buffer[self._at :] + more, 0
        self._at += count
        return self._buffer[self._at - count : self._at]

    def _pour(self, file: int, count: int) -> Generator[None, bytes, None]:
        while count:
            if self._at == len(self._buffer):
                self._buffer, self._at = (yield), 0
            piece = memoryview(self._buffer)[self._at : self._at + count]
            self._at += len(piece)
            count -= len(piece)
            while piece:
                piece = piece[os.write(file, piece) :]

    def _unpack(self) -> Generator[None, bytes, None]:
        size = int.from_bytes((yield from self._take(4)), "big")
        text = yield from self._take(size)
        entries = parse_entries(text)
        shard, folder = shard_name(text), self.shelf.folder
        folder.begin(shard, entries)
        self.shelf.note(shard_line(shard, text))
        # Before the first file gets its name: after a power loss, the journal must list these files.
        os.fdatasync(self.shelf.journal.fileno())
        for number, entry in enumerate(entries):
            try:
                yield from self._put(folder, entry, f"{PART}{shard[:16]}-{number}")
            except OSError as error:
                # The full path, because a name relative to a descriptor does not help users.
                raise OSError(error.errno, error.strerror, folder.path(entry[1])) from error
        self.shard = shard

    def _put(self, folder: Folder, entry: Entry, part: str) -> Generator[None, bytes, None]:
        kind, path = entry[0], entry[1]
        if kind == "d":
            file = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder.folder(path))
            try:
                os.fchmod(file, entry[2] | 0o700)
            finally:
                os.close(file)
            return
        above = folder.folder(path.rpartition("/")[0])
        if kind == "l":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=above)
            os.symlink(entry[2], part, dir_fd=above)
            folder.replace(part, path)
            return
        if kind == "p":
            file = folder.open_part(entry)
            try:
                os.lseek(file, entry[5], os.SEEK_SET)
                yield from self._pour(file, entry[6])
            finally:
                os.close(file)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        # Set the mode at creation: this saves a call per file.
        try:
            file = os.open(part, flags, entry[2], dir_fd=above)
        except FileExistsError:
            os.unlink(part, dir_fd=above)  # left by an interrupted attempt
            file = os.open(part, flags, entry[2], dir_fd=above)
        try:
            yield from self._pour(file, entry[4])
            os.utime(file, ns=(entry[3], entry[3]))
        finally:
            os.close(file)
        folder.replace(part, path)


def _append(journal: int) -> BinaryIO:
    """Open a journal for writing, without a truncated last line."""
    file = os.fdopen(journal, "ab+")
    size = at = file.seek(0, os.SEEK_END)
    while at:
        step = min(at, 2**16)
        file.seek(at - step)
        found = file.read(step).rfind(b"\n")
        if found >= 0:
            at += found + 1 - step
            break
        at -= step
    if at < size:
        file.truncate(at)
    file.seek(0, os.SEEK_END)
    return file
