"""Text of hosts and ranks on its way to a terminal: escaped by toolkit, filtered in the output of ranks."""

from __future__ import annotations

import ast
import io
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import toolkit
from tests.unit.each import for_each
from toolkit.cli import common, enter, get, progress, top
from toolkit.cli.failure import tell
from toolkit.cluster.gpu_usage import GpuUse, Holder, gpus_text
from toolkit.core.finding import Finding, findings_text
from toolkit.core.local_writer import Destination
from toolkit.core.printable import TerminalFilter, printable, printable_line, table, without_color
from toolkit.core.remote_files import RemoteFile
from toolkit.diagnose.known_errors import end_text
from toolkit.errors import CommandFailed, ToolkitError
from toolkit.jobs.get import Found
from toolkit.jobs.status import JobStatus, jobs_table
from toolkit.monitor.top import Cell
from toolkit.plan.execute import StepProgress

# A title, a cleared screen, a C1 control sequence, and text that is shown from right to left.
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt"


# Escaped text


@for_each(
    ("text", "shown"),
    [
        ("plain text, é, 日本, 👍", "plain text, é, 日本, 👍"),
        ("two\nlines\tof it\n", "two\nlines\tof it\n"),
        ("an end of line as Windows has it\r\n", "an end of line as Windows has it\n"),
        ("ok\rFAILED", r"ok\rFAILED"),
        (HOSTILE, SHOWN),
        ("\0\b\x7f\x80\x85\x9f", r"\x00\x08\x7f\x80\x85\x9f"),
        ("\u2028\u2029\u202a\u202e\u2066\u2069", r"\u2028\u2029\u202a\u202e\u2066\u2069"),
        # File names that are no UTF-8, that are UTF-8 and were read as ASCII, and what is no byte at all.
        ("caf\udce9", r"caf\xe9"),
        ("caf\udcc3\udca9", "café"),
        ("\udcc2\udc9b31m", r"\x9b31m"),
        ("\ud800 \udfff", r"\ud800 \udfff"),
    ],
)
def test_what_is_printed_controls_no_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown
    assert printable_line(text) == shown.replace("\n", r"\n").replace("\t", r"\t")
    shown.encode()


def test_every_character_that_controls_anything_is_escaped() -> None:
    controls = {
        *range(0x20),
        *range(0x7F, 0xA0),
        0x2028,
        0x2029,
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    }
    controls |= set(range(0xD800, 0xE000))
    escaped = {code for code in range(0x11000) if printable(chr(code)) != chr(code)}
    assert escaped == controls - {ord("\n"), ord("\t")}


def test_colors_of_a_quotation_go() -> None:
    assert without_color("\x1b[1;31mValueError\x1b[m: \x1b[38:2::1:2:3mx\x1b[0m") == "ValueError: x"
    assert without_color("\x1b[2J") == "\x1b[2J"


# The stream of a rank

STREAMS = [
    ("plain\r\n 12%|#2   | 12/100\r13%\b\b14%\t.\n", None),
    ("\x1b[31mred\x1b[0m \x1b[mplain \x1b[38;5;208mx \x1b[48:2::255:0:0my é日👍", None),
    ("a\x1b[2Jb\x1b[?1049hc\x1b[1;1Hd\x1b[6ne\x1b[!pf\x1b[>4;2mg\x1b[1 qh\x1b[?4mi", "abcdefghi"),
    ("a\x1b]0;title\x07b\x1b]52;c;aGk=\x1b\\c\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\d", "abclinkd"),
    ("a\x1bP+q544e\x1b\\b\x1b_Gf=100;AAAA\x1b\\c\x1b^pm\x1b\\d\x1bXsos\x1b\\e", "abcde"),
    ("a\x1bcb\x1b(Bc\x1b#8d\x1b7e\x1b%Gf\x1b=g\x1b$(Ah", "abcdefgh"),
    ("a\x9b2Jb\x9d0;title\x9cc\x90dcs\x9cd\x84e\x9b31mf", "abcde\x1b[31mf"),
    ("a\x00b\x05c\x07d\x0ee\x0ff\x7fg\x0bh\x0ci", "abcdefghi"),
    # A sequence that does not end hides no more than its line.
    ("a\x1b]0;never ends\nb\x1bPneither\rc\x1b[12\nd\x1b\ne", "a\nb\rc\nd\ne"),
    # One sequence within another.
    ("a\x1b[\x1b[31mb\x1b]0;\x1b[2Jc\x1b\x1b[1md\x1b[3\x9b1me", "a\x1b[31mbc\x1b[1md\x1b[1me"),
    ("a\x1b[31é\x1bé\x1b[0mb", "aéé\x1b[0mb"),
    ("a\x18b\x1ac\x1b[2\x18Jd\x1b]0;x\x18e", "abcJde"),
    ("a\x1b[" + "1;" * 200 + "mb", "ab"),
    ("a\u202eb\u2066c", "a\ufffdb\ufffdc"),  # text that would be shown in another order
    # Hidden text, however it is written; the 8 of a color is none.
    ("a\x1b[8mb\x1b[1;8mc\x1b[0008md\x1b[8:1me\x1b[4:8mf\x1b[;8;m\x9b8mg", "abcdefg"),
    ("a\x1b[38;5;8;8mb\x1b[38;5:1;8mc\x1b[38:5;8md\x1b[48;2;8;8;8;08me\x1b[264m\x1b[65544mf", "abcdef"),
    ("a\x1b[38;8mb\x1b[38;5mc\x1b[38;2;8;8md\x1b[48;3;8me\x1b[58mf\x1b[138;5;8mg", "abcdefg"),
    (
        "a\x1b[38;5;8mb\x1b[1;48;2;8;8;8;4mc\x1b[58:2::8:8:8md\x1b[4:3me\x1b[28m\x1b[97;107mf\x1b[038;05;8mg",
        None,
    ),
]


