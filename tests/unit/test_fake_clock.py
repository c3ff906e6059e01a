"""The clock of fake hosts jumps to the end of a wait only if nothing ends the wait before."""

from __future__ import annotations

import threading
import time

from tests.fuzz.fake_hosts import Clock

_REAL = time.monotonic


def test_a_notification_at_the_end_of_a_short_wait_arrives() -> None:
    clock, changed = Clock(), threading.Condition()
    heard: list[bool] = []

    def listen() -> None:
        with changed:
            heard.append(changed.wait(60))

    with clock.in_use():
        began = clock.monotonic()
        listener = threading.Thread(target=listen)
        listener.start()
        while not changed._waiters:  # type: ignore[attr-defined]
            assert listener.is_alive()
        with changed:
            # Busy, so that the clock does not jump, and for longer than it waits between two looks.
            until = _REAL() + 0.2
            while _REAL() < until:
                pass
            changed.notify()
        listener.join()
        assert heard == [True]
        assert clock.monotonic() - began < 30


def test_it_jumps_while_every_thread_waits() -> None:
    clock = Clock()
    began = time.monotonic()
    with clock.in_use():
        assert not threading.Event().wait(3600)
        assert clock.monotonic() - began >= 3600
    assert time.monotonic() - began < 60
