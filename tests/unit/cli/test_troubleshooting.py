"""Every message that docs/troubleshooting.md explains can still be printed: its words stand in the source."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.each import for_each
from toolkit.cli import failure
from toolkit.cli.explained import EXPLAINED as SECTIONS
from toolkit.cli.explained import GAP as VALUE_HERE
from toolkit.cli.explained import OR
from toolkit.cli.troubleshooting import section_of
from toolkit.errors import BadInput, NotReady, Problem, ToolkitError, Unreachable, together

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "troubleshooting.md"
# Tables of what other programs print have another heading, and are not held against our source.
HEAD = "| Message |"
VALUE = r"[A-Z][A-Z_]*(?:[@:][A-Z]+)*(?![a-z])|[0-9]+"
GAP = "\0"  # a value that is filled in when the message is made
NEXT = "\1"  # between two strings of the source


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


@functools.cache
def corpus() -> str:
    """Return all strings of the source as one text, which a pattern searches at once."""
    found = [s for path in (ROOT / "toolkit").rglob("*.py") for s in python_strings(path.read_text())]
    scripts = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("image/*.sh"), *ROOT.glob("Dockerfile.*")]
    found += [shell_text(path.read_text()) for path in [*scripts, *(ROOT / "toolkit").rglob("*.sh")]]
    return NEXT.join(" ".join(text.split()) for text in found)


def pattern(message: str) -> re.Pattern[str]:
    """Return what finds a message in the source: words in capitals and numbers may stand for any value."""
    text = ""
    for piece in re.split(rf"(…|{VALUE})", message):
        if piece == "…":
            text += f"[^{NEXT}]*"
        elif re.fullmatch(VALUE, piece):
            text += f"(?:{re.escape(piece)}|{GAP}+)"
        else:
            text += re.escape(piece)
    return re.compile(text, re.DOTALL)


def is_in_source(message: str) -> bool:
    return pattern(message).search(corpus()) is not None


EXPLAINED = list(dict.fromkeys(messages(PAGE.read_text(encoding="utf-8"))))


@for_each("message", EXPLAINED)
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


# Which section an error leads to

KNOWN = [
    (section, " ".join(message.split()))
    for section, words in SECTIONS.items()
    for message in " ".join(words.split()).split(OR)
]


@for_each(("section", "message"), KNOWN)
def test_an_explained_message_leads_to_its_section(section: str, message: str) -> None:
    text = f"gpu1: {message.replace(VALUE_HERE, '/some thing')} x-7\n  fix: none"
    same = {where for where, other in KNOWN if other == message}
    assert section_of(text) in same


def test_most_explained_messages_lead_somewhere() -> None:
    assert len(KNOWN) > 0.9 * len(EXPLAINED)
    heads = re.findall("^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(SECTIONS) <= {head.lower().replace(" ", "-").replace(",", "") for head in heads}


@pytest.mark.parametrize(
    ("error", "section"),
    [
        (
            BadInput("hosts.yaml", (Problem("gpus", "unknown key; did you mean x?", 3),)),
            "before-any-host-is-contacted",
        ),
        (Unreachable("its ssh host key is not known yet", "toolkit trust gpu1", "gpu1"), "ssh-to-the-hosts"),
        (
            together(
                [
                    NotReady("docker is not installed", "install it", "gpu1"),
                    NotReady("the docker engine is not running", "start it", "gpu2"),
                ]
            ),
            "docker-on-the-hosts",
        ),
        (ToolkitError("port 12345 on 192.0.2.1 is held by sshd"), "network-and-ports"),
        (ToolkitError("GPU 3 is held by alice"), "docker-on-the-hosts"),
        (ToolkitError("withheld by nobody; this held bytes"), ""),
        (ToolkitError("something that no page explains"), ""),
        (ToolkitError(""), ""),
    ],
    ids=str,
)
def test_the_section_of_an_error(error: ToolkitError, section: str) -> None:
    assert section_of(str(error)) == section


def test_the_place_can_be_opened_from_where_one_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "docker is not installed"
    monkeypatch.chdir(ROOT)
    assert failure.explained_at(text) == "docs/troubleshooting.md#docker-on-the-hosts"
    monkeypatch.chdir(tmp_path)
    assert failure.explained_at(text) == f"{PAGE}#docker-on-the-hosts"
    assert failure.explained_at("no such words") == ""


@pytest.mark.parametrize(
    ("named", "place"),
    [
        (
            "https://docs.example.org/toolkit/",
            "https://docs.example.org/toolkit/troubleshooting.html#docker-on-the-hosts",
        ),
        ("", ""),
    ],
)
def test_an_installed_package_leads_to_the_documentation_that_it_names_or_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str, place: str
) -> None:
    monkeypatch.setattr(failure, "__file__", str(tmp_path / "toolkit" / "cli" / "failure.py"))
    monkeypatch.setattr(failure, "_documentation", lambda: named)
    assert failure.explained_at("docker is not installed") == place
