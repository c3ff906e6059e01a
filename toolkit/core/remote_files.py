"""Files that a host offers, as ``toolkit/inside/give.py`` lists and sends them, and checks of its answers.

The answers are untrusted input: keys, types and ranges are checked, and so is that a name was requested.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.protocol.decode import DecodeError, load_json

MAX_LINE = 2**16  # bytes
MAX_NAME = 4096  # bytes
MAX_SIZE = 2**53  # bytes
_MAX_TIME = 2**62  # nanoseconds before and after the epoch: 146 years
_FIX = "toolkit up brings the programs of this toolkit to the host"


@dataclass(frozen=True)
class RemoteFile:
    """A file or link of a host.

    Args:
        path: on the host.
        name: of the local copy, relative to the destination.
        mtime: nanoseconds since the epoch.
        link: target of a link; None for a file.
    """

    path: str
    name: str
    size: int = 0
    mtime: int = 0
    mode: int = 0o644
    link: str | None = None
    inode: int = 0


@dataclass(frozen=True)
class NoJob:
    """The host has no folder of the job."""


@dataclass(frozen=True)
class Missing:
    """A pattern that matches no file.

    Args:
        pattern: as requested.
        there: there is something of this name, but the job did not write it.
        place: nearest folder that exists; ``called`` is the same relative to the job's folder.
        names: first names in that folder; ``more`` is the number of the others.
    """

    pattern: str
    there: bool
    place: str
    called: str
    names: tuple[str, ...]
    more: int


@dataclass(frozen=True)
class SentFile:
    """The line in front of a file's bytes.

    Args:
        refused: why the file does not come; empty if it comes.
    """

    size: int = 0
    mtime: int = 0
    refused: str = ""


Listed = RemoteFile | NoJob | Missing


def decode_listed(line: str | bytes, host: str) -> Listed:
    """Return a line of ``give.py list``.

    Raises:
        ToolkitError: names the host and the field that is not valid.
    """
    value = _read(line, host)
    if "nothing" in value:
        _check(value, {"nothing": _is_bool}, host)
        return NoJob()
    if "missing" in value:
        _check(value, _MISSING, host)
        rest = {key: value[key] for key in ("there", "place", "called", "more")}
        return Missing(value["missing"], names=tuple(value["names"]), **rest)
    _check(value, _LINK if "link" in value else _FILE, host)
    return RemoteFile(**value)


def decode_sent(line: str | bytes, host: str) -> SentFile:
    """Return a line of ``give.py send``.

    Raises:
        ToolkitError: names the host and the field that is not valid.
    """
    value = _read(line, host)
    _check(value, {"refused": _is_text} if "refused" in value else _SENT, host)
    return SentFile(**value)


def bad_answer(field: str, value: object, host: str) -> ToolkitError:
    """Return the error for an answer that is not as give.py writes it."""
    shown = ascii(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return ToolkitError(f"the answer of give.py is not valid: {field} is {shown}", _FIX, host)


def leads_out(name: str, target: str) -> bool:
    """Return whether a link leads out of the folder that its name is relative to, by the words alone.

    >>> leads_out("a/l", "../b"), leads_out("a/l", "../../b"), leads_out("l", ".")
    (False, True, True)
    """
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return place.startswith("/") or place.split("/")[0] in (".", "..")


class Requested:
    """The names that a request for files can bring; see ``give.py`` for how it makes them.

    Args:
        folder: of the job, which patterns are relative to.
        patterns: as requested.
    """

    def __init__(self, folder: str, patterns: Sequence[str]) -> None:
        self._rules = [rule for pattern in patterns for rule in _rules(folder, pattern)]

    def __contains__(self, name: str) -> bool:
        parts = name.split("/")
        return any(rule(parts) for rule in self._rules)


_Rule = Callable[[Sequence[str]], bool]


def _rules(folder: str, pattern: str) -> list[_Rule]:
    """Return functions that accept the components of names at or below what a pattern matches."""
    whole = _parts(posixpath.normpath(posixpath.join(folder, pattern)))
    own = _parts(folder)
    inside = whole[: len(own)] == own
    found: list[_Rule] = []
    if inside:
        found += [_literal(whole[len(own) :]), _glob(whole[len(own) :])]
    # The folder may have another path on the host than here: a link is resolved there.
    if not inside or pattern.startswith("/"):
        first = next((at for at, part in enumerate(whole) if _is_magic(part)), len(whole) - 1)
        found += [_literal(whole[-1:]), _glob(whole[max(0, first) :])]
    return found


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _is_magic(part: str) -> bool:
    return any(sign in part for sign in "*?[")


def _literal(pattern: Sequence[str]) -> _Rule:
    return lambda parts: list(parts[: len(pattern)]) == list(pattern)


def _glob(pattern: Sequence[str]) -> _Rule:
    return lambda parts: _matches(pattern, parts)


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether a glob pattern matches these components or a folder above them."""
    at = {0}
    for part in parts:
        at = _with_empty(pattern, at)
        if len(pattern) in at:
            return True
        at = {_next(pattern, state, part) for state in at} - {-1}
    return len(pattern) in _with_empty(pattern, at)


