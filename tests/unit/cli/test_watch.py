"""Ctrl-C while a job is followed, at moments that a test with a terminal cannot hit."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from tests.unit.container_world import PATIENCE_S
from tests.unit.each import for_each
from toolkit.cli import watch
from toolkit.cli.app import Toolkit
from toolkit.cli.common import confirm, say
from toolkit.cli.lazy import VerbGroup
from toolkit.cli.signals import Signals
from toolkit.cli.watch import _ask, _tell
from toolkit.errors import Detached
from toolkit.jobs.logs import Excerpt
from toolkit.jobs.status import JobStatus


class _Screen(io.StringIO):
    """A terminal on which Ctrl-C is pressed once the question is on it, before flush() has come back."""

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        raise KeyboardInterrupt


class _Held:
    held = threading.Lock()


def _pressed_at_once(monkeypatch: pytest.MonkeyPatch) -> _Screen:
    screen = _Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdin", screen)
    return screen


def test_a_second_ctrl_c_while_the_question_is_written_stops_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = Signals()
    screen = _pressed_at_once(monkeypatch)
    assert _ask("the-job", cast(Any, _Held()), signals) == "stop"
    assert "the-job is running" in screen.getvalue()
    assert not _Held.held.locked()


class _Typed(io.TextIOWrapper):
    """A terminal on which the user has typed these bytes."""

    def __init__(self, typed: bytes = b"") -> None:
        super().__init__(io.BytesIO(typed), encoding="utf-8")

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "answer"), [(b"s\n", "stop"), (b"\n", ""), (b"\xc3\n", ""), (b"\xc3s\n", ""), (b"", "detach")]
)
def test_half_a_character_in_an_answer_is_not_an_answer(
    monkeypatch: pytest.MonkeyPatch, typed: bytes, answer: str
) -> None:
    """A terminal without IUTF8 deletes one byte per Backspace and leaves the first byte of an umlaut."""
    signals = Signals()
    monkeypatch.setattr(sys, "stderr", _Typed())
    monkeypatch.setattr(sys, "stdin", _Typed(typed))
    assert _ask("the-job", cast(Any, _Held()), signals) == answer
    assert not _Held.held.locked()


@pytest.mark.parametrize(("typed", "answer"), [(b"y\n", True), (b"\n", False), (b"\xc3y\n", False)])
def test_half_a_character_is_not_a_yes(monkeypatch: pytest.MonkeyPatch, typed: bytes, answer: bool) -> None:
    monkeypatch.setattr(sys, "stderr", _Typed())
    monkeypatch.setattr(sys, "stdin", _Typed(typed))
    assert confirm("Remove the SSH keys?") is answer


@pytest.mark.parametrize("code", [0, 130])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_decides_the_exit_code_of_a_verb_that_ctrl_c_ends(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    """For Ctrl-C, `top` and `forward` exit with 0, and `logs` exits with 130 without an error message."""

    def verb(group: object, ctx: object) -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            if code:
                raise typer.Exit(code) from None

    monkeypatch.setattr(VerbGroup, "invoke", verb)
    with pytest.raises(typer.Exit) as end:
        Toolkit().invoke(None)
    assert end.value.exit_code == 128 + number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_a_verb_decides_the_exit_code_of_the_command(number: signal.Signals) -> None:
    """`run` needs the signal itself, and the command exits with 128 plus its number."""
    with Signals() as outer:
        with pytest.raises(KeyboardInterrupt), Signals() as inner:
            signal.raise_signal(number)
        assert (inner.got, outer.got) == (number, number)


_IN_A_CALLBACK = """
import signal, sys, threading, time, weakref
from toolkit.cli.tracebacks import escape_tracebacks

class Thing:
    pass

def slow(thread, start=threading.Thread.start):  # as on a busy machine
    start(thread)
    time.sleep(float(sys.argv[1]))

threading.Thread.start = slow

def interrupted(_reference):
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, signal.default_int_handler)  # the caller of the tests can ignore it
escape_tracebacks()
thing = Thing()
reference = weakref.ref(thing, interrupted)
try:
    del thing
    time.sleep(20)
    print("lost")
