"""Files that a host offers, as ``container/send_files.py`` lists and sends them, and checks of its answers.

The answers are untrusted input: their fields are decoded by toolkit/protocol/files.py, and each name is
compared with what was requested.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.protocol.decode import DecodeError, decode, load_json
from toolkit.protocol.files import (
    MOST_BYTES,
    CollisionListed,
    FileListed,
    LinkListed,
    MissingListed,
    NothingListed,
    Refused,
    Sent,
)

INSTALL_FIX = "toolkit up  # installs the programs of this version on the host"


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
class Collision:
    """A local name that different files of two patterns would get."""

    name: str
    patterns: tuple[str, str]


@dataclass(frozen=True)
class SentFile:
    """The line in front of a file's bytes.

    Args:
        refused: why the file does not come; empty if it comes.
    """

    size: int = 0
    mtime: int = 0
    refused: str = ""


Listed = RemoteFile | NoJob | Missing | Collision


def decode_listed(line: str | bytes, host: str) -> Listed:
    """Return a line of ``send_files list``.

    Raises:
        ToolkitError: names the host and the field that is not valid.
    """
    with _answer_of(host):
        value = load_json(line, MOST_BYTES)
        keys = value if isinstance(value, dict) else {}
        if "nothing" in keys:
            decode(NothingListed, value)
            return NoJob()
        if "missing" in keys:
            gone = decode(MissingListed, value)
            return Missing(gone.missing, gone.there, gone.place, gone.called, gone.names, gone.more)
        if "collides" in keys:
            collision = decode(CollisionListed, value)
            return Collision(collision.collides, collision.patterns)
        if "link" in keys:
            link = decode(LinkListed, value)
            return RemoteFile(link.path, link.name, link=link.link)
        file = decode(FileListed, value)
        return RemoteFile(file.path, file.name, file.size, file.mtime, file.mode, inode=file.inode)


def decode_sent(line: str | bytes, host: str) -> SentFile:
    """Return a line of ``send_files send``.

    Raises:
        ToolkitError: names the host and the field that is not valid.
    """
    with _answer_of(host):
        value = load_json(line, MOST_BYTES)
        if isinstance(value, dict) and "refused" in value:
            return SentFile(refused=decode(Refused, value).refused)
        sent = decode(Sent, value)
        return SentFile(sent.size, sent.mtime)


@contextmanager
def _answer_of(host: str) -> Iterator[None]:
    try:
        yield
    except DecodeError as error:
        what = f"the host sent an invalid reply about result files: {error}"
        raise ToolkitError(what, INSTALL_FIX, host) from error


def bad_answer(field: str, value: object, host: str) -> ToolkitError:
    """Return the error for an answer that is not as send_files writes it."""
    shown = ascii(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    what = f"the host sent an invalid reply about result files: {field}: {shown}"
    return ToolkitError(what, INSTALL_FIX, host)


def leads_out(name: str, target: str) -> bool:
    """Return whether a link leads out of the folder that its name is relative to, by the words alone.

    >>> leads_out("a/l", "../b"), leads_out("a/l", "../../b"), leads_out("l", ".")
    (False, True, True)
    """
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return place.startswith("/") or place.split("/")[0] in (".", "..")


class Requested:
    """The names that a request for files can match; ``send_files`` creates the names.

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
    # The path of the folder on the host can differ from the path on this machine: the host resolves a link.
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
