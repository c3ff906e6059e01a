"""A command line arrives as the argv that it was, whatever shell the account over there has."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest

from tests.unit.container_world import PATIENCE_S, wait_for
from toolkit.core.command import TIMED_OUT, Command, Ref, command, quoted, script
from toolkit.core.runner import ContainerRunner
from toolkit.errors import ToolkitError, Unreachable
from toolkit.remote.ssh import (
    MARK,
    SshRunner,
    _drain,
    _feed,
    _Framed,
    arriving,
    terminal_wire,
    wire,
    wire_and_input,
)
from toolkit.remote.ssh_config import Target

# Debian's names; what is a link to another one is tried once.
_NAMES = ("sh", "dash", "bash", "zsh", "fish", "tcsh", "bsd-csh", "ksh93")
SHELLS = list({os.path.realpath(path): name for name in _NAMES if (path := shutil.which(name))}.values())

AWKWARD = [
    "plain",
    "",
    " ",
    "two words",
    "it's",
    "''",
    "'",
    '"',
    "\\",
    "\\'",
    "a\\nb",
    "a\nb",
    "\n",
    "end\n",
    "tab\there",
    "cr\rhere",
    "$HOME",
    "${HOME}",
    "$(id)",
    "`id`",
    "!",
    "!!",
    "!x",
    "a!b",
    "^a^b",
    "*",
    "?",
    "[a-z]*",
    "{a,b}",
    "{}",
    "~",
    "~root",
    "=ls",
    "=eth0",
    "a=b",
    "%1",
    "%self",
    "%",
    "#x",
    "a#b",
    ";",
    "&",
    "|",
    "<x",
    ">x",
    "(x)",
    "--",
    "-n",
    "-e",
    "@",
    "@@",
    "a:b",
    "/a/b.c",
    "é",
    "日本",
    "\u00a0",
    "\x01",
    "\x7f",
    "\udcff\udcfe",
    "a'b'c",
    "$'x'",
    "'$HOME'",
    "\\$HOME",
    "x" * 5000,
]  # fmt: skip


@pytest.fixture(scope="module")
def show(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that prints its arguments, each ended by a zero byte."""
    path = tmp_path_factory.mktemp("show") / "show"
    path.write_text('#!/bin/sh\nfor token; do printf "%s\\0" "$token"; done\n')
    path.chmod(0o755)
    return str(path)


