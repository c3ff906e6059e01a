"""A port of this machine whose connections are led elsewhere, over whatever opens a way there."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Protocol

import paramiko

_CHUNK = 2**16
_PAUSE_S = 0.05
# Other users of this machine can connect to it; other machines cannot.
LOOPBACK = "127.0.0.1"


class Stream(Protocol):
    """The methods of a paramiko channel that are used."""

    def recv(self, nbytes: int) -> bytes: ...

    def sendall(self, s: bytes) -> object: ...

    def shutdown_write(self) -> None: ...

    def close(self) -> None: ...


class Forward:
    """Listens on ``LOOPBACK`` until it is closed.

    Args:
        port: 0 for any that is free.
        dial: opens the way for one connection, or raises; then the connection is closed.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int, dial: Callable[[], Stream]) -> None:
        self._dial = dial
        self._closed = threading.Event()
        self._socket = socket.create_server((LOOPBACK, port))
        threading.Thread(target=self._serve, name="forward", daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def close(self) -> None:
        self._closed.set()
        # This wakes a thread that waits in accept(); close() alone does not wake it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                if self._closed.wait(_PAUSE_S):
                    return
                continue  # out of descriptors, or the caller disconnected: serve other callers
            threading.Thread(target=self._lead, args=(near,), name="forward", daemon=True).start()

    def _lead(self, near: socket.socket) -> None:
        with near, contextlib.suppress(Exception):  # `dial` reports the error
            far = self._dial()
            back = threading.Thread(target=_pour_back, args=(far, near), name="forward", daemon=True)
            back.start()
            try:
                while data := near.recv(_CHUNK):
                    far.sendall(data)
                far.shutdown_write()
            except (OSError, EOFError, paramiko.SSHException):
                # The local client has aborted the connection, and a silent service can keep its end forever.
                far.close()
            back.join()
            far.close()


def _pour_back(far: Stream, near: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while data := far.recv(_CHUNK):
            near.sendall(data)
    # The local client can still be sending, although the remote end has closed the connection.
    with contextlib.suppress(OSError):
        near.shutdown(socket.SHUT_RDWR)
