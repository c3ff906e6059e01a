"""The end of a connection that is forwarded."""

from __future__ import annotations

import threading
from typing import Any

from tests.unit.container_world import PATIENCE_S
from toolkit.remote.port_forward import Forward


class Aborted:
    """The connection of a local client that has reset it."""

    def recv(self, nbytes: int) -> bytes:
        raise ConnectionResetError(104, "Connection reset by peer")

    def shutdown(self, how: int) -> None:
        raise OSError(107, "Transport endpoint is not connected")

    def __enter__(self) -> Aborted:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Idle:
    """A service that sends nothing until its client is gone."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def recv(self, nbytes: int) -> bytes:
        self.closed.wait()
        return b""

    def close(self) -> None:
        self.closed.set()


def test_an_aborted_connection_is_not_kept_open_at_the_host() -> None:
    forward: Any = Forward.__new__(Forward)
    far = Idle()
    forward._dial = lambda: far
    leading = threading.Thread(target=forward._lead, args=(Aborted(),), daemon=True)
    leading.start()
    leading.join(PATIENCE_S)
    try:
        assert far.closed.is_set() and not leading.is_alive()
    finally:
        far.close()
