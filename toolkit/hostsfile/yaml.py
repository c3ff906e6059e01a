"""YAML text to plain data with the line of every path; surprising scalars and syntax errors are refused.

A scalar is surprising if YAML 1.1, YAML 1.2 and a reader disagree about its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from yaml import events as ev

from toolkit.errors import Problem
from toolkit.hostsfile.errors import Path, path_text, shown

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 16

# At the end of a path in ``Document.opaque``: the key has the problem, and its value has none.
KEY = "[key]"

# libyaml's parser is about ten times as fast; both give the same events and lines (a test compares them).
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Not allowed in values: control characters except tab and newline, line ends that editors do not count,
# a byte-order mark in the middle, and code points that are no characters.
_BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_BAD_IN_TEXT = re.compile(f"(?!\r\n){_BAD.pattern}")


@dataclass(frozen=True)
class Document:
    """The content of a YAML text.

    Args:
        data: mappings (text keys), lists and scalars; None when the faults leave nothing to work with.
        lines: line, from 1, of each path; of the key where there is one.
        opaque: paths whose value is unknown; they get no further problems.
        problems: what is wrong with the YAML as such.
    """

    data: dict[str, Any] | None
    lines: Mapping[Path, int]
    opaque: frozenset[Path]
    problems: tuple[Problem, ...]


def read_yaml(text: str | bytes, secret_keys: Collection[str] = (), loader: Any = LOADER) -> Document:
    """Read one YAML document whose top level is a mapping. Never raises, whatever the text.

    Args:
        secret_keys: values below these keys are text, and are not shown in messages.
        loader: a PyYAML loader class; only its parser is used.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_BYTES:
        return _refused(Problem("", f"the file exceeds the maximum of {MAX_BYTES} bytes"))
    if isinstance(text, bytes):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            return _refused(_not_text(raw, error))
    return _Reader(text.removeprefix("\ufeff"), frozenset(secret_keys)).read(loader)


def _refused(problem: Problem) -> Document:
    return Document(None, {}, frozenset(), (problem,))


