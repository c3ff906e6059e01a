"""The frames of relay.py: kind, flags, number, length and content, and what a compressed one holds."""

from __future__ import annotations

import contextlib
import ctypes
import ssl
from collections.abc import Callable
from typing import Any

from toolkit.protocol.chunks import CHUNK, HEAD, ZSTD


class Fault(Exception):
    """What a person is told."""


class Inflater:
    """Undoes zstd with the system's library, which Debian's and Red Hat's own package tools need."""

    def __init__(self) -> None:
        self.library: Any = None
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libzstd.so.1")
            library.ZSTD_decompress.restype = ctypes.c_size_t
            library.ZSTD_decompress.argtypes = (
                *(ctypes.c_void_p, ctypes.c_size_t),
                *(ctypes.c_char_p, ctypes.c_size_t),
            )
            library.ZSTD_isError.argtypes = (ctypes.c_size_t,)
            self.library = library

    def plain(self, flags: int, data: bytes) -> bytes:
        if not flags & ZSTD:
            return data
        if self.library is None:
            raise Fault("a compressed chunk, and this host has no libzstd.so.1")
        room = ctypes.create_string_buffer(CHUNK)
        size = self.library.ZSTD_decompress(room, CHUNK, data, len(data))
        if self.library.ZSTD_isError(size):
            raise Fault("a damaged chunk")
        return room.raw[:size]


def frame(read: Callable[[int], bytes], most: int) -> tuple[bytes, int, int, bytes]:
    kind, flags, number, size = HEAD.unpack(read(HEAD.size))
    if size > most:
        raise Fault("what came is no frame")
    return kind, flags, number, read(size)


def read_frame(link: ssl.SSLSocket) -> tuple[bytes, int, int, bytes]:
    # No other host is let fill this one's memory.
    return frame(lambda count: _receive(link, count), CHUNK)


def _receive(link: ssl.SSLSocket, count: int) -> bytes:
    room = memoryview(bytearray(count))
    done = 0
    while done < count:
        size = link.recv_into(room[done:])
        if not size:
            raise EOFError("it hung up")
        done += size
    return bytes(room)


def words_of(error: BaseException) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())