def arrived(shell: str, line: str, folder: Path) -> list[bytes]:
    done = subprocess.run(
        [shell, "-c", line], capture_output=True, timeout=PATIENCE_S, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"{MARK}\n".encode()
    assert done.stdout.startswith(f"{MARK}\n".encode())
    return done.stdout.removeprefix(f"{MARK}\n".encode()).split(b"\0")[:-1]


def sent(tokens: list[str]) -> list[bytes]:
    return [token.encode(errors="surrogateescape") for token in tokens]


@pytest.mark.parametrize("shell", SHELLS)
def test_awkward_arguments_arrive_as_they_were(shell: str, show: str, tmp_path: Path) -> None:
    # Each alone, so that one that needs packing does not carry the others along: many in one shell.
    for word in AWKWARD:
        line = wire(command(show, "before", word, "after"))
        assert arrived(shell, line, tmp_path) == sent(["before", word, "after"]), (shell, word)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_command_has_messages_in_english(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LANG", "LC_MESSAGES", "LC_ALL"):
        monkeypatch.setenv(name, "C.UTF-8")  # a locale that every host has
    for text in ('printf "%s\\0" "$LC_ALL"', 'printf "%s\\0" "$LC_ALL" \'é\''):
        assert arrived(shell, wire(script(text)), tmp_path)[0] == b"C"
    long = wire_and_input(script(f"{text} # {'x' * 100_000}"))
    done = subprocess.run([shell, "-c", long[0]], input=long[1], capture_output=True, check=True)
    assert done.stdout.startswith(f"{MARK}\nC\0".encode())


@pytest.mark.parametrize("shell", SHELLS)
def test_all_at_once_and_at_random(shell: str, show: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    letters = "ab '\"\\$`!*?[]{}()<>|;&~#=%^@:,.-\n\té"
    cases = [AWKWARD] + [
        ["".join(chance.choices(letters, k=chance.randrange(8))) for _ in range(4)] for _ in range(40)
    ]
    for words in cases:
        assert arrived(shell, wire(command(show, *words)), tmp_path) == sent(words), (shell, words)


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_and_limits(shell: str, show: str, tmp_path: Path) -> None:
    subject = script('for f; do\n  "$0" "it\'s $f"\ndone', "a b", "c")
    subject = Command(("sh", "-c", str(subject.argv[2]), show, "a b", "c"))
    for limit in (None, 20.0):
        assert arrived(shell, wire(subject, limit), tmp_path) == [b"it's a b", b"it's c"]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("limit", [None, 20.0])
def test_words_that_are_longer_than_an_argument_arrive_over_standard_input(
    shell: str, limit: float | None
) -> None:
    long = "it's long " * 20_000
    names = [f"gpu{number}=0123456789abcdef" for number in range(10_000)]
    cases = (
        (script(f"text={quoted(long)}; cat; echo ${{#text}} $2", "a", "b"), f"rest\n{len(long)} b\n"),
        (command("sh", "-c", "cat; echo $#", "sh", *names), f"rest\n{len(names)}\n"),
        (script(f"text={quoted(long)}; cat; echo ${{#text}} $#", *names), f"rest\n{len(long)} 10000\n"),
    )
    for asked, answer in cases:
        line, head = wire_and_input(asked, limit)
        assert head and len(line) < 2**17
        done = subprocess.run([shell, "-c", line], input=head + b"rest\n", capture_output=True, timeout=60)
        assert done.stdout.decode() == f"{MARK}\n{answer}", done.stderr


def test_an_argument_that_no_host_accepts_is_refused() -> None:
    with pytest.raises(ToolkitError, match="an argument of a command has 200000 bytes"):
        wire_and_input(command("echo", "x" * 200_000))


def test_a_limit_ends_the_command_over_there() -> None:
    done = subprocess.run(["sh", "-c", wire(command("sleep", "20"), 0.2)], check=False, timeout=PATIENCE_S)
    assert done.returncode == 124


def test_ordinary_lines_stay_readable() -> None:
    ordinary = command("docker", "exec", "x", "sh", "-c", 'echo "$HOME" && ls *')
    readable = "docker exec x sh -c 'echo \"$HOME\" && ls *'"
    assert wire(ordinary).endswith(f" sh {readable}")
    assert terminal_wire(ordinary) == readable


@pytest.mark.parametrize("shell", SHELLS)
def test_a_person_at_a_terminal_sees_no_marks(shell: str, show: str, tmp_path: Path) -> None:
    for word in AWKWARD:
        line = terminal_wire(command(show, word))
        done = subprocess.run([shell, "-c", line], capture_output=True, cwd=tmp_path, check=True)
        assert (done.stdout, done.stderr) == (sent([word])[0] + b"\0", b""), (shell, word)


@pytest.mark.parametrize("word", ["=ls", "%self", "%1"])
def test_words_that_zsh_or_fish_expand_without_quotes_are_packed(word: str) -> None:
    assert "base64" in wire(command("echo", word))


def test_statuses_pass_through_what_is_packed() -> None:
    line = wire(script("echo 'it''s'\nexit 7"))
    assert "base64" in line
    assert subprocess.run(["sh", "-c", line], check=False, capture_output=True).returncode == 7


def test_standard_input_passes_through_what_is_packed() -> None:
    line = wire(script("cat\n"))
    assert "base64" in line
    done = subprocess.run(["sh", "-c", line], input=b"fed", capture_output=True, check=True)
    assert done.stdout == f"{MARK}\nfed".encode()


def test_references_are_resolved_before_anything_is_sent() -> None:
    subject = command("use", Ref("gpu2", "container", "gpu2="), Ref("gpu3", "container", "gpu3="))
    with pytest.raises(ValueError, match="<container of gpu2>"):
        subject.shell()
    resolved = subject.resolved({("gpu2", "container"): "it's"})
    assert resolved.argv == ("use", "gpu2=it's")
    assert subject.line() == "use gpu2=<container of gpu2> gpu3=<container of gpu3>"


def test_standard_input_is_not_shown() -> None:
    subject = command("sh", stdin=b"secret").within("docker", "exec", "-i", "x")
    assert subject.argv == ("docker", "exec", "-i", "x", "sh")
    assert subject.stdin == b"secret"
    assert "secret" not in repr(subject) + subject.line()


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_what_a_login_shell_says_first_is_not_the_commands(size: int) -> None:
    """A banner may end without a newline, hold half a mark, and come in pieces of any size."""
    noise, said = b"Welcome!\n@@tool\n+ echo @@toolkit@@;\nno newline", b"\n@@toolkit@@\nout\0\xff"
    whole = noise + f"{MARK}\n".encode() + said
    got: list[bytes] = []
    framed = _Framed(got.append)
    for start in range(0, len(whole), size):
        framed(whole[start : start + size])
    assert framed.begun
    assert (framed.before, b"".join(got)) == (noise, said)


def test_a_shell_that_prints_without_end_is_an_error_of_its_host() -> None:
    framed = _Framed(lambda data: None, "gpu1")
    with pytest.raises(ToolkitError, match="the login shell of the host prints more than 128 KiB") as caught:
        for _ in range(1000):
            framed(b"x" * 1000)
    assert caught.value.host == "gpu1" and len(framed.before) < 200_000


def test_a_shell_that_runs_nothing_is_seen() -> None:
    framed = _Framed(lambda data: None)
    framed(b"This account is currently not available.\n")
    assert not framed.begun and framed.before.startswith(b"This account")


class Mouth:
    """A channel that accepts a number of pieces before its host dies."""

    def __init__(self, takes: int, error: Exception) -> None:
        self.got, self.takes, self.error, self.shut = list[bytes](), takes, error, False

    def sendall(self, data: bytes) -> None:
        if len(self.got) == self.takes:
            raise self.error
        self.got.append(data)

    def shutdown_write(self) -> None:
        self.shut = True
        if len(self.got) == self.takes:
            raise self.error


@pytest.mark.parametrize("error", [OSError("Socket is closed"), EOFError(), paramiko.SSHException("x")])
def test_a_host_that_dies_while_it_is_fed_is_told_by_who_waits_for_it(error: Exception) -> None:
    mouth: Any = Mouth(2, error)
    broken: list[BaseException] = []
    _feed(mouth, [b"a", b"b", b"c"], broken)
    assert (mouth.got, broken, mouth.shut) == ([b"a", b"b"], [], True)


def test_food_that_goes_bad_is_our_own_trouble() -> None:
    def source() -> Iterator[bytes]:
        yield b"a"
        raise OSError("Input/output error")

    mouth: Any = Mouth(9, OSError())
    broken: list[BaseException] = []
    _feed(mouth, source(), broken)
    assert mouth.got == [b"a"] and mouth.shut
    assert [str(error) for error in broken] == ["Input/output error"]


class Chatty:
    """A channel whose other end prints without end, 10 s apart."""

    def __init__(self) -> None:
        self.now, self.limit = 0.0, 0.0

    def settimeout(self, timeout: float | None) -> None:
        self.limit = timeout or 0.0

    def recv(self, nbytes: int) -> bytes:
        self.now += 10.0
        return b"x"


def test_output_without_end_does_not_move_the_limit_of_a_command() -> None:
    channel, found = Chatty(), b""
    with pytest.raises(TimeoutError):
        for data in arriving(channel, 35.0, clock=lambda: channel.now):
            found += data
    assert (found, channel.limit) == (b"xxxx", 5.0)


class Silent:
    """A channel whose other end sends one byte, then nothing; a wait without a limit is a failure.

    Args:
        ready: for how many waits bytes have arrived although the wait has ended.
    """

    def __init__(self, ready: int = 0) -> None:
        self.now, self.limit, self.begun, self.ready = 0.0, 0.0, False, ready

    def settimeout(self, timeout: float | None) -> None:
        self.limit = timeout or 0.0

    def recv(self, nbytes: int) -> bytes:
        assert self.limit, "it waits without a limit"
        if self.begun:
            self.now += self.limit
            raise TimeoutError
        self.begun = True
        return b"x"

    def recv_ready(self) -> bool:
        self.ready -= 1
        return self.ready >= 0


@pytest.mark.parametrize(
    ("until", "ready", "taken", "end"),
    [(None, 0, 0, 30.0), (35.0, 0, 0, 30.0), (20.0, 0, 0, 20.0), (None, 4, 0, 50.0), (None, 0, 3, 45.0)],
)
def test_a_silent_channel_is_given_up_after_the_shorter_limit(
    until: float | None, ready: int, taken: int, end: float
) -> None:
    """Bytes that have arrived, and pieces of input that were taken, are signs of life."""
    channel, found = Silent(ready), b""
    pieces = itertools.chain(range(taken + 1), itertools.repeat(taken))
    asked = {"silence": 30.0, "sent": lambda: next(pieces), "clock": lambda: channel.now}
    if not taken:
        asked["sent"] = lambda: 0
    with pytest.raises(TimeoutError):
        for data in arriving(channel, until, **asked):  # type: ignore[arg-type]
            found += data
    assert (found, channel.now) == (b"x", end)


class Counted(paramiko.Channel):
    """A channel of its own, without a connection, that counts the waits for standard error."""

    waits = 0

    def recv_stderr(self, nbytes: int) -> bytes:
        self.waits += 1
        return super().recv_stderr(nbytes)


def test_the_limit_for_standard_output_does_not_end_standard_error() -> None:
    channel, heard = Counted(1), list[bytes]()
    channel._set_window(2**21, 2**15)
    channel.settimeout(0.01)
    drain = threading.Thread(target=_drain, args=(channel, heard.append, []), daemon=True)
    drain.start()
    wait_for(lambda: channel.waits > 2)
    channel.in_stderr_buffer.feed(b"tar: Input/output error")
    wait_for(lambda: bool(heard))
    channel.closed = True
    drain.join(PATIENCE_S)
    assert heard == [b"tar: Input/output error"] and not drain.is_alive()


class Ended:
    """A channel on which a command has printed this and ended."""

    def __init__(self, status: int, out: bytes, err: bytes) -> None:
        self.status, self.limits = status, [0.0]
        self.out, self.err = ([f"{MARK}\n".encode() + data, b""] for data in (out, err))
        self.status_event = threading.Event()
        self.status_event.set()

    def settimeout(self, timeout: float | None) -> None:
        self.limits.append(timeout or 0.0)

    def exec_command(self, line: str) -> None:
        self.line = line

    def shutdown_write(self) -> None:
        self.shut = True

    def recv(self, nbytes: int) -> bytes:
        return self.out.pop(0)

    def recv_ready(self) -> bool:
        return False

    def recv_stderr(self, nbytes: int) -> bytes:
        return self.err.pop(0)

    def recv_exit_status(self) -> int:
        return self.status

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("status", "out", "err", "timeout", "said"),
    [
        (0, b"yes\n", b"", None, ""),
        (3, b"", b"no\n", 5.0, "no\n"),
        (TIMED_OUT, b"", b"", 5.0, "the command did not finish within 5 s"),
        (TIMED_OUT, b"", b"of its own\n", 5.0, "of its own\n"),
        (TIMED_OUT, b"", b"", None, ""),
    ],
)
def test_the_result_of_a_command_over_ssh(
    status: int, out: bytes, err: bytes, timeout: float | None, said: str
) -> None:
    channel = Ended(status, out, err)
    runner: Any = SshRunner(Target("gpu1", "10.0.0.1"))
    runner._link = SimpleNamespace(connection=SimpleNamespace(create_session=lambda: channel))
    done = runner.run(command("true"), timeout)
    assert (done.status, done.stdout, done.stderr) == (status, out.decode(), said)
    assert channel.line == wire(command("true"), timeout) and channel.shut and channel.closed
    # The host ends a late command itself, and is given time to do so.
    assert (max(channel.limits) > timeout) if timeout else max(channel.limits) == 0.0


def test_a_command_ends_when_its_standard_error_cannot_be_written() -> None:
    """It is not read from then on, so the command would wait, and its standard output would never end."""

    class Busy(Ended):
        def __init__(self) -> None:
            super().__init__(0, b"", b"many errors")
            self.hung_up = threading.Event()

        def recv(self, nbytes: int) -> bytes:
            assert self.hung_up.wait(PATIENCE_S), "standard error is not read, but the command goes on"
            return b""

        def close(self) -> None:
            super().close()
            self.hung_up.set()

    def full(data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    channel = Busy()
    runner: Any = SshRunner(Target("gpu1", "10.0.0.1"))
    runner._link = SimpleNamespace(connection=SimpleNamespace(create_session=lambda: channel))
    with pytest.raises(OSError, match="No space left on device"):
        runner.follow(command("make"), lambda data: None, full)


@pytest.mark.parametrize("hold", [False, True])
def test_a_long_command_comes_before_its_own_input(hold: bool) -> None:
    asked = script("cat #" + "x" * 200_000)
    line, head = wire_and_input(asked)

    class Fed(Ended):
        def __init__(self) -> None:
            super().__init__(0, b"", b"")
            self.fed, self.shut, self.complete = b"", False, threading.Event()

        def sendall(self, data: bytes) -> None:
            self.fed += data
            if self.fed == head + b"input":
                self.complete.set()

        def recv(self, nbytes: int) -> bytes:
            assert self.complete.wait(PATIENCE_S)
            return super().recv(nbytes)

    channel = Fed()
    runner: Any = SshRunner(Target("gpu1", "10.0.0.1"))
    runner._link = SimpleNamespace(connection=SimpleNamespace(create_session=lambda: channel))
    done = runner.follow(asked, lambda data: None, lambda data: None, [b"input"], hold=hold)
    assert (done.status, channel.line) == (0, line)
    # Standard input stays open with ``hold`` alone.
    if hold:
        time.sleep(0.2)
        assert not channel.shut
    else:
        wait_for(lambda: channel.shut)


@pytest.mark.parametrize("feeds", [False, True])
def test_a_host_that_sends_nothing_is_given_up(feeds: bool) -> None:
    class Mute(Ended):
        def recv(self, nbytes: int) -> bytes:
            if self.limits[-1]:
                raise TimeoutError
            return super().recv(nbytes)

        def sendall(self, data: bytes) -> None:
            pass

    channel = Mute(0, b"", b"")
    runner: Any = SshRunner(Target("gpu1", "10.0.0.1"))
    runner._link = SimpleNamespace(connection=SimpleNamespace(create_session=lambda: channel))
    inside = ContainerRunner(runner, "toolkit-demo-main")
    done = inside.stream(command("tar"), lambda data: None, [b"x"] if feeds else None, silence=30.0)
    assert (done.status, done.stderr) == (
        TIMED_OUT,
        "the command printed nothing for 30 s",
    ) and channel.closed


@pytest.mark.parametrize(("status", "code"), [(255, 255), (256, 255), (2**32 - 1, 255), (512, 255)])
def test_no_status_of_a_host_becomes_success_by_its_size(status: int, code: int) -> None:
    """A process that ends with 256 ends with 0."""
    runner: Any = SshRunner(Target("gpu1", "10.0.0.1"))
    runner._link = SimpleNamespace(
        connection=SimpleNamespace(
            create_session=lambda: Ended(status, b"", b""),
            run=lambda *_, **__: SimpleNamespace(return_code=status),
        )
    )
    assert runner.run(command("true")).status == code
    assert runner.interactive(command("sh")) == code


@pytest.mark.parametrize("error", [EOFError(), paramiko.SSHException("Timeout opening channel.")])
def test_a_shell_on_a_host_that_does_not_answer_is_an_error_of_its_host(error: Exception) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise error

    runner: Any = SshRunner(Target("gpu1", "10.0.0.1"))
    runner._link = SimpleNamespace(connection=SimpleNamespace(run=run), lost="")
    with pytest.raises(Unreachable, match="the connection was lost") as caught:
        runner.interactive(command("sh"))
    assert caught.value.host == "gpu1" and caught.value.fix


def test_output_of_many_lines_is_refused_before_it_fills_the_memory() -> None:
    channel = Ended(0, b"x\n" * (600 << 10), b"")
    runner: Any = SshRunner(Target("gpu1", "10.0.0.1"))
    runner._link = SimpleNamespace(connection=SimpleNamespace(create_session=lambda: channel))
    assert runner.run(command("true")).ok
    channel = Ended(0, b"x\n" * (1100 << 10), b"")
    with pytest.raises(ToolkitError, match="printed more than 32 MiB or 1048576 lines: true") as error:
        runner.run(command("true"))
    assert error.value.host == "gpu1"
