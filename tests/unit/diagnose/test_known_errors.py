"""The catalogue of known errors: every entry by real words, none by healthy logs, none slow."""

from __future__ import annotations

import functools
import re
import time
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.unit.docs_check import command_faults, verbs
from tests.unit.each import for_each
from toolkit.core.templates import package_text
from toolkit.diagnose.known_errors import CHUNK, GAP, LONGEST_LINE, OR, KnownError, known_errors, match
from toolkit.hostsfile.parse import json_schema

# Lines as jobs print them: below each name one or more that are this error, and those of healthy jobs.
FOLDER = Path(__file__).parents[1] / "known_lines"
HEALTHY = (FOLDER / "healthy.txt").read_text(encoding="utf-8").splitlines()


def real_lines() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (FOLDER / "errors.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            lines = found.setdefault(line[2:], [])
        else:
            lines.append(line)
    return found


LINES = real_lines()
BY_NAME = {error.name: error for error in known_errors()}
EACH = [pytest.param(name, line, id=f"{name}-{i}") for name in LINES for i, line in enumerate(LINES[name])]
VERBS = verbs()


def names(*lines: str) -> list[str]:
    return [error.name for error in match(lines)]


@functools.cache
def keys_of_hosts_yaml() -> set[str]:
    schema = json_schema()
    models = [schema, *schema["$defs"].values()]
    return {key for model in models for key in model.get("properties", ())}


ENTRY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
        "says": {
            "type": "array",
            "items": {"type": "string", "minLength": 4, "not": {"pattern": r" \| "}},
            "minItems": 1,
            "uniqueItems": True,
        },
        "what": {"type": "string", "pattern": r"^\S.*\.$"},
        "fix": {"type": "string", "pattern": r"^\S.*[^.\s]$"},
        "follows": {"const": True},
        "timeout": {"const": True},
    },
    "required": ["name", "says", "what", "fix"],
    "additionalProperties": False,
}
SCHEMA = {"type": "object", "additionalProperties": {"type": "array", "items": ENTRY, "minItems": 1}}


def test_the_file_has_the_form_that_it_describes() -> None:
    value = yaml.safe_load(package_text("diagnose/known_errors.yaml"))
    jsonschema.validate(value, SCHEMA)
    rows = [row for group in value.values() for row in group]
    assert [row["name"] for row in rows] == [error.name for error in known_errors()]
    assert [OR.join(row["says"]) for row in rows] == [error.pattern for error in known_errors()]
    for key, wrong in (("says", []), ("name", "A b"), ("cause", "x"), ("what", "no full stop")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"group": [{**rows[0], key: wrong}]}, SCHEMA)


def test_every_entry_has_its_lines() -> None:
    assert len(known_errors()) >= 100
    assert set(LINES) == set(BY_NAME) and len(BY_NAME) == len(known_errors())


@for_each(("name", "line"), EACH)
def test_a_line_matches_only_its_error(name: str, line: str) -> None:
    assert names(line) == [name]
    assert names(f"[gpu1 3] \x1b[31m{line.upper()}\x1b[0m") == [name]


@for_each("line", HEALTHY)
def test_a_healthy_job_prints_none(line: str) -> None:
    assert names(line) == []


@for_each("error", known_errors(), ids=lambda error: error.name)
def test_an_entry_is_well_formed(error: KnownError) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", error.name)
    assert re.fullmatch(r"[^.].*\.", error.what) and ". " not in error.what
    assert error.fix and not error.fix.endswith((".", ";"))
    for way in error.pattern.split(OR):
        words = way.split(GAP)
        # A few letters would be found anywhere, and are no use to look for at once in many lines.
        assert max(len(word) for word in words) >= 7 and all(words)


@for_each("error", known_errors(), ids=lambda error: error.name)
def test_a_fix_names_only_existing_commands_and_options(error: KnownError) -> None:
    calls = re.findall(r"toolkit [a-z]+(?:(?!\. )[^;,`])*", error.fix)
    sentences = ("the toolkit", "toolkit sets", "toolkit picks")
    calls = [call for call in calls if not call.startswith(sentences)]
    assert [fault for call in calls for fault in command_faults(call, VERBS)] == []
    known = keys_of_hosts_yaml()
    named = re.findall(r"(?<![\w{:\"/])([a-z_]+):(?= |$|,|;|\)|`)", error.fix)
    assert [key for key in named if key not in known] == []


@for_each("error", known_errors(), ids=lambda error: error.name)
def test_every_variant_of_an_error_is_found(error: KnownError) -> None:
    """No wording is matched by an earlier entry."""
    for way in error.pattern.split(OR):
        assert names(way.replace(GAP, " x ")) == [error.name]


def test_order_of_first_occurrence_and_each_once() -> None:
    port, full = LINES["port-in-use"][0], LINES["disk-full"][0]
    assert names("x", full, port, full, "y", port) == ["disk-full", "port-in-use"]
    assert names() == []


def test_a_specific_error_replaces_a_general_error_that_was_found_first() -> None:
    shm = LINES["nccl-shm"][0]
    assert names(*[shm] * 3, *["x" * 1000] * (CHUNK // 500), shm) == ["nccl-shm"]


def test_both_ends_of_a_long_line_count() -> None:
    bar = "\r".join(f"{i}%" for i in range(LONGEST_LINE))
    assert names(f"{bar}\rOSError: [Errno 28] No space left on device") == ["disk-full"]
    assert names(f"OSError: [Errno 28] No space left on device{bar}") == ["disk-full"]
    assert names(f"{bar}No space left on device{bar}") == []


def test_unusual_line_ends_and_characters_are_accepted() -> None:
    assert names("a\r\n", "\x00\ud800 İ No space left on device\n") == ["disk-full"]
    assert names("NCCL WARN", "Connection refused") == []


def took(lines: list[str]) -> float:
    start = time.process_time()
    match(lines)
    return time.process_time() - start


def test_a_large_log_is_searched_quickly() -> None:
    assert took([HEALTHY[i % len(HEALTHY)] for i in range(100_000)]) < 5


@pytest.mark.parametrize("kind", ["marks", "beginnings", "spaces", "long"])
def test_a_log_that_is_designed_to_be_slow_is_searched_quickly(kind: str) -> None:
    ways = [way.split(GAP) for error in known_errors() for way in error.pattern.split(OR)]
    marks = [max(way, key=len)[:-1] for way in ways]
    lines = {
        "marks": [marks[i % len(marks)] * 3 for i in range(20_000)] + [" ".join(marks)],
        "beginnings": [" ".join(way[0] for way in ways if len(way) > 1)[:2000]] * 2_000,
        "spaces": [" " * 2000] * 2_000,
        "long": ["NCCL WARN " * 100_000] * 50,
    }[kind]
    assert took(lines) < 5
