"""Help texts: one short line and an example per verb, readable options, and plain text at any width."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
import typer.main

from tests.unit.cli.test_lazy import TABLE
from tests.unit.conftest import Run
from tests.unit.each import for_each
from toolkit.cli import app as cli
from toolkit.cli.app import app
from toolkit.cli.help import option_text
from toolkit.cli.lazy import VerbGroup, loaded

PANELS = ["Set up", "Cluster", "Jobs", "Debug", "Performance", "Data", "Export"]
ROWS = {str(row.name): row for row in cli.VERBS} | TABLE


@for_each("name", ROWS)
def test_each_verb_has_one_line_of_at_most_60_characters(name: str) -> None:
    line = ROWS[name].help or ""
    assert "\n" not in line and line.endswith(".") and line[0].isupper()
    assert len(line) <= 60, f"{len(line)} characters: {line}"


def test_the_root_help_lists_each_verb_on_one_line_below_its_panel(run: Run) -> None:
    status, out, _ = run("--help")
    lines = out.splitlines()
    headings = [line.removesuffix(":") for line in lines if line.removesuffix(":") in PANELS]
    assert (status, headings) == (0, PANELS)
    for row in cli.VERBS:
        found = [line for line in lines if line.startswith(f"  {row.name} ")]
        assert len(found) == (not row.hidden)
        assert all(line.endswith((row.help or "").rstrip(".")) for line in found)


@for_each("name", TABLE)
def test_each_verb_has_an_example_that_its_own_options_accept(name: str) -> None:
    examples = TABLE[name].loaded.examples
    assert examples
    for example in examples:
        assert len(example) <= 90, example
        called, command = parse(example)
        assert loaded(command) is TABLE[name].loaded, f"{example} is an example of {called}"


def parse(example: str) -> tuple[str, Any]:
    """Return the verb that an example calls; raises the error of click if its options are wrong."""
    words = shlex.split(example.partition(" < ")[0], comments=True)
    assert words.pop(0) == "toolkit"
    command: Any = typer.main.get_command(app)
    called = []
    while isinstance(command, VerbGroup):
        called.append(words.pop(0))
        command = command.commands[called[-1]]
    loaded(command).make_context(" ".join(called), words)
    return " ".join(called), command


@pytest.mark.parametrize("example", ["toolkit up --no-such", "toolkit bench network --streams x"])
def test_an_example_with_a_wrong_option_is_found(example: str) -> None:
    with pytest.raises(typer.BadParameter.__mro__[1]):
        parse(example)


@for_each("name", TABLE)
def test_each_option_has_a_meaning_and_a_value_with_a_name(name: str) -> None:
    for option in TABLE[name].loaded.params:
        if option.param_type_name == "argument":
            assert option.metavar
            continue
        text = option.help or ""
        assert text[:1].isupper(), f"{option.opts}: {text}"
        assert not text.endswith(".") and "repeatable" not in text, f"{option.opts}: {text}"
        assert option.is_flag or option.metavar, f"{option.opts} has no name for its value"


@pytest.mark.parametrize(
    ("verb", "option", "text"),
    [
        ("run", "--only", "Use only the listed hosts (default: all hosts except spare hosts; repeatable)"),
        ("run", "--np", "Start N ranks (default: one per slot)"),
        ("run", "--hosts", "Path of hosts.yaml (default: hosts.yaml; variable: TOOLKIT_HOSTS)"),
        ("lab up", "--count", "Number of hosts, 1 to 200 (default: 2)"),
        ("run", "--detach", "Start the job and exit without following its output"),
        (
            "run",
            "--fold",
            "Hide tracebacks of torchrun itself. In a job of 3 or more ranks, collapse identical lines that "
            "several ranks print within 2 s (default: --fold)",
        ),
    ],
)
def test_defaults_variables_and_repetition_are_added(verb: str, option: str, text: str) -> None:
    found = next(param for param in TABLE[verb].loaded.params if option in param.opts)
    assert option_text(found) == text


@pytest.mark.parametrize("columns", [60, 80, 120, 300])
@for_each("name", ["", *TABLE])
def test_help_fits_the_terminal_and_has_no_type_names(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: int, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = run(*name.split(), "--help")
    assert status == 0 and "\x1b" not in out
    assert "<bool>" not in out and "TEXT" not in out
    # Usage lines and examples stay on one line, so that they can be pasted.
    free = [line for line in out.splitlines() if " toolkit " not in f" {line}"]
    assert [line for line in free if len(line) > min(max(columns, 80), 100)] == []


def test_both_ways_to_call_run_are_shown(run: Run) -> None:
    out = run("run", "--help")[1]
    assert (
        "Usage: toolkit run [OPTIONS] SCRIPT [ARGS]...\n       toolkit run [OPTIONS] -- COMMAND...\n" in out
    )


def test_only_a_terminal_gets_colors(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1mUsage:\x1b[0m" in typer.main.get_command(app).get_help(context())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in typer.main.get_command(app).get_help(context())


def context() -> Any:
    return typer.Context(typer.main.get_command(app), info_name="toolkit")  # type: ignore[arg-type]