except KeyboardInterrupt:
    print("arrived")
"""


@pytest.mark.parametrize("seconds", ["0", "0.3"])
def test_a_ctrl_c_in_a_callback_of_the_interpreter_is_not_lost(seconds: str) -> None:
    argv = [sys.executable, "-c", _IN_A_CALLBACK, seconds]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "arrived\n", "")


def test_a_signal_while_the_question_is_written_detaches(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = Signals()
    signals.got = 15
    _pressed_at_once(monkeypatch)
    with pytest.raises(Detached) as told:
        _ask("the-job", cast(Any, _Held()), signals)
    assert told.value.exit_code == 128 + 15


def test_a_ctrl_c_while_the_offer_to_kill_is_written_kills_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[object, ...]] = []

    def say(text: str) -> None:
        done.append((text,))
        if "stopping" in text:
            raise KeyboardInterrupt

    def stop(session: Any, job: str, interrupt: bool = False, grace: float | None = None) -> None:
        done.append(("stop", job, grace))

    monkeypatch.setattr(watch, "say", say)
    monkeypatch.setattr("toolkit.cli.watch.stop", stop)
    monkeypatch.setattr("toolkit.cli.watch.kill", lambda session, job: done.append(("kill", job)))
    try:
        watch._stop(cast(Any, None), "the-job", Signals())
    except KeyboardInterrupt:
        pytest.fail("the key ended the command, and the job goes on")
    assert done[1:] == [("\nkilling the-job on all hosts",), ("kill", "the-job"), ("stop", "the-job", 0)]


def _failed(*last: str, reason: str = "rank 1 on box2 exited with code 1") -> JobStatus:
    return JobStatus("the-job", "failed", 1, 100.0, 102.0, reason, last_lines=last)


def test_a_missing_program_is_named_with_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    line = "[toolkit] cannot start ffmpeg: No such file or directory"
    _tell(replace(_failed(line, reason="rank 1 on box2 exited with exit code 127"), exit_code=127))
    *_, summary, fix = capsys.readouterr().err.splitlines()
    assert summary.endswith(f"exit code 127: rank 1 on box2 exited with exit code 127: {line}")
    assert fix.startswith("  fix: toolkit image build --pip requirements.txt && toolkit up  # if")


def test_the_summary_comes_last_with_the_error_of_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    left = tuple(sorted(f"box{number}" for number in (3, 4, 5, 9, 10)))
    _tell(replace(_failed("[rank1]: ModuleNotFoundError: No module named 'yaml'", "bye"), unswept=left))
    *lines, summary, fix = capsys.readouterr().err.splitlines()
    assert any("could not check box[3-5,9-10] for leftover processes" in line for line in lines)
    assert summary == (
        "job the-job: failed after 2.0 s, exit code 1: rank 1 on box2 exited with code 1: "
        "ModuleNotFoundError: No module named 'yaml'"
    )
    assert fix.startswith("  fix: toolkit image build --pip requirements.txt && toolkit up")
    assert "code" in fix


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ((), ""),
        (("one", "two", " "), "two"),
        (("torch.OutOfMemoryError: CUDA out of memory", "  at x", "done"), "torch.OutOfMemoryError: CUDA"),
        (("KeyError: 1", "During handling", "ValueError: 2", "Exception ignored in: <f>"), "ValueError: 2"),
        (("KeyboardInterrupt", "0 leaked"), "KeyboardInterrupt"),
        (("no Error: here",), "no Error: here"),
        (("  what():  [Rank 1] Watchdog caught x", "bye"), "Watchdog caught x"),
        (("KeyError: 1", "  what():  CUDA error: x"), "KeyError: 1"),
        (
            ("X.DistBackendError: NCCL communicator was aborted on rank 0. ", "bye"),
            "X.DistBackendError: NCCL",
        ),
        (("bye", "[rank1]:[W1126 22:29:30.9 x.cpp:1] Warning: y"), "bye"),
        (("[W x.cpp:1] Warning: y",), "[W x.cpp:1] Warning: y"),
    ],
)
def test_the_error_of_a_rank(last: tuple[str, ...], error: str) -> None:
    assert _failed(*last).error.startswith(error) and bool(_failed(*last).error) == bool(error)


def test_a_job_that_did_not_fail_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    _tell(replace(_failed("KeyError: 1", reason=""), state="succeeded", exit_code=0))
    assert capsys.readouterr().err == "job the-job: succeeded after 2.0 s, exit code 0\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("output", "starting", "lines"),
    [
        (b"", "ranks are starting on gpu[1-2]", 1),
        (b"step 1\n", "ranks are starting on gpu[1-2]", 0),
        (b"", "", 0),
    ],
)
def test_a_job_without_output_yet_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, output: bytes, starting: str, lines: int
) -> None:
    screen, ready, signals = _Terminal(), threading.Event(), Signals()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(watch, "_QUIET_S", 0.0)

    def follow(session: Any, job: str, sink: Any, what: Any) -> JobStatus:
        if output:
            sink(output)
        ready.wait(1.0)
        return _failed()

    monkeypatch.setattr(watch, "follow", follow)
    watch.watch(cast(Any, None), "the-job", signals, Excerpt(), "ask", lambda data: None, False, starting)
    said = screen.getvalue()
    why = "to see the reason, run in another terminal: toolkit why the-job"
    line = f"no output yet; ranks are starting on gpu[1-2] ({why})\n"
    assert said.count(line) == lines == said.count("no output yet")


# Output that cannot be written


WRITES = """
import sys
from toolkit.cli.common import put_json
put_json({"a": 1})
sys.stdin.read()
"""
DETACHES = """
import sys
from toolkit.cli import common, watch
from toolkit.cli.signals import Signals
from toolkit.errors import Detached
watch.follow = lambda *_: common.to_stdout(b"x")
sys.stdin.read()
try:
    watch.watch(None, "the-job", Signals(), None)