@for_each(("text", "shown"), STREAMS)
def test_colors_pass_and_other_sequences_go_wherever_the_stream_is_cut(text: str, shown: str | None) -> None:
    data, wanted = text.encode(), (text if shown is None else shown).encode()
    assert TerminalFilter().feed(data) == wanted
    for cut in range(len(data)):
        stream = TerminalFilter()
        assert stream.feed(data[:cut]) + stream.feed(data[cut:]) == wanted, cut
    stream = TerminalFilter()
    assert b"".join(stream.feed(data[at : at + 1]) for at in range(len(data))) == wanted


def test_bytes_that_are_no_text_pass_unless_a_terminal_without_utf8_obeys_them() -> None:
    assert TerminalFilter().feed(b"caf\xe9 \xff\n") == b"caf\xe9 \xff\n"
    assert (
        TerminalFilter().feed(b"a\x9b2Jb\xc2\x1b[2J\x9bc")
        == "a\ufffd2Jb".encode() + b"\xc2" + "\ufffdc".encode()
    )


def test_nothing_but_colors_comes_out_of_any_bytes() -> None:
    pieces = [
        b"\x1b",
        b"[",
        b"]",
        b"P",
        b"m",
        b"31",
        b";",
        b"\x9b",
        b"\xc2",
        b"\x07",
        b"\\",
        b"x",
        b"\n",
        b"\r",
    ]
    chance = random.Random(20261124)
    for _ in range(300):
        stream, shown = TerminalFilter(), b""
        for _ in range(40):
            shown += stream.feed(b"".join(chance.choices(pieces, k=chance.randrange(1, 6))))
        text = re.sub("\x1b\\[[0-9;:]*m", "", shown.decode(errors="surrogateescape"))
        assert not re.search("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udc9f]", text), shown


@for_each("begin", [b"\x1b]0;", b"\x1b[", b"\x1bP", b"\x1b_", b"\x1b ", "\x9d".encode()])
def test_an_endless_sequence_takes_no_memory(begin: bytes) -> None:
    stream = TerminalFilter()
    stream.feed(begin)
    for piece in (b"1" * 65536, b" " * 65536, b";" * 65536):
        stream.feed(piece)
    held = [value for value in vars(stream).values() if isinstance(value, (str, bytes))]
    assert sum(map(len, held)) <= TerminalFilter.LONGEST + 1
    assert stream.feed(b"\nshown\n").endswith(b"\nshown\n")


# Where ranks' output goes


