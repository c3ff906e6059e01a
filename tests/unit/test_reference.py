"""What scripts/reference.py makes of commands, models and pages is up to date, and tells all of them."""

from __future__ import annotations

import os
import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

from tests.unit.docs_check import verbs
from toolkit.hostsfile.parse import json_schema

ROOT = Path(__file__).resolve().parents[2]
MAKER: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "reference.py"))


@cache
def pages() -> dict[str, str]:
    made: dict[str, str] = MAKER["pages"]()
    return made


def test_the_files_are_up_to_date() -> None:
    files: dict[Path, str] = MAKER["files"]()
    if os.environ.get("TOOLKIT_GOLDEN") == "1":
        for path, text in files.items():
            path.write_text(text, encoding="utf-8", newline="\n")
    differ = [path.name for path, text in files.items() if path.read_text(encoding="utf-8") != text]
    assert not differ, "`make docs` writes them anew"


def test_every_verb_and_option_is_told() -> None:
    sections = {
        part.partition("\n")[0]: part for part in re.split("^## ", pages()["cli.md"], flags=re.MULTILINE)
    }
    for name, verb in verbs().items():
        part = sections[f"toolkit {name}"]
        for option in verb.hidden:
            assert f"`{option}" not in part, f"{name} {option}"
        for option in verb.options - verb.hidden - {"-h", "--help"}:
            assert re.search(rf"`{re.escape(option)}[ `]", part), f"{name} {option}"


def test_every_key_is_told() -> None:
    schema = json_schema()
    lines = pages()["hosts-yaml.md"].splitlines()
    for model in (schema, *schema["$defs"].values()):
        for key, field in model["properties"].items():
            rows = [row.replace("\\|", "|") for row in lines if row.startswith(f"| `{key}` |")]
            assert any(field["description"] in row for row in rows), key
