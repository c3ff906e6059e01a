"""Commands in containers: what an accident of the engine's runtime does to them."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_world import unkillable_smi
from tests.unit.hosts_here import HostHere
from toolkit.core import runner as runners
from toolkit.core.command import TIMED_OUT, Command, Result, command, script
from toolkit.core.runner import ContainerRunner, Sink, _Announced, run_here, until_stdin_ends
from toolkit.remote.ssh import wire

ACCIDENT = (
    "OCI runtime exec failed: exec failed: unable to start container process: waiting for init preliminary"
    " setup: read init-p: connection reset by peer: unknown"
)
BEGUN = "@@begun@@\n"


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
    return ContainerRunner(HostHere("gpu1"), "toolkit-demo-main")


class Host:
    """Fails so first, then works. Engines say why where the command's output would come."""

    name = "gpu1"

    def __init__(self, *errors: str, place: str = "stdout", status: int = 126, begins: bool = False) -> None:
        self.errors, self.calls, self.place = list(errors), 0, place
        self.status, self.begins = status, begins

    def run(self, command: Command, timeout: float | None = None) -> Result:
        self.calls += 1
        begun = BEGUN if BEGUN.strip() in command.line() else ""
        if self.errors:
            said = {self.place: self.errors.pop(0)}
            said["stdout"] = (begun if self.begins else "") + said.get("stdout", "")
            return Result(self.status, **said)
        return Result(0, f"{begun}fine")

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
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
        for sink, text in ((err, result.stderr), (out, result.stdout)):
            for letter in text:
                sink(letter.encode())
        return Result(result.status)


def ways(*errors: str, **host: Any) -> Iterator[tuple[int, Result, str]]:
    """Every way to run a command in a container: number of runs, result, all that it printed."""
    for way, place in itertools.product(("run", "limited", "stream", "follow"), ("stdout", "stderr")):
        outer, heard = Host(*errors, place=place, **host), []
        inside = ContainerRunner(outer, "toolkit-demo-main")
        if way == "stream":
            result = inside.stream(command("true"), heard.append)
            yield outer.calls, result, b"".join(heard).decode() + result.stderr
        elif way == "follow":
            result = inside.follow(outer, command("true"), heard.append, heard.append, 5.0)
            yield outer.calls, result, b"".join(heard).decode()
        else:
            result = inside.run(command("true"), 5.0 if way == "limited" else None)
            yield outer.calls, result, result.output


@pytest.mark.parametrize(
    ("errors", "calls", "status"),
    [((), 1, 0), ((ACCIDENT,), 2, 0), ((ACCIDENT, ACCIDENT), 2, 126), (("words of any kind",), 2, 0)],
)
def test_what_the_engine_could_not_start_is_run_once_more(
    errors: tuple[str, ...], calls: int, status: int
) -> None:
    for made, result, said in ways(*errors):
        assert (made, result.status, said) == (calls, status, (*errors, "fine")[calls - 1])


@pytest.mark.parametrize("status", [1, 125, 126, 127, 255])
@pytest.mark.parametrize("words", [ACCIDENT, f"{BEGUN}{ACCIDENT}", "", "ttrpc: closed"])
def test_a_started_command_never_runs_twice(words: str, status: int) -> None:
    """Its output and its exit status do not matter."""
    for made, result, said in ways(words, begins=True, status=status):
        assert (made, result.status, said.strip()) == (1, status, words.strip())


@pytest.mark.parametrize("status", [1, 2, TIMED_OUT, 137, 143])
def test_other_statuses_are_final(status: int) -> None:
    assert [made for made, _, _ in ways(ACCIDENT, status=status)] == [1] * 8


def test_a_command_that_says_the_words_of_the_engine_runs_once(
    container: ContainerRunner, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    words = script('echo x >>"$1"; echo "$2"; echo "$2" >&2; exit 126', str(runs), ACCIDENT)
    for limit in (None, 20.0):
        result = container.run(words, limit)
        assert (result.status, result.stdout, result.stderr) == (126, f"{ACCIDENT}\n", f"{ACCIDENT}\n")
    said: list[bytes] = []
    assert container.stream(words, said.append).status == 126
    assert b"".join(said).decode() == f"{ACCIDENT}\n"
    assert runs.read_text() == "x\n" * 3


def test_what_was_fed_is_not_fed_again() -> None:
    host = Host(ACCIDENT)
    result = ContainerRunner(host, "toolkit-demo-main").stream(
        command("cat"), lambda data: None, iter([b"x"])
    )
    assert (host.calls, result.status) == (1, 126)


# Limits


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


def test_a_command_ends_with_its_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    held = until_stdin_ends(script('echo $$ >"$1"; echo begun; exec sleep 30', str(file)))
    with subprocess.Popen(held.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.stdin.close()
        assert process.wait(5) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


def test_a_command_may_end_before_its_standard_input() -> None:
    held = until_stdin_ends(script("echo out; echo err >&2; cat; exit 7"))
    with subprocess.Popen(
        held.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.wait(5) == 7
        assert process.stdout is not None and process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == (b"out\n", b"err\n")


def test_little_is_kept_of_a_command_that_does_not_begin() -> None:
    got, said = bytearray(), bytearray()
    streams = _Announced(got.extend, said.extend)
    for _ in range(1000):
        streams.out(b"x" * 1000)
        streams.err(b"y" * 1000)
    streams.give()
    assert not streams.begun and 0 < len(got) <= 1 << 17 and 0 < len(said) <= 1 << 17


# Programs of this machine


def test_a_program_of_this_machine_runs_to_its_end() -> None:
    given = "x" * 300_000
    done = run_here(("sh", "-c", "cat; printf 'a\\377\\r\\n' >&2; exit 3"), given)
    assert (done.status, done.stdout, done.stderr, done.raw) == (3, given, "a\ufffd\r\n", given.encode())
    assert run_here(("true",), given).ok, "input that is not read does no harm"
    late = run_here(("sh", "-c", "echo begun; exec sleep 60"), timeout=0.5)
    assert (late.status, late.stdout) == (TIMED_OUT, "begun\n")
    with pytest.raises(FileNotFoundError):
        run_here(("no-such-program",))


def test_an_unkillable_program_of_this_machine_does_not_hold_up_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = unkillable_smi(tmp_path, monkeypatch)
    start = time.monotonic()
    assert run_here(("nvidia-smi", "-L"), timeout=0.5).status == TIMED_OUT
    assert time.monotonic() - start < 20
    (process,) = killed
    process.terminate()
    process.wait()


def test_a_program_of_this_machine_that_prints_without_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an image can, whose python3 is any program."""
    monkeypatch.setattr(runners, "_MOST_HERE", 1 << 20)
    for line in ("exec yes", "exec yes >&2"):
        done = run_here(("sh", "-c", line), timeout=60)
        assert (done.status, done.stdout) == (1, "")
        assert done.stderr == "the program printed more than 1 MiB"