class _Stdout(io.TextIOWrapper):
    """Standard output on a terminal, or on a pipe."""

    def __init__(self, terminal: bool) -> None:
        self.kept = io.BytesIO()
        super().__init__(self.kept, encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@for_each(
    ("terminal", "raw", "shown"),
    [
        (True, False, b"a\x1b[31m\x1b[0m\x1b[31mb\x1b[0m"),
        (True, True, b"a\x1b[31m\x1b[2Jb"),
        (False, False, b"a\x1b[31m\x1b[2Jb"),
    ],
)
def test_output_of_ranks_is_filtered_on_a_terminal_alone(
    terminal: bool, raw: bool, shown: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", out := _Stdout(terminal))
    sink = common.rank_output(raw)
    sink(b"a\x1b[31m\x1b[")
    sink(b"2Jb")
    assert out.kept.getvalue() == shown


@for_each(
    ("first", "second", "shown"),
    [
        (b"a\x1b[31;7;5mb", b"c\x1b[0md\n", b"a\x1b[31;7;5mb\x1b[0m|\x1b[31;7;5mc\x1b[0md\n\x1b[0m"),
        (b"a\x1b[3", b"1mb", b"a|\x1b[31mb\x1b[0m"),
        (b"\x1b[1;8mhidden\n", b"b\n", b"hidden\n|b\n"),
        (b"\x1b[1m\x1b[31ma\x1b[1mb", b"c", b"\x1b[1m\x1b[31ma\x1b[1mb\x1b[0m|\x1b[31m\x1b[1mc\x1b[0m"),
        (b"\x1b[1ma\x1b[0;31mb", b"c", b"\x1b[1ma\x1b[0;31mb\x1b[0m|\x1b[0;31mc\x1b[0m"),
        (b"\x1b[38;5;0ma", b"\x1b[2J", b"\x1b[38;5;0ma\x1b[0m|"),
        (b"\x1b[31ma\x1b[mb", b"c", b"\x1b[31ma\x1b[mb|c"),
    ],
)
def test_colors_of_ranks_do_not_apply_to_text_of_toolkit(
    first: bytes, second: bytes, shown: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", out := _Stdout(terminal=True))
    monkeypatch.setattr(sys, "stderr", out)
    sink = common.rank_output(raw=False)
    sink(first)
    common.ask("|")
    sink(second)
    assert out.kept.getvalue() == shown


def test_the_name_in_front_of_a_line_has_no_color_of_the_line_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := _Stdout(terminal=True))
    enter._put_named("gpu1", "\x1b[30;40ma\nb", raw=False)
    assert out.kept.getvalue() == b"[gpu1] \x1b[30;40ma\n\x1b[0m[gpu1] b\n"


def test_colors_that_are_never_reset_take_no_memory() -> None:
    stream = TerminalFilter()
    for red in range(1000):
        stream.piece(b"\x1b[38;2;%d;0;0mx" % red)
    assert len(stream.piece(b"x")) < 1000


# What toolkit prints itself


def _job(reason: str, *last: str) -> JobStatus:
    return JobStatus("the-job", "failed", 1, 100.0, 102.0, reason, last_lines=last)


def _found() -> dict[str, Found]:
    return {"gpu1": Found("gpu1", Destination(Path("runs"), ()), (RemoteFile("/x", HOSTILE),))}


def _gpus(monkeypatch: pytest.MonkeyPatch) -> str:
    use = GpuUse("gpu1", 0, "GPU-1", "A100", (Holder(user="eve", pid=1, program=HOSTILE),))
    monkeypatch.setattr("toolkit.cluster.gpu_usage.gpu_uses", lambda facts: (use,))
    return gpus_text(())


PRINTED: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "say": lambda _: common.say(HOSTILE),
    "put_text": lambda _: common.put_text(HOSTILE),
    "ask": lambda _: common.ask(HOSTILE),
    "confirm": lambda patch: (patch.setattr(sys, "stdin", io.StringIO("y\n")), common.confirm(HOSTILE)),
    "trace": lambda _: common.trace("gpu1", HOSTILE),
    "an error": lambda _: tell(ToolkitError(HOSTILE, "look", "gpu1"), False),
    "an error's fix": lambda _: tell(ToolkitError("no", f"ls {HOSTILE}", "gpu1"), False),
    "a command's output": lambda _: tell(CommandFailed("docker", 1, HOSTILE, "gpu1"), False),
    "a finding": lambda _: common.warn([Finding("x", "warning", HOSTILE, "fix", "gpu1", "/data")]),
    "findings": lambda _: common.put_text(findings_text([Finding("x", "error", HOSTILE, "fix", "a")], ["a"])),
    "a table": lambda _: common.put_text(table(("host", "note"), [("gpu1", HOSTILE)])),
    "reasons of jobs": lambda _: common.put_text(jobs_table([_job(HOSTILE)])),
    "the end of a job": lambda _: common.say(end_text(_job("", HOSTILE))),
    "holders of GPUs": lambda patch: common.put_text(_gpus(patch)),
    "files to get": lambda _: get._show_found("the-job", _found(), {}, False),
}


@for_each("name", PRINTED)
def test_text_from_hosts_is_escaped(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    PRINTED[name](monkeypatch)
    out, err = capsys.readouterr()
    assert not re.search("[^\n\t -~]", out + err)
    assert SHOWN in out + err


@for_each(
    "code",
    [
        "fail()",
        "thread = threading.Thread(target=fail); thread.start(); thread.join(); raise OSError",
        "x = type('X', (), {'__del__': lambda self: fail()})(); del x; raise OSError",
    ],
)
def test_a_traceback_is_escaped_and_keeps_its_lines(code: str) -> None:
    program = (
        "import threading, toolkit.__main__, toolkit.cli.app\n"
        f"def fail(): raise ValueError({HOSTILE!r})\n"
        f"def run():\n {code}\n"
        "toolkit.cli.app.main = run\n"
        "toolkit.__main__.main()\n"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=PACKAGE.parent, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert f"ValueError: {SHOWN}\n" in done.stderr and not re.search("[^\n -~]", done.stderr)


def test_json_holds_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    value = {HOSTILE: [HOSTILE, "\x7f\u2028\ud800"]}
    common.put_json(value)
    out = capsys.readouterr().out
    assert not re.search("[^\n -~]", out) and json.loads(out) == value


def test_a_cell_of_a_table_and_a_finding_are_one_line_each() -> None:
    forged = "x\n  ok  gpu2: all is well"
    assert len(table(("host",), [(forged,)]).splitlines()) == 2
    found = findings_text([Finding("x", "error", forged, forged, "gpu1")], ["gpu1"])
    assert not any(line.startswith("  ok") for line in found.splitlines())


def test_the_output_of_a_command_is_no_fix_of_toolkit(capsys: pytest.CaptureFixture[str]) -> None:
    tell(
        CommandFailed("docker info", 1, "no engine\n  fix: rm -rf ~\r  fix: reboot", "gpu1", "restart it"),
        False,
    )
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.lstrip().startswith("fix:")] == ["  fix: restart it"]
    assert "    | no engine" in lines


def test_a_color_in_the_last_lines_of_a_rank_is_left_out() -> None:
    assert "    ValueError: x\n" in end_text(_job("", "\x1b[31mValueError\x1b[0m: x"))


def test_the_end_of_a_job_without_an_exit_code() -> None:
    lost = JobStatus("the-job", "lost", None, 100.0, None, "")
    assert end_text(lost) == "job the-job: lost\n"


def test_the_screen_of_top_and_bars_show_escaped_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(top._text(Cell(f"{HOSTILE}\n"))) == SHOWN + r"\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.Progress(False) as shown:
        shown(StepProgress("gpu1", HOSTILE + "[red]", 1, 2))
        (task,) = shown._bars.tasks
        assert task.description == f"gpu1: {SHOWN}[red]"
        assert not any(getattr(column, "markup", False) for column in shown._bars.columns)


# No module prints around these functions

PACKAGE = Path(toolkit.__file__).parent
WRITER = "cli/common.py"
# Modules that use a stream without such text: a constant, the numbers of files.
STREAMS_OF = {"__main__.py", "cli/signals.py"}
# Modules that draw with rich; test_the_screen_of_top_and_bars_show_escaped_text is about them.
DRAWS = {"cli/top.py", "cli/progress.py"}


def prints(path: str, text: str) -> Iterator[str]:
    """Yield each expression of a module that prints without toolkit.cli.common."""
    if not re.search(r"std(out|err)|print|write|echo|confirm|prompt|Console", text):
        return  # it contains none of the names, and need not be parsed
    nodes = list(ast.walk(ast.parse(text)))
    asked = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == "isatty"}
    for node in nodes:
        name = ast.unparse(node) if isinstance(node, ast.Attribute) and "std" in node.attr else ""
        if re.fullmatch(r"sys\.(__)?std(out|err)(__)?", name):
            if id(node) not in asked and path not in STREAMS_OF:
                yield name
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            words = f"{called}({ast.unparse(node.args[0]) if node.args else ''})"
            draws = called.split(".")[-1] == "Console" and path not in DRAWS
            if draws or re.match(
                r"print\(|(typer|click)\.(secho|echo|confirm|prompt)\(|os\.write\([12]\)", words
            ):
                yield called
        elif isinstance(node, ast.ImportFrom) and node.module in ("sys", "typer", "click"):
            yield from (n.name for n in node.names if n.name in ("stdout", "stderr", "echo", "secho"))


def test_no_module_prints_without_escaping() -> None:
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE).as_posix()
        # Programs of toolkit/container run on hosts and in containers, where their output is read by others.
        if not path.startswith(("container/", "_data/")) and path != WRITER:
            found[path] = list(prints(path, file.read_text(encoding="utf-8")))
    found = {path: names for path, names in found.items() if names}
    assert not found, f"use say, put_text, ask, put_json or put_file of toolkit.cli.common: {found}"


@for_each(
    ("text", "names"),
    [
        ("print(x)", ["print"]),
        ("import sys\nsys.stdout.write(x)", ["sys.stdout"]),
        ("import sys\nprint(x, file=sys.stderr)", ["print", "sys.stderr"]),
        ("import sys\nsys.__stdout__.buffer.write(x)", ["sys.__stdout__"]),
        ("from sys import stdout", ["stdout"]),
        ("import os\nos.write(1, x)", ["os.write"]),
        ("import typer\ntyper.echo(x)", ["typer.echo"]),
        ("from rich.console import Console\nConsole(stderr=True)", ["Console"]),
        ("import sys\nsys.stdout.isatty()", []),
        ("import os\nos.write(file, x)", []),
    ],
)
def test_the_checker_sees_each_way_to_print(text: str, names: list[str]) -> None:
    assert sorted(prints("cli/x.py", text)) == sorted(names)
