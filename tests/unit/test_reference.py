"""The generated reference pages are up to date and complete."""

from __future__ import annotations

import os
import re
import runpy
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.unit.docs_check import verbs
from toolkit.diagnose.messages import by_name, message_of
from toolkit.hostsfile.parse import json_schema

ROOT = Path(__file__).resolve().parents[2]
MAKER: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "reference.py"))
message_page: Any = sys.modules["message_page"]  # scripts/reference.py imports it


@cache
def files() -> dict[Path, str]:
    made: dict[Path, str] = MAKER["files"]()
    return made


def pages() -> dict[str, str]:
    return {path.name: text for path, text in files().items()}


@cache
def errors_in_source() -> list[Any]:
    return list(message_page.raised(ROOT / "toolkit"))


def test_the_files_are_up_to_date() -> None:
    if os.environ.get("TOOLKIT_GOLDEN") == "1":
        for path, text in files().items():
            path.write_text(text, encoding="utf-8", newline="\n")
    differ = [path.name for path, text in files().items() if path.read_text(encoding="utf-8") != text]
    assert not differ, "run `make docs` and commit its changes"


def test_the_page_has_every_verb_and_option() -> None:
    sections = {
        part.partition("\n")[0]: part for part in re.split("^## ", pages()["cli.md"], flags=re.MULTILINE)
    }
    for name, verb in verbs().items():
        part = sections[f"toolkit {name}"]
        for option in verb.hidden:
            assert f"`{option}" not in part, f"{name} {option}"
        for option in verb.options - verb.hidden - {"-h", "--help"}:
            assert re.search(rf"`{re.escape(option)}[ `]", part), f"{name} {option}"


def test_the_page_has_every_key() -> None:
    schema = json_schema()
    lines = pages()["hosts-yaml.md"].splitlines()
    for model in (schema, *schema["$defs"].values()):
        for key, field in model["properties"].items():
            rows = [row.replace("\\|", "|") for row in lines if row.startswith(f"| `{key}` |")]
            assert any(field["description"] in row for row in rows), key


def test_the_page_has_every_message() -> None:
    page = pages()["messages.md"].replace("\\|", "|")
    own = [way for message in by_name().values() for way in message.says]
    assert [way for way in own if f"`{way}`" not in page and f"`` {way} ``" not in page] == []
    found = errors_in_source()
    assert len(found) > 200
    missing = {each.text for each in found if message_of(each.text) is None and each.text not in page}
    assert missing == set()


def test_errors_are_found_in_source() -> None:
    source = """
_FIX = "toolkit up, then again"

def one(name, ready):
    raise NotReady(f"{name.host} has no container of {name.cluster}", _FIX)

def two(error):
    what = "the first words of all" if error else f"other words: {error}"
    if error:
        raise BadInput("x", (Problem("a/b", what), Problem("", "wrong" + f" as {error} is " + "a value")))
    what = "much later words"
    raise ToolkitError(what, fix=f"toolkit stop {error.job}")
    raise Detached(error.job, "the terminal is gone")
    raise ValueError("not an error of toolkit")
"""
    assert [(each.text, each.fix, each.exit_code) for each in message_page.raised_by(source)] == [
        ("HOST has no container of CLUSTER", "toolkit up, then again", 3),
        ("the first words of all", "", 2),
        ("other words: ERROR", "", 2),
        ("wrong as ERROR is a value", "", 2),
        ("much later words", "toolkit stop JOB", 1),
        ("the terminal is gone", "", 130),
    ]


def test_most_errors_have_words_that_the_page_can_find() -> None:
    """An error whose words come from elsewhere is not on the page: their number must not grow unnoticed."""
    calls = re.compile(r"\b(?:ToolkitError|NotReady|Unreachable|ImageError|LabError|MissingTool)\(")
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "toolkit").rglob("*.py"))
    total = sum(len(calls.findall(text)) for text in texts)
    found = [each for each in errors_in_source() if each.exit_code != 2]
    assert len(found) > 0.8 * total
