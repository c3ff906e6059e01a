"""Verbs are imported when they are called: their lines in `--help`, and the packages that each imports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path
from typing import Any

import pytest

from tests.unit import layers
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
MODULE_TEXTS = layers.texts()
MODULES = {f"toolkit.cli.{verb.place.partition(':')[0]}" for verb in TABLE.values()}


@for_each("name", TABLE)
def test_the_table_says_what_the_verb_says(name: str) -> None:
    """The table repeats the first paragraph, so that `--help` imports no verb."""
    verb = TABLE[name]
    assert verb.loaded.help.split("\n\n")[0] == verb.help
    text, _, examples = (getdoc(verb.loaded.callback) or "").partition("\n\nExamples:\n")
    assert text == verb.loaded.help
    assert [line.strip() for line in examples.splitlines()] == list(verb.loaded.examples)
    assert verb.loaded.name == verb.name


OLD_OPTIONS = [
    ("image build", "--flavour", "--flavor"),
    ("lab up", "--hosts", "--count"),
    ("check", "--only", "--check"),
    ("bench network", "--engine", "--backend"),
    ("bench tune", "--engine", "--backend"),
    ("network tune", "--engine", "--backend"),
]


@pytest.mark.parametrize(("name", "old", "new"), OLD_OPTIONS)
def test_the_former_name_of_an_option_works_and_no_help_shows_it(
    run: Run, name: str, old: str, new: str, tmp_path: Path
) -> None:
    (tmp_path / "hosts.yaml").write_text("cluster: demo\nimage: toolkit:cpu\nhosts: [gpu1]\n")
    assert old in {word for param in TABLE[name].loaded.params if param.hidden for word in param.opts}
    value = "0" if name == "lab up" else "no-such"
    refused = [run(*name.split(), *words) for words in ((old, value), (new, value), (f"{old}={value}",))]
    assert refused[0][0] == 2 and new in refused[0][2]
    assert refused[0] == refused[1] == refused[2]
    shown = run(*name.split(), "--help")[1]
    assert new in shown and not re.search(rf"(?<![\w-]){old}\b", shown)


def test_a_list_option_combines_its_old_and_new_name() -> None:
    made = TABLE["check"].loaded.make_context("check", ["--only", "a", "--check", "b", "--only=c"])
    assert made.params["only"] == ["a", "b", "c"]


@pytest.mark.parametrize(("second", "first"), [("bench predict", "predict"), ("bench tune", "network tune")])
def test_a_verb_in_two_places_is_one_verb(second: str, first: str) -> None:
    assert TABLE[second] is TABLE[first]


def test_hidden_verbs_work_and_no_help_lists_them(run: Run) -> None:
    assert [name for name, verb in TABLE.items() if verb.hidden] == ["schema"]
    assert "schema" not in run("--help")[1]
    assert run("schema")[0] == 0


# Packages that take long to import. A verb that talks to hosts imports those for SSH when it connects.
HEAVY = {"docker", "fabric", "jinja2", "jsonschema", "paramiko", "pydantic", "requests", "rich", "yaml"}
ENGINE = {"docker", "requests"}
SSH = {"fabric", "paramiko"}
# What importing the module of a verb may bring in of them; the hosts file is YAML.
BRINGS = {
    "version": set(),
    "check": {"yaml", *SSH},
    "forward": {"yaml", *SSH},
    "gc": {"yaml", *SSH},
    "init": {"yaml", *SSH},
    "trust": {"yaml", *SSH},
    "top": {"yaml", "rich"},
    "up": {"yaml", *ENGINE},
    "run": {"yaml", *ENGINE},
    "image build": {"yaml", *ENGINE},
    "image send": {"yaml", *ENGINE},
    "image ls": {"yaml", *ENGINE},
    "image prune": {"yaml", *ENGINE},
    "lab up": {"yaml", "paramiko", *ENGINE},
    "lab down": {"yaml", "paramiko", *ENGINE},
    "lab status": {"yaml", "paramiko", *ENGINE},
}


@for_each("name", TABLE)
def test_a_verb_imports_only_the_heavy_packages_that_it_uses(name: str) -> None:
    module = f"toolkit.cli.{TABLE[name].place.partition(':')[0]}"
    assert layers.brought(module, MODULE_TEXTS) & HEAVY <= BRINGS.get(name, {"yaml"})


def test_what_a_module_brings_in_is_found_through_others() -> None:
    made = {
        "toolkit.cli.x": "import typer\nfrom toolkit.jobs.a import b\ndef f():\n    import fabric",
        "toolkit.jobs": "if 1:\n    import docker.errors",
        "toolkit.jobs.a": "import json\nfrom toolkit.core import c\nif TYPE_CHECKING:\n    import paramiko",
        "toolkit.core": "",
    }
    assert layers.brought("toolkit.cli.x", made) == {"typer", "docker"}
    assert layers.brought("toolkit.cli.app", MODULE_TEXTS) & HEAVY == set()


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
