"""A job's logs: bounded in size, readable while they grow, with the times at which they grew.

A log is a sequence of bytes with a beginning and no known end. It is kept in files named by their offsets:
`rank-3.log`, then `rank-3.log.8388608` and so on. When it exceeds its limit, files in the middle are removed:
the set-up of a run is at the beginning, and the reason of its end at the end.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PIECES = 8  # files of one log at most, the first one and the newest
TIMES_S = 2.0  # interval of the rows of times
APART = "apart"  # precedes the interval if it is a different one
MOST_ROWS = 8192  # beyond it every second row is removed, and the interval doubles
LAST_LINES = 8
LAST_BYTES = 16384  # of the end of a log; several C++ backtraces can follow the error
# Lines that name no error: a C++ backtrace of PyTorch, and its advice after each CUDA error.
_BACKTRACE = re.compile(
    r"(?:\[rank\d+\]: ?)?\s*"
    r"(?:$|frame #\d+: |Exception raised from .+ \(most recent call first\):|Search for `cuda"
    r"|CUDA kernel errors might be asynchronously|For debugging consider passing CUDA_LAUNCH_BLOCKING"
    r"|Compile with `TORCH_USE_CUDA_DSA)"
)

# Exceptions of destructors, exit callbacks and threads do not end the rank. The text has no empty lines.
_HEADER = r"(?:Exception ignored |Exception in thread |Error in atexit\._run_exitfuncs)"
_FRAMES = r"(?:\n(?:[ \t].*|Traceback \(most recent call last\):))*"
_CHAINED = r"(?:Original Traceback |During handling of the above |The above exception was )"
_ASIDE = re.compile(rf"^{_HEADER}.*{_FRAMES}(?:\n.*)?(?:\n{_CHAINED}.*{_FRAMES}(?:\n.*)?)*\n?", re.MULTILINE)
# A frame of a traceback that has no such header, also of an ExceptionGroup.
_FRAME = re.compile(r'(?:\[rank\d+\]: ?)?  (?:\| {3})?File "')


def pieces(path: Path) -> list[tuple[int, Path]]:
    """Return the files of the log `path` with their offsets, in order."""
    found = [(0, path)] if path.exists() else []
    for other in path.parent.glob(f"{path.name}.*"):
        start = other.name[len(path.name) + 1 :]
        if start.isdigit():
            found.append((int(start), other))
    return sorted(found)


def size_of(path: Path) -> int:
    """Return the number of bytes of the log so far, including removed ones."""
    for start, piece in reversed(pieces(path)):
        with suppress(FileNotFoundError):
            return start + piece.stat().st_size
    return 0


def age(path: Path, now: float) -> float | None:
    """Return the seconds since the last write to the log, None without a log."""
    with suppress(OSError, IndexError):
        return max(0.0, now - pieces(path)[-1][1].stat().st_mtime)
    return None


class Log:
    """Writer of a log; it continues an existing log, on a new line."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._piece = max(limit // PIECES, 4096)
        found = pieces(path) or [(0, path)]
        self._start, newest = found[-1]
        self._file = newest.open("ab", buffering=0)
        self._length = self._file.tell()
        self._is_in_line = self._length > 0 and not _ends_line(newest)
        self._is_cut = self._is_in_line  # the previous writer was killed
        self._times = _times_path(path).open("ab", buffering=0)
        self._rows, self._apart = times(path)

    def write(self, data: bytes) -> None:
        """Append `data`. Raises OSError, as for a full disk."""
        self._note_time()
        if self._is_cut:
            data, self._is_cut = b"\n" + data, False
        try:
            self._append(data)
        except OSError:
            self._is_cut = self._is_in_line  # the rest of the line is lost
            raise

    def close(self) -> None:
        """Close the files. A network file system can report only now that data is lost, as over a quota."""
        for file in (self._file, self._times):
            with suppress(OSError):
                file.close()

    def _append(self, data: bytes) -> None:
        while data:
            room = self._piece - self._length
            if room <= 0:
                self._begin_piece()
                continue
            done = self._file.write(data[:room])
            self._length += done
            self._is_in_line = not data[:done].endswith(b"\n")
            data = data[done:]

    def _begin_piece(self) -> None:
        start = self._start + self._length
        fresh = self._path.with_name(f"{self._path.name}.{start}").open("ab", buffering=0)
        with suppress(OSError):  # see `close`
            self._file.close()
        self._file, self._start, self._length = fresh, start, fresh.tell()
        for _, old in pieces(self._path)[1 : 1 - PIECES]:
            with suppress(FileNotFoundError):
                old.unlink()

    def _note_time(self) -> None:
        now = time.time()
        if self._rows and 0 <= now - self._rows[-1][0] < self._apart:
            return
        self._rows.append((now, self._start + self._length))
        if len(self._rows) <= MOST_ROWS:
            self._times.write(_row(*self._rows[-1]))
            return
        self._rows, self._apart = self._rows[::2], 2 * self._apart
        self._times.truncate(0)
        rows = b"".join(_row(*row) for row in self._rows)
        self._times.write(f"{APART} {self._apart:g}\n".encode() + rows)


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


