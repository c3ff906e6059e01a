"""A connection whose other end stops answering."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from tests.unit.container_world import PATIENCE_S, wait_for
from toolkit.remote.keepalive import Pulse


class Transport:
    """Answers a number of probes, and then none until it is closed."""

    def __init__(self, answers: int) -> None:
        self.left, self.asked = answers, 0
        self.closed = threading.Event()

    def is_active(self) -> bool:
        return not self.closed.is_set()

    def global_request(self, kind: str, data: Iterable[Any] | None = None, wait: bool = True) -> None:
        self.asked += 1
        if self.asked > self.left:
            self.closed.wait()

    def close(self) -> None:
        self.closed.set()


def test_silence_ends_the_connection() -> None:
    transport = Transport(3)
    pulse = Pulse(transport, every=0.02, silence=0.1)
    assert transport.closed.wait(PATIENCE_S) and transport.asked <= 4
    assert pulse.lost.startswith("the host has not answered for ")


def test_answers_keep_it() -> None:
    transport = Transport(10**6)
    pulse = Pulse(transport, every=0.01, silence=PATIENCE_S)
    wait_for(lambda: transport.asked > 10)
    assert transport.is_active() and not pulse.lost
    transport.close()


def test_a_connection_that_cannot_be_asked_is_lost_with_the_reason() -> None:
    class Broken(Transport):
        def global_request(self, kind: str, data: Iterable[Any] | None = None, wait: bool = True) -> None:
            raise KeyError(kind)

    transport = Broken(0)
    pulse = Pulse(transport, every=0.01, silence=600.0)
    assert transport.closed.wait(5)
    assert pulse.lost == "toolkit cannot send a keepalive request: KeyError('keepalive@openssh.com')"