def _not_text(raw: bytes, error: UnicodeDecodeError) -> Problem:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return Problem("", "the file is UTF-16; save it as UTF-8", 1)
    line = raw.count(b"\n", 0, error.start) + 1
    return Problem("", f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8", line)


class _Stop(Exception):
    """The rest of the text cannot be read."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


class _Reader:
    """Builds data from parser events. Events, not nodes: composing recurses without a bound in C."""

    def __init__(self, text: str, secret_keys: frozenset[str]) -> None:
        self.text, self.secret_keys = text, secret_keys
        self.problems: list[Problem] = []
        self.lines: dict[Path, int] = {}
        self.opaque: set[Path] = set()
        self.events: Iterator[Any] = iter(())

    def read(self, loader: Any) -> Document:
        data = None
        try:
            self._clean()
            self.events = yaml.parse(self.text, Loader=loader)
            data = self._document()
        except _Stop as stop:
            self.problems.append(stop.problem)
        except yaml.YAMLError as error:
            self.problems += _syntax_problems(error, self.text)
        return Document(data, self.lines, frozenset(self.opaque), tuple(self.problems))

    def _clean(self) -> None:
        """Report characters that are invalid in a text file, and continue without them."""
        if re.search("\r(?!\n)", self.text):
            line = self.text.count("\n", 0, self.text.index("\r")) + 1
            raise _Stop(
                Problem(
                    "",
                    "this line contains a carriage return without a line feed; "
                    "save the file with Unix line endings",
                    line,
                )
            )
        if not _BAD_IN_TEXT.search(self.text):
            return
        for number, line_text in enumerate(self.text.split("\n"), 1):
            if found := _BAD.search(line_text.removesuffix("\r")):
                what = (
                    f"this line contains the invisible character U+{ord(found[0]):04X}; remove the character"
                )
                self.problems.append(Problem("", what, number))
        self.text = _BAD_IN_TEXT.sub("", self.text)

    def _document(self) -> dict[str, Any] | None:
        data: Any = None
        documents = 0
        for event in self.events:
            if isinstance(event, ev.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._say((), event, "this line begins a second document; write one document per file")
                    break
                data = self._node(next(self.events), ())
        if isinstance(data, dict):
            return data
        if () not in self.opaque:
            needs = "write at least cluster, image and hosts"
            found = (
                f"the top level should be a mapping of keys, found {shown(data)}"
                if data
                else "the file contains no keys"
            )
            hint = "; write a space after each colon" if isinstance(data, str) and ":" in data else ""
            self.problems.append(Problem("", f"{found}; {needs}{hint}"))
        return None

    def _node(self, event: Any, path: Path) -> Any:
        self.lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, ev.AliasEvent):
            return self._opaque(
                path, event, "toolkit does not support aliases ('*name'); replace the alias with its value"
            )
        if event.anchor is not None:
            self._say(path, event, "toolkit does not support anchors ('&name'); remove the anchor")
        if event.tag is not None:
            return self._tagged(event, path)
        if isinstance(event, ev.ScalarEvent):
            return self._scalar(event, path)
        if len(path) >= MAX_DEPTH:
            line = event.start_mark.line + 1
            raise _Stop(
                Problem(path_text(path), f"this value is nested deeper than {MAX_DEPTH} levels", line)
            )
        return self._sequence(path) if isinstance(event, ev.SequenceStartEvent) else self._mapping(path)

    def _tagged(self, event: Any, path: Path) -> Any:
        """Collect the faults inside a tagged value; toolkit does not interpret the tag."""
        event.tag = None
        self._opaque(path, event, "toolkit does not support tags ('!name'); remove the tag")
        return self._node(event, path)

    def _scalar(self, event: Any, path: Path) -> Any:
        text: str = event.value
        if found := _BAD.search(text):
            text = _BAD.sub("?", text)
            what = f"this value contains the invisible character U+{ord(found[0]):04X}; remove the character"
            return self._opaque(path, event, what, text)
        if event.style:
            return text
        value, complaint = plain(text)
        if complaint:
            secret = any(key in self.secret_keys for key in path[:-1])
            if secret:  # every value below these keys is text
                complaint = f"{complaint.partition(';')[0]}; put the value in quotes"
            shows = not secret and len(text) < 60 and text.isprintable()
            subject = text if shows else "this unquoted value"
            return self._opaque(path, event, complaint.replace(VALUE, subject, 1), value)
        return value

    def _sequence(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), ev.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return items

    def _mapping(self, path: Path) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while not isinstance(event := next(self.events), ev.MappingEndEvent):
            key = self._key(event, path)
            value_event = next(self.events)
            if key is None:
                # Not to be kept, but to be read to its end; an alias after '<<' was refused with it.
                if not isinstance(value_event, ev.AliasEvent):
                    self._node(value_event, (*path, "?"))
                continue
            here = (*path, key)
            if key in entries:
                first = self.lines[here]
                self._say(here, event, f"this key is written twice, first on line {first}; keep only one")
                self._node(value_event, here)
                continue
            self.lines.setdefault(here, event.start_mark.line + 1)
            entries[key] = self._node(value_event, here)
        return entries

    def _key(self, event: Any, path: Path) -> str | None:
        """Return a mapping's key as text, or None if the key is not text."""
        if not isinstance(event, ev.ScalarEvent):
            self._say(path, event, "a key should be text, not an alias, a list or a mapping")
            if not isinstance(event, ev.AliasEvent):
                self._node(event, (*path, "?"))
            return None
        if event.value == "<<" and not event.style:
            self._say(path, event, "toolkit does not support merge keys ('<<'); write each key")
            return None
        key = _BAD.sub("?", event.value)
        here = (*path, key)
        value, complaint = (key, "") if event.style else plain(key)
        if event.anchor is not None or event.tag is not None:
            self._say(
                here, event, "toolkit does not support anchors and tags on keys; remove the anchor or tag"
            )
        if key != event.value:
            self._opaque((*here, KEY), event, "this key contains a control character; remove the character")
        elif complaint:
            self._opaque(
                (*here, KEY),
                event,
                f"{complaint.partition(';')[0].replace(VALUE, 'this key')}; put the key in quotes",
            )
        elif not isinstance(value, str):
            self._opaque(
                (*here, KEY), event, f"a key should be text, found {shown(value)}; put the key in quotes"
            )
        return key

    def _opaque(self, path: Path, event: Any, message: str, value: Any = None) -> Any:
        self.opaque.add(path)
        self._say(path[:-1] if path[-1:] == (KEY,) else path, event, message)
        return value

    def _say(self, path: Path, event: Any, message: str) -> None:
        self.problems.append(Problem(path_text(path), message, event.start_mark.line + 1))


_Value = str | int | float | bool | None
VALUE = "{value}"  # subject of messages

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*|\.[0-9]+")

# Python refuses to convert very long digit strings; no number in the file needs more than these.
_MOST_DIGITS = 18
_TOO_LONG = "{value} is too long for a number; put the value in quotes if it is text"

# The patterns below take quadratic time, so that longer texts are classified by one that does not.
_LONGEST_READ = 100
_NUMBERLIKE = re.compile(r"[-+0-9_.:eE]+")

# Values that YAML 1.1, YAML 1.2 and a human reader interpret differently (https://yaml.org/type/).
_SURPRISES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF"),
        "{value} is a boolean for some YAML parsers; "
        "put the value in quotes if it is text, otherwise write true or false",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"),
        "{value} is a number in base 60 for some YAML parsers; put the value in quotes if it is text",
    ),
    (
        re.compile(r"[-+]?0[0-9_]+"),
        "{value} has a leading 0, which means octal for some YAML parsers; "
        "remove the leading 0, or put the value in quotes",
    ),
    (
        re.compile(r"[-+]?0([xX][0-9a-fA-F_]+|[oO][0-7_]+|[bB][01_]+)"),
        "{value} is a binary, octal or hexadecimal number for some YAML parsers; "
        "write the value in decimal, or put the value in quotes",
    ),
    (
        re.compile(r"(?=.*_)[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"),
        "some YAML parsers read {value} as a number; remove the '_', or put the value in quotes",
    ),
    (
        re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+|[-+]\.[0-9]+"),
        "some YAML parsers read {value} as a number; write the number without an exponent and with a digit "
        "before the point, or put the value in quotes",
    ),
    (
        re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        "{value} is infinity or not-a-number in YAML; put the value in quotes if it is text",
    ),
    (
        re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?"),
        "some YAML parsers read {value} as a date; put the value in quotes if it is text",
    ),
    (re.compile(r"="), "{value} has a special meaning in YAML; put the value in quotes"),
)