except Detached as error:
    raise SystemExit(f"{error.exit_code} {error.what}")
"""
FULL = Path("/dev/full")


def in_buffers(code: str, variables: dict[str, str] | None = None, **streams: Any) -> subprocess.Popen[bytes]:
    """Start a program whose standard output has a buffer, as that of users has, unless variables differ."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"} | (variables or {})
    return subprocess.Popen([sys.executable, "-c", code], env=env, **{"stderr": subprocess.PIPE, **streams})


def test_a_program_reads_json_while_the_command_runs() -> None:
    """As `toolkit forward --json`, which waits for Ctrl-C."""
    with in_buffers(WRITES, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin
        arrived = bool(select.select([process.stdout], [], [], PATIENCE_S)[0])
        process.stdin.close()
        assert arrived and process.stdout.read() == b'{\n  "a": 1\n}\n'


def test_a_closed_pipe_gives_the_status_of_sigpipe() -> None:
    """`toolkit run SCRIPT | head`: what is left in the buffer is not written again."""
    with in_buffers(DETACHES, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.close()
        said = process.stderr.read().decode()
    closed = "141 the program that read the output closed the pipe; the-job continues\n"
    assert (process.returncode, said) == (1, closed)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (DETACHES, "1 cannot print the output: No space left on device; the-job continues\n"),
        ("from toolkit.cli.common import put_text as put", ""),
        ("from toolkit.cli.common import put_json as put", ""),
    ],
)
def test_a_full_disk_under_the_output_is_an_error_without_a_traceback(code: str, words: str) -> None:
    put = "from toolkit.errors import ToolkitError\ntry:\n    put('x')\nexcept ToolkitError as error:\n"
    whole = code if words else f"{code}\n{put}    raise SystemExit(error.what)"
    with FULL.open("wb") as full, in_buffers(whole, stdin=subprocess.DEVNULL, stdout=full) as process:
        said = process.communicate()[1].decode()
    known = "cannot print the output: No space left on device\n"
    assert (process.returncode, said) == (1, words or known)


