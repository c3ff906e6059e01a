"""PyYAML's and libyaml's syntax errors in our words, equal for both."""

from __future__ import annotations

import re

import yaml

from toolkit.errors import Problem

# Parts of PyYAML's and libyaml's messages, in our words; True: the fault stands where the construct began.
_SYNTAX: tuple[tuple[str, bool, str], ...] = (
    ("expected ':'", True, "there is no ': ' (a colon and a blank) after this key"),
    (
        "mapping values are not allowed",
        False,
        "a ': ' stands inside a value, the indentation is wrong, or the line above lacks a blank after ':'",
    ),
    ("unexpected end of stream", True, "a quote is opened here and never closed"),
    ("unexpected document separator", True, "a quote is opened here and never closed"),
    ("cannot start any token", False, "this character cannot begin a value; put the value in quotes"),
    ("',' or ']'", True, "this '[' has no matching ']', or a comma is missing"),
    ("',' or '}'", True, "this '{' has no matching '}', or a comma is missing"),
    ("escape", False, "this backslash sequence is unknown; use single quotes for text with backslashes"),
    ("block end", False, "the indentation does not fit the lines above"),
    ("'-' indicator", False, "the indentation does not fit the lines above"),
    ("expected key", False, "the indentation does not fit the lines above"),
    ("sequence entries are not allowed", False, "a list item ('- ') needs its own line"),
    ("expected alphabetic or numeric", False, "'*' and '&' have a special meaning; put the value in quotes"),
    ("tag", False, "a tag ('!…') cannot stand here; remove it, or put the value in quotes"),
)

_ELSE = "this is not YAML; put text with special characters in quotes"


def syntax_problems(error: yaml.YAMLError, text: str) -> list[Problem]:
    """Return what stopped the parser; several when lines are indented with tabs."""
    lines = text.split("\n")
    mark = getattr(error, "problem_mark", None)
    at = min(mark.line, len(lines) - 1) if mark else 0
    if re.match(r" *\t", lines[at]):
        tabbed = (n for n, line in enumerate(lines) if n == at or (n > at and re.match(r" *\t\s*\S", line)))
        return [Problem("", "indented with a tab; indent with blanks", n + 1) for n in tabbed]
    for number in (at, at - 1):  # libyaml stops at the directive, PyYAML behind it
        if number >= 0 and lines[number].startswith("%"):
            return [Problem("", "directives ('%…') are not read; remove this line", number + 1)]
    said = str(getattr(error, "problem", "") or "")
    context = getattr(error, "context_mark", None) or mark
    for part, at_start, ours in _SYNTAX:
        if part in said:
            line = min(context.line, len(lines) - 1) if at_start and context else at
            return [Problem("", ours, line + 1)]
    return [Problem("", _ELSE, at + 1)]