class Reader:
    """Reader of a log from an offset to its current end."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self.offset = path, offset
        self._file: int | None = None
        self._start = 0

    def read(self, most: int = 1 << 18) -> bytes:
        """Return the next bytes, empty if there are none yet; a gap is described in a line."""
        while True:
            if self._file is not None:
                data = os.pread(self._file, most, self.offset - self._start)
                if data:
                    self.offset += len(data)
                    return data
            gap = self._next()
            if gap is None:
                return b""
            if gap:
                return b"[toolkit] %d bytes of the log are left out here\n" % gap

    def rest(self) -> Iterator[bytes]:
        """Yield the current content of the log. A log that grows faster than it is read ends too."""
        size = size_of(self._path)
        while self.offset < size and (data := self.read()):
            yield data

    def _next(self) -> int | None:
        """Open the file that contains the offset; return the number of skipped bytes, None without a file."""
        found = pieces(self._path)
        for index, (start, piece) in enumerate(found):
            if index + 1 < len(found) and found[index + 1][0] <= self.offset:
                continue
            if self._file is not None and start == self._start and index + 1 == len(found):
                return None  # at the end of the last file
            if self._file is not None and start == self._start:
                continue
            try:
                file = os.open(piece, os.O_RDONLY)
            except FileNotFoundError:
                continue  # it was removed meanwhile: use the next one
            self.close()
            gap = max(0, start - self.offset)
            self._file, self._start, self.offset = file, start, max(start, self.offset)
            return gap
        return None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_all(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield the current content of a log."""
    reader = Reader(path, offset)
    try:
        yield from reader.rest()
    finally:
        reader.close()


def offset_at(path: Path, epoch: float) -> int:
    """Return the offset of what was written since `epoch` (seconds), at most TIMES_S too early."""
    rows, apart = times(path)
    # A row covers all that was written in the seconds after it.
    return next((offset for when, offset in rows if when + apart > epoch), size_of(path))


def offset_of_last_lines(path: Path, lines: int, prefixes: tuple[bytes, ...] = (b"",)) -> int:
    """Return the offset of the last `lines` lines that begin with one of `prefixes`."""
    begins: deque[int] = deque(maxlen=lines)
    offset = 0
    is_begin = True
    for start, piece in pieces(path):
        with suppress(FileNotFoundError), piece.open("rb") as file:
            offset = start
            for text in file:
                if is_begin and text.startswith(prefixes):
                    begins.append(offset)
                offset += len(text)
                is_begin = text.endswith(b"\n")
    return begins[0] if begins else offset


def last_lines(path: Path, start: int = 0, lines: int = LAST_LINES, width: int = 300) -> list[str]:
    """Return the last lines of a log, cut to a width, see `last_useful`.

    Args:
        start: offset of the first byte that counts.
    """
    text = b""
    for begin, piece in pieces(path)[-2:]:
        with suppress(FileNotFoundError), piece.open("rb") as file:
            file.seek(max(0, start - begin, os.fstat(file.fileno()).st_size - LAST_BYTES))
            text += file.read()
    return [line[:width] for line in last_useful(text.decode(errors="replace"), lines)]


def last_useful(text: str, lines: int = LAST_LINES) -> list[str]:
    """Return the last lines that are neither empty nor part of a C++ backtrace.

    Exceptions of destructors and threads count only without a traceback of the rank itself near the end.

    >>> last_useful("KeyError: 1\\n\\nframe #4: __clone + 0x44 (0x7fc3 in libc.so.6)\\n")
    ['KeyError: 1']
    """
    shown = [line for line in text.splitlines() if line.strip()]
    useful = [line for line in shown if not _BACKTRACE.match(line)] or shown
    own = _ASIDE.sub("", "\n".join(useful)).splitlines()
    return (own if any(map(_FRAME.match, own[-LAST_LINES:])) else useful)[-lines:]


def _times_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.times")


def _row(when: float, offset: int) -> bytes:
    return f"{when:.3f} {offset}\n".encode()


def times(path: Path) -> tuple[list[tuple[float, int]], float]:
    """Return pairs of time and size of the log, and the minimum interval between them."""
    rows, apart = [], TIMES_S
    with suppress(FileNotFoundError):
        for line in _times_path(path).read_text().splitlines():
            when, _, value = line.partition(" ")
            with suppress(ValueError):
                if when == APART:
                    apart = float(value)
                else:
                    rows.append((float(when), int(value)))
    return rows, apart


Written = tuple[float, float]  # earliest and latest time at which data was written


class RecordedTimes:
    """The times at which the present content of a log was written, by the monotonic clock."""

    def __init__(self, path: Path) -> None:
        self._end = size_of(path)
        rows, apart = times(path)
        now = time.monotonic()
        shift = now - time.time()
        self._rows = [(offset, (when + shift, min(when + shift + apart, now))) for when, offset in rows]

    def split(self, data: bytes, end: int) -> Iterator[tuple[bytes, Written | None]]:
        """Yield parts of data that ends at an offset, each with its times; None for data that is newer."""
        start = end - len(data)
        written = next((when for offset, when in reversed(self._rows) if offset <= start), None)
        begins = [(start, written), *(row for row in self._rows if start < row[0] < end)]
        for (offset, when), following in zip(begins, [*(row[0] for row in begins[1:]), end], strict=True):
            yield data[offset - start : following - start], when if offset < self._end else None