def plain(text: str) -> tuple[_Value, str]:
    """Return the value of an unquoted scalar, and a message about ``VALUE`` (empty if it is valid).

    When something is wrong the value is the text itself. Accepted are null, true and false, decimal
    integers, and decimal numbers with a point; everything else is text.
    """
    if text in _NULL:
        return None, ""
    if text in _BOOL:
        return _BOOL[text], ""
    if text[0].isalpha() and len(text) > 3:
        return text, ""  # most scalars: no pattern below can match
    if len(text) > _LONGEST_READ:
        return text, _TOO_LONG if _NUMBERLIKE.fullmatch(text) else ""
    for pattern, complaint in _SURPRISES:
        if pattern.fullmatch(text):
            return text, complaint
    if _INT.fullmatch(text) or _FLOAT.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            return text, _TOO_LONG
        return (int(text) if _INT.fullmatch(text) else float(text)), ""
    return text, ""


_INDENTATION = "the indentation does not match the lines above"
_QUOTE = "this line opens a quote that is not closed"
# Parts of PyYAML's and libyaml's messages, reworded; True: the problem is at the start of the construct.
_SYNTAX: tuple[tuple[str, bool, str], ...] = (
    ("expected ':'", True, "there is no ': ' (a colon and a space) after this key"),
    (
        "mapping values are not allowed",
        False,
        "a ': ' is inside a value, the indentation is wrong, or the line above has no space after ':'",
    ),
    ("unexpected end of stream", True, _QUOTE),
    ("unexpected document separator", True, _QUOTE),
    (
        "cannot start any token",
        False,
        "a special character begins a key or value; put the key or value in quotes",
    ),
    ("',' or ']'", True, "this '[' has no matching ']', or a comma is missing"),
    ("',' or '}'", True, "this '{' has no matching '}', or a comma is missing"),
    ("escape", False, "this backslash sequence is unknown; use single quotes for text with backslashes"),
    ("block end", False, _INDENTATION),
    ("'-' indicator", False, _INDENTATION),
    ("expected key", False, _INDENTATION),
    ("sequence entries are not allowed", False, "a list item ('- ') needs its own line"),
    ("expected alphabetic or numeric", False, "'*' and '&' have a special meaning; put the value in quotes"),
    # libyaml's limit is 1,000.
    ("maximum nesting depth", False, f"this line is nested deeper than {MAX_DEPTH} levels"),
    ("tag", False, "a tag ('!…') is not allowed in this place; remove the tag, or put the value in quotes"),
)

_ELSE = "this line is not YAML; put text with special characters in quotes"


def _syntax_problems(error: yaml.YAMLError, text: str) -> list[Problem]:
    """Return what stopped the parser; several when lines are indented with tabs."""
    lines = text.split("\n")
    mark = getattr(error, "problem_mark", None)
    at = min(mark.line, len(lines) - 1) if mark else 0
    if re.match(r" *\t", lines[at]):
        tabbed = (n for n, line in enumerate(lines) if n == at or (n > at and re.match(r" *\t\s*\S", line)))
        return [Problem("", "this line is indented with a tab; indent with spaces", n + 1) for n in tabbed]
    for number in (at, at - 1):  # libyaml stops at the directive, PyYAML behind it
        if number >= 0 and lines[number].startswith("%"):
            return [Problem("", "toolkit does not support directives ('%…'); remove this line", number + 1)]
    reason = str(getattr(error, "problem", "") or "")
    context = getattr(error, "context_mark", None) or mark
    for part, at_start, ours in _SYNTAX:
        if part in reason:
            line = min(context.line, len(lines) - 1) if at_start and context else at
            return [Problem("", ours, line + 1)]
    return [Problem("", _ELSE, at + 1)]
