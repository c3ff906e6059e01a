"""The YAML reader: data, lines, and the same answers from PyYAML's and libyaml's parser."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml

from tests.unit.each import for_each
from tests.unit.spec_cases import CASES, GOOD
from toolkit.hostsfile.yaml import LOADER, MAX_DEPTH, plain, read_yaml

EXAMPLE = Path(__file__).parents[3] / "examples" / "hosts.full.yaml"


def test_lines_by_path() -> None:
    document = read_yaml(
        "# x\na:\n  b: 1\n  c:\n    - x\n    -\n      d: 2\n'e': |\n  t\nf: {g: [\n  1, 2]}\n"
    )
    assert document.problems == ()
    assert document.data == {"a": {"b": 1, "c": ["x", {"d": 2}]}, "e": "t\n", "f": {"g": [1, 2]}}
    assert {path: line for path, line in document.lines.items() if path} == {
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "c"): 4,
        ("a", "c", 0): 5,
        ("a", "c", 1): 7,
        ("a", "c", 1, "d"): 7,
        ("e",): 8,
        ("f",): 10,
        ("f", "g"): 10,
        ("f", "g", 0): 11,
        ("f", "g", 1): 11,
    }


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML was built without libyaml")
@pytest.mark.parametrize("text", [*CASES.values(), GOOD, EXAMPLE.read_text(encoding="utf-8")])
def test_both_parsers_agree(text: str | bytes) -> None:
    assert read_yaml(text, loader=yaml.CSafeLoader) == read_yaml(text, loader=yaml.SafeLoader)


@for_each(
    ("text", "value"),
    [
        *(("", None), ("~", None), ("null", None), ("true", True), ("False", False)),
        *(("0", 0), ("-5", -5), ("+7", 7), ("1.5", 1.5), (".5", 0.5), ("-0.5", -0.5), ("2.", 2.0)),
        *(("10.0.0.1", "10.0.0.1"), ("8g", "8g"), ("a:b", "a:b"), ("gpu-01", "gpu-01"), ("y", "y")),
        *(("1-2", "1-2"), ("-", "-"), ("No way", "No way"), ("0a", "0a"), ("a" * 5000, "a" * 5000)),
    ],
)
def test_plain_values(text: str, value: object) -> None:
    got, complaint = plain(text)
    assert (got, type(got), complaint) == (value, type(value), "")


@for_each(
    "text",
    [
        *("yes", "No", "ON", "off", "22:22", "1:2:3", "190:20:30.15", "08:30", "010", "-07", "08", "0_7"),
        *(
            "0x1F",
            "0o17",
            "0b101",
            "1_000",
            "1_000.5",
            "1.5_0",
            "1e3",
            "1.5e+3",
            ".5E-3",
            ".inf",
            "-.Inf",
            "-.5",
            ".nan",
        ),
        *("2026-01-02", "2026-1-2", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05", "=", "1" * 19, "1_" * 600),
    ],
)
def test_surprising_values(text: str) -> None:
    value, complaint = plain(text)
    assert value == text
    assert complaint


def test_everything_that_pyyaml_reads_as_no_text_is_known() -> None:
    marks = ["", "59", "60", "2026-01-02", "e+", "no", *"019:._-+exba~"]
    for word in map("".join, itertools.product(marks, repeat=3)):
        value, complaint = plain(word)
        try:
            theirs = yaml.load(f"[{word}]", Loader=LOADER)
        except (yaml.YAMLError, ValueError):
            continue  # no scalar, or one that Python's own types refuse
        if complaint or len(theirs) != 1 or isinstance(theirs[0], dict):
            continue
        assert (value, type(value)) == (theirs[0], type(theirs[0])), word


def test_a_value_that_is_refused_is_not_judged_again() -> None:
    document = read_yaml("a: {b: 010, c: *x}\n1: x\n")
    assert document.opaque == {("a", "b"), ("a", "c"), ("1", "[key]")}
    assert document.data == {"a": {"b": "010", "c": None}, "1": "x"}


def test_secrets_are_not_shown() -> None:
    (problem,) = read_yaml("env: {PIN: 0123}\n", secret_keys=("env",)).problems
    assert "0123" not in str(problem)


def test_nesting_is_bounded_without_recursion() -> None:
    fine = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert read_yaml(f"a: {fine}\n").problems == ()
    (problem,) = read_yaml("a: " + "[" * 500_000).problems
    assert "nested deeper" in problem.message
    (problem,) = read_yaml("\n".join(" " * n + "a:" for n in range(1000))).problems
    assert (problem.line, "nested deeper" in problem.message) == (MAX_DEPTH + 1, True)
