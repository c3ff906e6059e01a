"""What .gitignore files say, as git itself reads them: https://git-scm.com/docs/gitignore."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t-\\r ",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_NEVER = "(?!)"


@dataclass(frozen=True)
class Rule:
    """One line: ``ignores`` is False behind a ``!``; ``whole`` compares the path and not the name alone."""

    expression: re.Pattern[str]
    ignores: bool
    folders_only: bool
    whole: bool


def parse_ignore(data: bytes) -> tuple[Rule, ...]:
    """Return the rules of an ignore file, in order."""
    rules = []
    for line in _latin(data.removeprefix(b"\xef\xbb\xbf")).split("\n"):
        text = _without_trailing_spaces(line.removesuffix("\r"))
        if not text or text.startswith("#"):
            continue
        ignores = not text.startswith("!")
        text = text if ignores else text[1:]
        folders_only = text.endswith("/")
        text = text[:-1] if folders_only else text
        expression = re.compile(_expression(text.removeprefix("/")), re.DOTALL)
        rules.append(Rule(expression, ignores, folders_only, "/" in text))
    return tuple(rules)


def ignored(path: str, is_folder: bool, rules: Sequence[Rule]) -> bool | None:
    """Return what the rules of one folder say about an entry below it, None when they say nothing.

    Args:
        path: relative to the folder of the rules. The folders above it are asked first, by the caller.
    """
    whole = _latin(os.fsencode(path))
    name = whole.rpartition("/")[2]
    for rule in reversed(rules):
        if rule.folders_only and not is_folder:
            continue
        if rule.expression.fullmatch(whole if rule.whole else name):
            return rule.ignores
    return None


def _latin(data: bytes) -> str:
    # One character per byte: git compares bytes, so a "?" is one byte of a letter such as é.
    return data.decode("latin-1")


def _without_trailing_spaces(line: str) -> str:
    end = at = 0
    while at < len(line):
        step = 2 if line[at] == "\\" else 1
        if line[at] != " ":
            end = at + step
        at += step
    return line[:end]


def _expression(glob: str) -> str:
    out, at = "", 0
    while at < len(glob):
        letter = glob[at]
        if letter == "*":
            end = at
            while glob[end : end + 1] == "*":
                end += 1
            alone = glob[at - 1 : at] in ("", "/") and glob[end : end + 1] in ("", "/")
            if end - at == 1 or not alone:
                out += "[^/]*"
            elif end == len(glob):
                out += ".*"
            else:
                out, end = f"{out}(?:.*/)?", end + 1
            at = end
        elif letter == "?":
            out, at = f"{out}[^/]", at + 1
        elif letter == "[":
            found = _bracket(glob, at + 1)
            if found is None:
                return _NEVER
            out, at = out + found[0], found[1]
        elif letter == "\\":
            if at + 1 == len(glob):
                return _NEVER
            out, at = out + re.escape(glob[at + 1]), at + 2
        else:
            out, at = out + re.escape(letter), at + 1
    return out


def _bracket(glob: str, at: int) -> tuple[str, int] | None:
    """Return a bracket expression and where it ends, None when it does not end or names no class."""
    negated = glob.startswith(("!", "^"), at)
    at += negated
    first, items = at, ""
    while at < len(glob):
        if glob[at] == "]" and at > first:
            # A slash is never matched by brackets.
            return f"(?!/)[{'^' if negated else ''}{items}]" if items else _NEVER, at + 1
        if glob.startswith("[:", at):
            name, colon, _ = glob[at + 2 :].partition(":]")
            if not colon or name not in _CLASSES:
                return None
            items, at = items + _CLASSES[name], at + len(name) + 4
            continue
        low, at = _letter(glob, at)
        if glob[at : at + 1] == "-" and glob[at + 1 : at + 2] not in ("", "]"):
            high, at = _letter(glob, at + 1)
            # A range that runs backwards still holds its first letter: git has compared it by then.
            items += f"{re.escape(low)}-{re.escape(high)}" if low <= high else re.escape(low)
        else:
            items += re.escape(low)
    return None


def _letter(glob: str, at: int) -> tuple[str, int]:
    return (glob[at + 1 : at + 2] or "\\", at + 2) if glob[at] == "\\" else (glob[at], at + 1)
