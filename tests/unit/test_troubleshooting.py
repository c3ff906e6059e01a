"""Every message that docs/troubleshooting.md explains can still be printed: its words stand in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
# Tables of what other programs print have another heading, and are not held against our source.
HEAD = "| Message |"
VALUE = r"[A-Z][A-Z_]*(?:[@:][A-Z]+)*(?![a-z])|[0-9]+"
GAP = "\0"  # a value that is filled in when the message is made


def messages(page: str) -> Iterator[str]:
    """Yield each piece of code in the first column of the tables of messages."""
    ours = False
    for line in page.splitlines():
        if not line.startswith("|"):
            ours = False
        elif line.startswith(HEAD):
            ours = True
        elif ours and not line.startswith("| ---"):
            cell = re.split(r"(?<!\\)\|", line)[1]
            yield from (code.replace("\\|", "|") for code in re.findall(r"`([^`]+)`", cell))


def python_strings(text: str) -> Iterator[str]:
    """Yield the strings of a module, docstrings left out, with a GAP for everything that is filled in."""
    tree = ast.parse(text)
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))
    for node in ast.walk(tree):  # from the outside in: what is part of a larger string is not one by itself
        if id(node) not in parts and isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)):
            text = _flat(node, parts)
            if text.strip(GAP):
                yield text


def _flat(node: ast.AST, parts: set[int]) -> str:
    parts.add(id(node))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"\{\w+\}", GAP, node.value)  # to be filled in later
    if isinstance(node, ast.JoinedStr):
        return "".join(_flat(value, parts) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _flat(node.left, parts) + _flat(node.right, parts)
    return GAP


def shell_text(text: str) -> str:
    """Return a script or Dockerfile with a GAP for each of its variables."""
    return re.sub(r"\$\{[^}]*\}|\$\([^)]*\)|\$\w+", GAP, text)


def corpus() -> list[str]:
    found = [s for path in (ROOT / "toolkit").rglob("*.py") for s in python_strings(path.read_text())]
    scripts = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("image/*.sh"), *ROOT.glob("Dockerfile.*")]
    found += [shell_text(path.read_text()) for path in [*scripts, *(ROOT / "toolkit").rglob("*.sh")]]
    return [" ".join(text.split()) for text in found]


CORPUS = corpus()


def pattern(message: str) -> re.Pattern[str]:
    """Return what finds a message in the source: words in capitals and numbers may stand for any value."""
    text = ""
    for piece in re.split(rf"(…|{VALUE})", message):
        if piece == "…":
            text += ".*"
        elif re.fullmatch(VALUE, piece):
            text += f"(?:{re.escape(piece)}|{GAP}+)"
        else:
            text += re.escape(piece)
    return re.compile(text, re.DOTALL)


def is_in_source(message: str) -> bool:
    return any(pattern(message).search(text) for text in CORPUS)


EXPLAINED = list(dict.fromkeys(messages(PAGE.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("message", EXPLAINED)
def test_an_explained_message_can_be_printed(message: str) -> None:
    assert is_in_source(message)


def test_there_is_something_to_explain() -> None:
    assert len(EXPLAINED) > 80


@pytest.mark.parametrize(
    ("message", "there"),
    [
        ("user USER can log in there, but runs no command", True),
        ("its ssh host key has CHANGED", True),
        ("no end after 30 s", True),
        ("… free of … on …", True),
        ("user USER can log in there, and runs every command", False),
        ("The toolkit's own words for nothing", False),
        ("Every message that docs explain", False),
    ],
)
def test_the_check_tells_what_is_there_from_what_is_not(message: str, there: bool) -> None:
    assert is_in_source(message) == there


def test_strings_of_python_and_of_shells() -> None:
    source = '"""Doc."""\nsay(f"a {b} c" " d" + e + "f")\nx = "alone"\ndef g():\n    "doc too"\n'
    assert sorted(python_strings(source)) == [f"a {GAP} c d{GAP}f", "alone"]
    assert list(python_strings('say("x" + ("" if y else "z"))')) == [f"x{GAP}", "z"]
    assert shell_text('echo "$a is ${b:-c} of $(d)"') == f'echo "{GAP} is {GAP} of {GAP}"'
