"""Comparison of the names in a page of documentation with commands, options, files and keys."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

from toolkit.cli.app import app
from toolkit.cli.lazy import loaded

_FOLDERS = r"docs|toolkit|tests|examples|compose|ssh|image|scripts|bench|\.ci"
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^(?: {4}|\t).*$", re.MULTILINE)
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# "the toolkit or the launcher", in a quoted message, is a sentence.
_COMMAND = re.compile(r"(?:^|[\s;&|(])(?<!the )(?<!from )toolkit +([a-z][a-z|\\]*[^\n`#;]*)", re.MULTILINE)
_MAKE = re.compile(r"(?:^|[\s;&|(])make +([a-z][a-z-]*)", re.MULTILINE)
_PATH = re.compile(
    rf"(?<![\w./~:@}}-])((?:{_FOLDERS})/[\w./*-]*[\w*]|Dockerfile\.\w+|[A-Z]{{4,}}\.md|requirements\.lock)"
)
_ROW = re.compile(r"^\| *`toolkit ([a-z]+(?: [a-z|\\]+)?)[^`]*`.*\|$", re.MULTILINE)
_ROOT_OPTION = re.compile(r"(?:^|[\s;&|(])toolkit +(--?[a-z][a-z-]*)", re.MULTILINE)


@dataclass(frozen=True)
class Verb:
    """One verb: its options, those with a value, hidden ones, whether words of another program follow."""

    options: frozenset[str]
    valued: frozenset[str]
    hidden: frozenset[str]
    passes_on: bool


_PASS_ON = ("run", "exec", "render slurm", "render kubernetes")


@functools.cache
def verbs() -> dict[str, Verb]:
    """Return every verb of the command line under its full name, such as ``lab up``."""
    found = {}

    def visit(command: object, name: str) -> None:
        for word, sub in getattr(command, "commands", {}).items():
            visit(loaded(sub), f"{name} {word}".strip())
        if not hasattr(command, "commands"):
            params = _options(command)
            every = {o for p in params for o in (*p.opts, *p.secondary_opts)} | {"-h", "--help"}
            valued = {o for p in params if not p.is_flag for o in p.opts}
            passes_on = not getattr(command, "allow_interspersed_args", True) or name in _PASS_ON
            hidden = {o for p in params if p.hidden for o in p.opts}
            found[name] = Verb(frozenset(every), frozenset(valued), frozenset(hidden), passes_on)

    visit(typer.main.get_command(app), "")
    return found


@functools.cache
def _own_options() -> frozenset[str]:
    """Return the options that follow `toolkit` directly; -v does so in sentences about any verb."""
    own = {option for param in _options(typer.main.get_command(app)) for option in param.opts}
    return frozenset(own | {"-h", "--help", "-v"})


def _options(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "option"]


def make_targets(makefile: str) -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def code_of(text: str) -> Iterator[str]:
    """Yield every piece of code of a Markdown page: fenced, indented, and in backticks."""
    yield from _FENCED.findall(text)
    prose = _FENCED.sub("", text)
    yield from _INDENTED.findall(prose)
    for _, code in _SPAN.findall(_INDENTED.sub("", prose)):
        yield code


def command_faults(code: str, known: Mapping[str, Verb]) -> Iterator[str]:
    """Yield what is wrong with each `toolkit VERB …` or `toolkit --option` in a piece of code."""
    for option in _ROOT_OPTION.findall(code):
        if option not in _own_options():
            yield f"toolkit has no option {option}"
    for call in _COMMAND.findall(code):
        words = [word.rstrip(",") for word in call.replace("\\|", "|").split()]
        groups = {name.split()[0] for name in known if " " in name}
        for first in words[0].split("|"):
            if first in groups:
                for second in words[1].split("|") if len(words) > 1 else ():
                    yield from _verb_faults(f"{first} {second}", words[2:], known)
            else:
                yield from _verb_faults(first, words[1:], known)


def _verb_faults(name: str, words: list[str], known: Mapping[str, Verb]) -> Iterator[str]:
    verb = known.get(name)
    if verb is None:
        yield f"there is no verb: toolkit {name}"
        return
    rest = list(words)
    while rest:
        word = rest.pop(0).strip("[],;:.()\"'")
        option = word.partition("=")[0]
        if word == "--" or (verb.passes_on and not word.startswith("-")):
            return
        if re.fullmatch(r"--?[a-z][a-z-]*", option):
            if option not in verb.options:
                yield f"toolkit {name} has no option {option}"
            elif option in verb.valued and "=" not in word and rest:
                rest.pop(0)


def row_faults(text: str, known: Mapping[str, Verb]) -> Iterator[str]:
    """Yield the options in a table's row that the command in its first cell does not have."""
    for match in _ROW.finditer(text):
        words = match[1].replace("\\|", "|").split()
        names = [f"{words[0]} {second}" for second in words[1].split("|")] if len(words) > 1 else []
        names = [name for name in names if name in known] or [words[0]]
        options = {option for name in names if name in known for option in known[name].options}
        cells = match[0].replace("\\|", "/").split("|")[2:]
        for code in (code for cell in cells for _, code in _SPAN.findall(cell)):
            option = re.match("--[a-z-]+", code)
            if option and option[0] not in options:
                yield f"toolkit {' '.join(words)} has no option {option[0]}"


def table_faults(text: str) -> Iterator[str]:
    """Yield each row with another number of cells than the first row of its table."""
    columns = 0
    for line in text.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) - 1 if line.startswith("|") else 0
        if columns and cells and cells != columns:
            yield f"row of {cells} cells in a table of {columns}: {line[:40]}"
        columns = (columns or cells) if cells else 0


def page_faults(
    text: str,
    folder: Path,
    root: Path,
    known: Mapping[str, Verb],
    targets: Collection[str],
    titles: Collection[str],
) -> list[str]:
    """Return every name in a Markdown page that leads nowhere.

    Args:
        folder: where the page is; links are relative to it.
        titles: words that look like commands and are not: titles of steps.
    """
    faults = []
    for code in code_of(text):
        if code in titles:
            continue
        faults += command_faults(code, known)
        faults += [f"there is no target: make {t}" for t in _MAKE.findall(code) if t not in targets]
        faults += [f"there is no {p}" for p in _PATH.findall(code) if not _is_there(root, p)]
    faults += row_faults(_FENCED.sub("", text), known)
    faults += table_faults(_FENCED.sub("", text))
    for link in _LINK.findall(text):
        faults += _link_faults(link, text, folder)
    return faults


def _is_there(root: Path, path: str) -> bool:
    # Words in capitals stand for names of the reader's own.
    own = re.sub(r"\b[A-Z]{3,}\b", "*", path) if "/" in path else path
    return any(root.glob(own.rstrip("/")))


def _link_faults(link: str, text: str, folder: Path) -> Iterator[str]:
    if re.match(r"[a-z]+:", link):
        return
    name, _, anchor = link.partition("#")
    target = folder / name
    if name and not target.exists():
        yield f"link to {link}: no such file"
    elif anchor and anchor not in _anchors(target.read_text(encoding="utf-8") if name else text):
        yield f"link to {link}: no such heading"


def _anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ +(.+?) *$", _FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
