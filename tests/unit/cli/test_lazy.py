"""Verbs are imported when they are called: what `--help` says of them, and what each brings in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import Run
from tests.unit.each import for_each
from toolkit.cli import app as cli
from toolkit.cli.lazy import Verb, VerbGroup

ROOT = Path(__file__).resolve().parents[3]


def every_verb(group: Any = cli.VERBS, name: str = "") -> Iterator[tuple[str, Verb]]:
    """Yield the full name and the row of each verb of the table."""
    for row in group:
        full = f"{name} {row.name}".strip()
        yield from every_verb(row.commands.values(), full) if isinstance(row, VerbGroup) else [(full, row)]


TABLE = dict(every_verb())
MODULES = {f"toolkit.cli.{verb.place.partition(':')[0]}" for verb in TABLE.values()}


@for_each("name", TABLE)
def test_the_table_says_what_the_verb_says(name: str) -> None:
    """The first paragraph stands twice, so that `--help` need not import the verb."""
    verb = TABLE[name]
    assert verb.loaded.help.split("\n\n")[0] == verb.help
    assert getdoc(verb.loaded.callback) == verb.loaded.help
    assert verb.loaded.name == verb.name


def imported(*words: str) -> set[str]:
    """Return the modules that a command line has imported at its end, in a process of its own."""
    code = (
        "import sys; from toolkit.cli.app import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('\\n', *sys.modules)"
    )
    argv = [sys.executable, "-c", code, *words]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("line", "verbs"),
    [
        ("--help", set()),
        ("--version", set()),
        ("render --help", set()),
        ("upp", set()),
        ("render helm", set()),
        ("schema", {"schema"}),
        ("version --no-engine", {"version"}),
        ("trust --hosts gone.yaml", {"trust"}),
    ],
)
def test_only_the_verb_that_is_called_is_imported(line: str, verbs: set[str]) -> None:
    assert imported(*line.split()) & MODULES == {f"toolkit.cli.{verb}" for verb in verbs}


def test_ctrl_c_while_a_verb_is_imported_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[str] = []

    def press(name: str) -> Any:
        if not pressed:
            pressed.append(name)
            raise KeyboardInterrupt
        return __import__(name, fromlist=["x"])

    # Rows keep what they have loaded.
    monkeypatch.delitem(TABLE["schema"].__dict__, "loaded", raising=False)
    monkeypatch.setattr("toolkit.cli.lazy.import_module", press)
    assert run("schema") == (130, "", "\ninterrupted\n")
    assert pressed == ["toolkit.cli.schema"]
