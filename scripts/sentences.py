"""Print a random sample of the project's sentences for a reader to judge. usage: sentences.py [N] [SEED]

A fifth of the N sentences (default 200) comes from README.md, two fifths from other pages (not generated
ones, not decisions), a fifth from help texts, and a fifth from messages: strings of five words or more in
`toolkit/`, causes and fixes of its tables included. The same seed (default 1) draws the same sentences as
long as the texts do not change.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import typer.main
import yaml

from scripts.prose import markdown_texts
from toolkit.cli.app import app
from toolkit.cli.lazy import loaded

ROOT = Path(__file__).resolve().parents[1]
_GENERATED = ("cli.md", "hosts-yaml.md", "api.md", "known-errors.md", "porting.md", "messages.md")
_LEAST_WORDS = 5
# Keys of the tables in toolkit/diagnose.
_PROSE = frozenset(("about", "cause", "fix", "what"))
_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[]|toolkit\s)")
_ITEM = re.compile(r"\n\s*- ")
# Shell text, regular expressions and formats are strings too, but not prose.
_CODE = re.compile(r"[\\$\n<>]|\|\||&&|^\s*(--|%|\(\?)")


def of_page(path: Path) -> Iterator[str]:
    """Yield the sentences of a Markdown page: of paragraphs, items of lists, and cells of tables."""
    code = path.read_text(encoding="utf-8")
    lines = code.splitlines()
    paragraph: list[str] = []
    for number in (text.line for text in markdown_texts(code)):
        line = lines[number - 1].strip()
        if line.startswith("|"):
            yield from (cell.strip() for cell in line.strip("|").split("|"))
        elif not line or line.startswith(("#", "- ", "* ", ">")) or re.match(r"\d+\. ", line):
            yield from _END.split(" ".join(paragraph))
            paragraph = [line] if line and not line.startswith("#") else []
        else:
            paragraph.append(line)
    yield from _END.split(" ".join(paragraph))


def of_help() -> Iterator[str]:
    """Yield the sentences of every verb's help and of the help of its options."""

    def visit(command: object) -> Iterator[str]:
        for item in _ITEM.split(str(getattr(command, "help", "") or "")):
            yield from _END.split(item)
        for param in getattr(command, "params", ()):
            yield from _END.split(str(getattr(param, "help", "") or ""))
        for sub in getattr(command, "commands", {}).values():
            yield from visit(loaded(sub))

    yield from visit(typer.main.get_command(app))


def of_messages() -> Iterator[str]:
    """Yield the strings of the package that read like messages; a name in braces marks a value."""
    for path in sorted((ROOT / "toolkit").rglob("*.py")):
        if "cli" in path.parts:
            continue  # its strings are mostly help texts
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inner = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
        }
        for node in ast.walk(tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str())):
                    inner.add(id(node.value))
                case ast.JoinedStr():
                    yield from _END.split(ast.unparse(node)[2:-1])
                case ast.Constant(value=str(text)) if id(node) not in inner:
                    yield from _END.split(text)
    for path in sorted((ROOT / "toolkit" / "diagnose").glob("*.yaml")):
        yield from of_table(yaml.safe_load(path.read_text(encoding="utf-8")))


def of_table(value: object) -> Iterator[str]:
    """Yield the sentences of the tables of messages and known errors, but not what they match."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str) and key in _PROSE:
                yield from _END.split(inner)
            else:
                yield from of_table(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from of_table(inner)


def sample(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield `count` pairs of origin and sentence."""
    pages = (
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if "adr" not in path.parts and path.name not in _GENERATED
    )
    sources: tuple[tuple[str, int, Callable[[], Iterable[str]]], ...] = (
        ("README", 1, lambda: of_page(ROOT / "README.md")),
        ("docs", 2, lambda: (s for page in pages for s in of_page(page))),
        ("help", 1, of_help),
        ("messages", 1, of_messages),
    )
    chosen = random.Random(seed)
    for origin, share, read in sources:
        sentences = {" ".join(text.split()) for text in read()}
        kept = sorted(
            text
            for text in sentences
            if len(text.split()) >= _LEAST_WORDS and (origin != "messages" or not _CODE.search(text))
        )
        for text in chosen.sample(kept, min(len(kept), count * share // 5)):
            yield origin, text


if __name__ == "__main__":
    count, seed = (*map(int, sys.argv[1:3]), *(200, 1)[len(sys.argv) - 1 :])
    for index, (origin, text) in enumerate(sample(count, seed), 1):
        print(f"{index:3} {origin:8} {text}")