def test_a_command_that_passes_output_on_reports_a_full_disk() -> None:
    code = "import sys\nfrom toolkit.cli import app, common, version\n"
    passes = "version.put_text = lambda text: common.to_stdout(text.encode())\n"
    runs = "sys.argv[1:] = ['version', '--no-engine']\napp.main()"
    with FULL.open("wb") as full, in_buffers(f"{code}{passes}{runs}", stdout=full) as process:
        said = process.communicate()[1].decode()
    assert process.returncode == 1
    assert said.startswith("toolkit: cannot print the output: No space left on device\n"), said


MESSAGES = """
import os, sys
from toolkit.cli.common import put_text, say, to_stderr
accepts, full = os.dup(2), os.open("/dev/full", os.O_WRONLY)
os.dup2(full, 2)
say("lost")
to_stderr(b"lost too")
os.dup2(accepts, 2)
say("printed")
os.dup2(full, 2)
say("lost at the end")
put_text("result")
"""


def test_a_full_disk_under_messages_does_not_stop_a_command() -> None:
    """Otherwise a plan stops between two steps. Text that is left would make Python exit with 120."""
    with in_buffers(MESSAGES, stdout=subprocess.PIPE) as process:
        assert (*process.communicate(), process.returncode) == (b"result\n", b"printed\n", 0)


THREADS = """
import os, threading, time
from toolkit.cli import common
discard, begun = common._discard, threading.Event()
def slow(stream):
    discard(stream)
    begun.set()
    time.sleep(0.2)
common._discard = slow
def lose():
    with common._dropping_what_stderr_refuses():
        raise OSError("full")
thread = threading.Thread(target=lose)
thread.start()
begun.wait()
lose()
thread.join()
common.say("printed")
"""


def test_threads_that_lose_messages_keep_standard_error() -> None:
    with in_buffers(THREADS) as process:
        assert process.communicate()[1] == b"printed\n"


def test_an_error_has_its_exit_code_and_its_json_if_its_text_cannot_be_printed() -> None:
    words = command_line(["up", "--hosts", "absent.yaml", "--json"])
    with FULL.open("wb") as full, in_buffers(words, stdout=subprocess.PIPE, stderr=full) as process:
        out = process.communicate()[0]
    assert (process.returncode, json.loads(out)["error"]["exit_code"]) == (2, 2)


@for_each("error", [BrokenPipeError(errno.EPIPE, ""), OSError(errno.EIO, "")])
def test_a_closed_pipe_and_a_closed_terminal_end_a_command(error: OSError) -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", Closed())
        with pytest.raises(type(error)):
            say("x")


LOST = "toolkit: cannot print the output: No space left on device\n"
COMMAND_LINES = [
    (["--help"], 1),
    (["run", "--help"], 1),
    (["image", "--help"], 1),
    (["--version"], 1),
    ([], 2),
    (["render"], 2),
    (["status", "--json", "--hosts", "absent.yaml"], 2),
    (["status", "--bogus", "--json"], 2),
]


def command_line(words: list[str]) -> str:
    return f"import sys\nsys.argv[1:] = {words!r}\nfrom toolkit.__main__ import main\nmain()"


@pytest.mark.parametrize(("words", "code"), COMMAND_LINES)
@pytest.mark.parametrize("variables", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_every_command_line_reports_a_full_disk(
    words: list[str], code: int, variables: dict[str, str]
) -> None:
    """The exit code of an error remains, also if the error cannot be printed as JSON."""
    with FULL.open("wb") as full, in_buffers(command_line(words), variables, stdout=full) as process:
        said = process.communicate()[1].decode()
    assert (process.returncode, said.count(LOST), "Traceback" in said) == (code, 1, False), said


@pytest.mark.parametrize(("words", "code"), COMMAND_LINES)
def test_no_command_line_mentions_a_pipe_that_its_reader_closed(words: list[str], code: int) -> None:
    with in_buffers(command_line(words), stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        said = process.stderr.read().decode()
    # Of an error, the exit code remains.
    assert process.returncode == (141 if code == 1 else code)
    assert not re.search("Traceback|Broken|Errno|standard output", said), said
