"""Commands in containers: what an accident of the engine's runtime does to them."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from toolkit.core.command import Command, command, script
from toolkit.core.result import TIMED_OUT, Result
from toolkit.effects.runner import ContainerRunner, LocalRunner, Sink
from toolkit.effects.ssh import wire

ACCIDENT = (
    "OCI runtime exec failed: exec failed: unable to start container process: waiting for init preliminary"
    " setup: read init-p: connection reset by peer: unknown"
)
ABSENT = (
    'OCI runtime exec failed: exec failed: unable to start container process: exec: "x": not found: unknown'
)


class Host:
    """Fails with these words first, then works. Engines say them where the command's output would come."""

    name = "gpu1"

    def __init__(self, *errors: str, place: str = "stdout") -> None:
        self.errors, self.calls, self.place = list(errors), 0, place

    def run(self, command: Command, timeout: float | None = None) -> Result:
        self.calls += 1
        return Result(126, **{self.place: self.errors.pop(0)}) if self.errors else Result(0, "fine")

    def stream(self, command: Command, sink: Sink, source: Iterable[bytes] | None = None) -> Result:
        result = self.run(command)
        for letter in result.stdout:
            sink(letter.encode())
        return Result(result.status, "", result.stderr)

    def follow(
        self,
        command: Command,
        out: Sink,
        err: Sink,
        source: Iterable[bytes] | None = None,
        timeout: float | None = None,
        hold: bool = False,
    ) -> Result:
        result = self.run(command, timeout)
        for sink, text in ((out, result.stdout), (err, result.stderr)):
            for letter in text:
                sink(letter.encode())
        return Result(result.status)


@pytest.mark.parametrize(
    ("errors", "calls", "status"),
    [((), 1, 0), ((ACCIDENT,), 2, 0), ((ACCIDENT, ACCIDENT), 2, 126), ((ABSENT,), 1, 126)],
)
def test_what_never_ran_for_an_accident_is_run_once_more(
    errors: tuple[str, ...], calls: int, status: int
) -> None:
    last = (*errors, "fine")[calls - 1]
    for way, place in itertools.product(("run", "limited", "stream", "follow"), ("stdout", "stderr")):
        host, heard = Host(*errors, place=place), []
        inside = ContainerRunner(host, "toolkit-demo-main")
        if way == "stream":
            result = inside.stream(command("true"), heard.append)
            assert b"".join(heard).decode() == (last if place == "stdout" or not status else "")
        elif way == "follow":
            beside: list[bytes] = []
            result = inside.follow(host, command("true"), heard.append, beside.append, 5.0)
            assert b"".join((*heard, *beside)).decode() == last
        else:
            result = inside.run(command("true"), 5.0 if way == "limited" else None)
            assert result.output == last
        assert (host.calls, result.status) == (calls, status), (way, place)


def test_what_was_fed_is_not_fed_again() -> None:
    host = Host(ACCIDENT)
    result = ContainerRunner(host, "toolkit-demo-main").stream(
        command("cat"), lambda data: None, iter([b"x"])
    )
    assert (host.calls, result.status) == (1, 126)


# Limits

_DOCKER = """#!/bin/sh
# `docker exec [-i] [-u USER] NAME COMMAND...` with this machine as the container.
shift
while [ "${1#-}" != "$1" ]; do [ "$1" != -u ] || shift; shift; done
shift
exec "$@"
"""


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContainerRunner:
    """This machine as a container."""
    docker = tmp_path / "docker"
    docker.write_text(_DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return ContainerRunner(LocalRunner(), "toolkit-demo-main")


def test_a_limit_of_less_than_a_second_ends_what_runs_in_the_container(
    container: ContainerRunner, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    result = container.run(script('echo $$ >"$1"; exec sleep 30', str(file)), 0.3)
    process = int(file.read_text())
    try:
        assert result.status == TIMED_OUT
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.3, 0.5, 1.0, 1.2, 2.5, 30, 100.01])
def test_no_way_to_run_a_command_makes_a_limit_shorter_or_none(seconds: float) -> None:
    def limit(line: str) -> int:
        (found,) = re.findall(r"timeout -k 5 (\d+) x$", line)
        return int(found)

    host = Asked()
    ContainerRunner(host, "c").run(command("x"), seconds)
    ContainerRunner(host, "c").follow(host, command("x"), len, len, seconds)
    limits = [limit(one.line()) for one in host.asked]
    limits.append(limit(wire(command("x"), seconds)))
    assert limits == [max(1, math.ceil(seconds))] * 3
    assert host.limits[0] == host.limits[1] and host.limits[0] > limits[0]


class Asked(Host):
    """Keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Command] = []
        self.limits: list[float] = []

    def run(self, command: Command, timeout: float | None = None) -> Result:
        self.asked.append(command)
        self.limits.append(timeout or 0.0)
        return super().run(command, timeout)