def _with_empty(pattern: Sequence[str], at: set[int]) -> set[int]:
    """Add the states that are reached because ``**`` also matches no folder."""
    found = set(at)
    for state in range(len(pattern)):
        if state in found and pattern[state] == "**":
            found.add(state + 1)
    return found


def _next(pattern: Sequence[str], state: int, part: str) -> int:
    """Return the state after one more component, -1 for none."""
    word = pattern[state]
    if _is_magic(word) and part.startswith(".") and not word.startswith("."):
        return -1  # as for glob, hidden names are matched only if the pattern begins with a dot
    if word == "**":
        return state
    matched = fnmatch.fnmatchcase(part, word) if _is_magic(word) else part == word
    return state + 1 if matched else -1


_Check = Callable[[Any], bool]


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_text(value: Any) -> bool:
    """Accept a text that can be a path or a message."""
    if type(value) is not str or "\0" in value:
        return False
    try:
        return len(value.encode("utf-8", "surrogateescape")) <= MAX_NAME
    except UnicodeEncodeError:
        return False


def _is_path(value: Any) -> bool:
    return _is_text(value) and bool(value)


def _is_number(least: int, most: int) -> _Check:
    return lambda value: type(value) is int and least <= value <= most


def _are_texts(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


_is_size, _is_time = _is_number(0, MAX_SIZE), _is_number(-_MAX_TIME, _MAX_TIME)
_SENT: Mapping[str, _Check] = {"size": _is_size, "mtime": _is_time}
_LINK: Mapping[str, _Check] = {"path": _is_path, "name": _is_path, "link": _is_path}
_FILE: Mapping[str, _Check] = {
    "path": _is_path,
    "name": _is_path,
    **_SENT,
    "mode": _is_number(0, 0o777),
    "inode": _is_number(0, 2**64),
}
_MISSING: Mapping[str, _Check] = {
    "missing": _is_text,
    "there": _is_bool,
    "place": _is_text,
    "called": _is_text,
    "names": _are_texts,
    "more": _is_size,
}


def _read(line: str | bytes, host: str) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise bad_answer("the length of a line", len(line), host)
    try:
        value = load_json(line, MAX_LINE)
    except DecodeError:
        raise bad_answer("a line", line, host) from None
    if not isinstance(value, dict):
        raise bad_answer("a line", line, host)
    return value


def _check(value: Mapping[str, Any], fields: Mapping[str, _Check], host: str) -> None:
    for name in sorted(value.keys() ^ fields.keys()):
        raise bad_answer(f"the field {name!a}", "unknown" if name in value else "missing", host)
    for name, is_good in fields.items():
        if not is_good(value[name]):
            raise bad_answer(name, value[name], host)
