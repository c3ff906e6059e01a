"""The look into each host's container: one that the engine's runtime drops by accident is taken once more."""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from toolkit.cluster import container_probe
from toolkit.cluster.container_probe import look_inside
from toolkit.cluster.probe_containers import ENDED, Look
from toolkit.core.command import Command, Result, command
from toolkit.core.runner import Sink

ACCIDENT = (
    "docker: Error response from daemon: failed to create shim task: read init-p: connection reset by peer"
)


class Host:
    """Says the errors first, one a call; then listens and reports as the program does."""

    def __init__(self, name: str, *errors: str, status: int = 125) -> None:
        self.name, self.errors, self.calls, self.status = name, list(errors), 0, status

    def run(self, command: Command, timeout: float | None = None) -> Result:
        raise AssertionError("a look is a stream")

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        self.calls += 1
        words = iter(source or ())
        next(words)
        if self.errors:
            sink(f"{self.errors.pop(0)}\n\n{ENDED}{self.status}\n".encode())
            return Result(0, "", "", 0.0)
        sink(json.dumps({"ports": {"any": 40000}}).encode() + b"\n")
        next(words)
        sink(json.dumps({"pairs": {}, "now": 0.0}).encode() + b"\n")
        sink(f"\n{ENDED}0\n".encode())
        return Result(0, "", "", 0.0)


def looked(host: Host) -> str:
    look = Look(host.name, command("true"), b"head\n", "10.0.0.1", up=False)
    return look_inside((look,), {host.name: host})[host.name].error


def test_the_status_of_a_program_that_could_not_start_is_kept() -> None:
    class Bare(Host):
        def stream(
            self,
            command: Command,
            sink: Sink,
            source: Iterable[bytes] | None = None,
            silence: float | None = None,
        ) -> Result:
            sink(f"[FATAL tini (7)] exec python3 failed\n\n{ENDED}127\n".encode())
            return Result(0, "", "", 0.0)

    look = Look("gpu1", command("true"), b"head\n", "10.0.0.1", up=False)
    found = look_inside((look,), {"gpu1": Bare("gpu1")})["gpu1"]
    assert (found.status, found.error) == (127, "[FATAL tini (7)] exec python3 failed")


def test_a_look_that_never_began_is_taken_once_more() -> None:
    host = Host("gpu1", ACCIDENT)
    assert (looked(host), host.calls) == ("", 2)
    twice = Host("gpu1", ACCIDENT, ACCIDENT)
    assert (looked(twice), twice.calls) == (ACCIDENT.removeprefix("docker: "), 2)


def test_the_status_decides_and_not_the_words() -> None:
    other = Host("gpu1", "docker: no space left on device")
    assert (looked(other), other.calls) == ("", 2)
    for status in (0, 1, 124, 137):
        host = Host("gpu1", ACCIDENT, status=status)
        assert (looked(host), host.calls) == (ACCIDENT.removeprefix("docker: "), 1)
    odd = Host("gpu1", f"{ENDED}soon", status=1)
    looked(odd)
    assert odd.calls == 1


def test_a_host_that_prints_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        container_probe, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now)
    )

    class Endless(Host):
        def stream(
            self,
            command: Command,
            sink: Sink,
            source: Iterable[bytes] | None = None,
            silence: float | None = None,
        ) -> Result:
            while clock.now < 10_000:
                clock.now += 1.0
                sink(b"noise\n" * 100)
            return Result(0)

    assert (
        looked(Endless("gpu1")) == "the test program in the container does not stop printing"
        and clock.now < 200
    )
