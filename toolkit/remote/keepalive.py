"""Keepalive of connections: a hung host does not close its connections, so toolkit probes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

# Seconds between probes, and seconds without an answer after which a host counts as lost. Queued data is sent
# before the probe: at 1 Mb/s a window of 2 MiB takes 17 s.
EVERY_S, SILENCE_S = 5.0, 30.0


class Asked(Protocol):
    """The methods of a paramiko transport that are used."""

    def is_active(self) -> bool: ...

    def global_request(self, kind: str, data: Iterable[Any] | None = None, wait: bool = True) -> object: ...

    def close(self) -> None: ...


class Pulse:
    """Sends a request that every sshd answers, even if only with a failure (RFC 4254, 4).

    The kernel of a host acknowledges what is sent to a process that has stopped, so neither TCP nor a
    keepalive without an answer would notice.
    """

    def __init__(self, transport: Asked, every: float = EVERY_S, silence: float = SILENCE_S) -> None:
        self._transport, self._every, self._silence = transport, every, silence
        self._heard = time.monotonic()
        self.lost = ""  # reason, after the host stopped answering
        for work in (self._ask, self._watch):
            threading.Thread(target=self._guard, args=(work,), name="pulse", daemon=True).start()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if self._transport.is_active():  # else the error is that of a connection that was closed
                self.lost = f"toolkit cannot send a keepalive request: {error!r}"
                self._transport.close()

    def _ask(self) -> None:
        while self._transport.is_active():
            time.sleep(self._every)
            self._transport.global_request("keepalive@openssh.com", wait=True)
            self._heard = time.monotonic()

    def _watch(self) -> None:
        while self._transport.is_active():
            before = time.monotonic()
            time.sleep(min(1.0, self._every))
            now = time.monotonic()
            if now - before > 1.0 + self._silence / 2:
                self._heard = now  # this process was stopped, not the host
            elif now - self._heard > self._every + self._silence:
                self.lost = f"the host has not answered for {now - self._heard:.0f} s"
                self._transport.close()
                return
