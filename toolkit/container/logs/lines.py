"""Conversion of a rank's output to complete lines that stay intact on the way through a launcher."""

from __future__ import annotations

import os
import re
import selectors
import time
from collections.abc import Callable

ATOMIC = 4096  # PIPE_BUF: writers that share a pipe never mix within a write up to this size

MOST_UNENDED = 1 << 16  # bytes of a launcher's line that are kept until its end arrives

BAR_S = 5.0  # interval at which a progress bar, which overwrites its line, is printed

LINE_END = re.compile(rb"\r\n|\n|\r|\x08+")
NEWLINES = (b"\r\n", b"\n")
# `mpirun --tag-output` writes such a tag at the start of each line, and where the line continues after a cut:
# it cuts output every 4096 bytes at any position, and sends output of other ranks in between. horovodrun with
# Gloo writes `[1]<stdout>:`. Open MPI 5 adds a blank after it.
TAG = re.compile(rb"(\[(?:\d+,)?\d+\]<std(?:out|err|diag)>:)")

OF_RANK = re.compile(rb"\[\S+ \d{1,9}\] ")  # start of a rank's line


class Stream:
    """One output of the child, cut into whole prefixed lines of at most ATOMIC bytes each."""

    def __init__(self, out: int, prefix: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self.out = out
        self._clock = clock
        self._bar_shown = float("-inf")
        self._prefix = prefix
        self._room = ATOMIC - len(prefix) - len(b"\n")
        self._rest = b""
        self._cut = False  # the last line was printed before its end arrived
        self._is_bar = False  # the current line overwrites another one

    @property
    def pending(self) -> bool:
        """Return whether a line is incomplete."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes; an overlong line is split.

        A carriage return or a backspace also ends a line, which the next one overwrites: of such lines only
        one in BAR_S seconds is printed. In a terminal, both could overwrite the prefix.
        """
        lines: list[bytes] = []
        start = 0
        text = self._rest + data
        for end in LINE_END.finditer(text):
            if end.group() == b"\r" and end.end() == len(text):
                break  # the first half of \r\n, perhaps
            line = text[start : end.start()]
            start = end.end()
            self._is_bar = end.group() not in NEWLINES
            if self._is_bar and line and self._is_too_soon():
                self._cut = False
                continue
            # two line ends in a row are an empty line, but not after a bar or a line already printed
            if line or not (self._is_bar or self._cut):
                lines += self._fold(line)
            self._cut = False
        self._rest = text[start:]
        whole = len(self._rest) // self._room * self._room
        if whole:
            lines += self._fold(self._rest[:whole])
            self._rest = self._rest[whole:]
            self._cut = True
        return lines

    def flush(self, last: bool = False) -> list[bytes]:
        """Return the incomplete line; `last` at the end of the output."""
        rest = self._rest.rstrip(b"\r")
        if rest and not last and (self._is_bar or rest != self._rest) and self._is_too_soon():
            return []
        self._rest = b""
        if rest:
            self._cut = True
        return self._fold(rest) if rest else []

    def _is_too_soon(self) -> bool:
        now = self._clock()
        if now - self._bar_shown < BAR_S:
            return True
        self._bar_shown = now
        return False

    def _fold(self, line: bytes) -> list[bytes]:
        pieces = [line[i : i + self._room] for i in range(0, len(line), self._room)] or [b""]
        return [self._prefix + piece + b"\n" for piece in pieces]


def write_lines(out: int, lines: list[bytes]) -> bool:
    """Write complete lines, as many at once as stay atomic; return False if the reader is gone."""
    block = b""
    for line in [*lines, b""]:
        if block and (not line or len(block) + len(line) > ATOMIC):
            while block:
                try:
                    block = block[os.write(out, block) :]
                except BlockingIOError:  # another process has made the shared pipe non-blocking
                    with selectors.DefaultSelector() as selector:
                        selector.register(out, selectors.EVENT_WRITE)
                        selector.select(1.0)
                except OSError:
                    return False
        block += line
    return True


class Merger:
    """Converter of one launch's output to complete lines without mpirun's tags.

    Args:
        label: precedes each line of the launcher itself; lines of ranks begin with host and rank already.
    """

    def __init__(self, label: bytes = b"") -> None:
        self._label = label
        self._rest = b""
        self._cut: dict[bytes, bytes] = {}  # tag -> start of its line
        self._blank: bool | None = None  # whether a blank follows each tag; known from the first line

    def feed(self, data: bytes) -> bytes:
        """Return the lines that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if (
            len(self._rest) > MOST_UNENDED
        ):  # ranks print shorter lines; a launcher can print one without an end
            lines.append(self._rest)
            self._rest = b""
        return b"".join(self._line(line) for line in lines)

    def close(self) -> bytes:
        """Return the rest at the end of the input."""
        last = self._line(self._rest) if self._rest else b""
        cut = b"".join(text + b"\n" for text in self._cut.values() if text)
        self._rest, self._cut = b"", {}
        return last + cut

    def _line(self, line: bytes) -> bytes:
        own, *tagged = TAG.split(line)
        tags, texts = tagged[::2], tagged[1::2]
        if own or not tags:
            label = b"" if OF_RANK.match(line) else self._label
            return label + line + b"\n"  # the launcher's own
        if self._blank is None:
            self._blank = texts[0].startswith(b" [")  # lines of ranks begin with their name in brackets
        for tag, text in zip(tags, texts):  # noqa: B905 (`strict` needs Python 3.10)
            self._cut[tag] = self._cut.get(tag, b"") + (text[1:] if self._blank else text)
        return self._cut.pop(tags[-1]) + b"\n"  # the line's end belongs to the last; the rest are cut
