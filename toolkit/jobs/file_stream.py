"""Receiver of the files that ``toolkit/container/send_files.py send`` writes one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolkit.core.local_writer import IncomingFile, LocalWriter
from toolkit.core.remote_files import RemoteFile, bad_answer, decode_sent
from toolkit.errors import ToolkitError
from toolkit.protocol.files import MOST_BYTES


@dataclass
class FileStream:
    """Takes the bytes as they come; each file gets its name when it is complete.

    A file must not be larger than it was announced in the listing.

    Args:
        files: as requested, in this order.
        tell: called with the number of bytes received.
    """

    writer: LocalWriter
    files: Sequence[RemoteFile]
    tell: Callable[[int], None]
    received: int = 0
    refused: list[tuple[RemoteFile, str]] = field(default_factory=list)
    _next: int = 0
    _line: bytearray = field(default_factory=bytearray)
    _left: int = 0
    _mtime: int = 0
    _file: IncomingFile | None = None

    def __call__(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._file is None:
                end = data.find(b"\n", at, at + MOST_BYTES + 1) + 1
                self._line += data[at : end or at + MOST_BYTES + 1]
                at = end or at + MOST_BYTES + 1
                if len(self._line) > MOST_BYTES:
                    raise bad_answer("the length of a line", len(self._line), self.writer.host)
                if end:
                    self._begin(bytes(self._line))
                    self._line.clear()
            else:
                piece = data[at : at + self._left]
                self._file.write(piece)
                self._left -= len(piece)
                self.received += len(piece)
                at += len(piece)
                self.tell(self.received)
            if self._file is not None and not self._left:
                self._file.commit(self.files[self._next].mode & 0o755, self._mtime)
                self._file = None
                self._next += 1

    def _begin(self, line: bytes) -> None:
        host = self.writer.host
        if self.complete:
            raise ToolkitError(f"sends more than the {len(self.files)} files that were requested", "", host)
        sent, wanted = decode_sent(line, host), self.files[self._next]
        if sent.refused:
            self.refused.append((wanted, sent.refused))
            self._next += 1
            return
        if sent.size > wanted.size:
            raise bad_answer(f"size of {wanted.name!a}, announced with {wanted.size},", sent.size, host)
        self._left, self._mtime = sent.size, sent.mtime
        self._file = self.writer.create(wanted.name)

    @property
    def complete(self) -> bool:
        """Return whether every file has come or was refused."""
        return self._next == len(self.files)
