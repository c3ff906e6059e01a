"""Errors that training jobs print, with meaning and fix; found in a log in one pass.

The words are plain text, not regular expressions, so that no log can make the search slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import yaml

from toolkit.core.templates import package_text
from toolkit.hostsfile.yaml import LOADER
from toolkit.protocol.decode import decode

OR = " | "
GAP = " … "

# A progress bar without line ends may be megabytes long; text before or after it is at its ends.
LONGEST_LINE = 8192
# Characters in which all words are looked for at once, before single lines are compared.
CHUNK = 1 << 18


@dataclass(frozen=True)
class KnownError:
    """One error.

    Args:
        name: a short name that does not change.
        pattern: words of one line, case set aside; ``" … "`` stands for anything, ``" | "`` is put between
            two ways to print it.
        what: its meaning, in one sentence.
        fix: what to do.
    """

    name: str
    pattern: str
    what: str
    fix: str


@dataclass(frozen=True)
class _Row:
    """An entry of known_errors.yaml, which explains its keys."""

    name: str
    says: tuple[str, ...]
    what: str
    fix: str


def _read(text: str) -> Iterator[KnownError]:
    groups = decode(dict[str, tuple[_Row, ...]], yaml.load(text, Loader=LOADER))
    for row in (row for rows in groups.values() for row in rows):
        yield KnownError(row.name, OR.join(row.says), row.what, row.fix)


KNOWN_ERRORS: tuple[KnownError, ...] = tuple(_read(package_text("diagnose/known_errors.yaml")))
_BY_NAME = {error.name: error for error in KNOWN_ERRORS}


@dataclass(frozen=True)
class _Way:
    """One way to print an error: its words in their order, and the longest of them."""

    words: tuple[str, ...]
    mark: str

    def is_in(self, line: str) -> bool:
        at = 0
        for word in self.words:
            at = line.find(word, at)
            if at < 0:
                return False
            at += len(word)
        return True


def _ways(pattern: str) -> tuple[_Way, ...]:
    ways = (tuple(way.split(GAP)) for way in pattern.lower().split(OR))
    return tuple(_Way(words, max(words, key=len)) for words in ways)


_WAYS = {error.name: _ways(error.pattern) for error in KNOWN_ERRORS}


def match(lines: Iterable[str]) -> tuple[KnownError, ...]:
    """Return the known errors of a log, each once, in the order in which they first occur.

    A line is one error, the first of the list that matches. Of a line longer than 8192 characters only both
    ends are searched. 100,000 lines take half a second, and a few seconds when made to be slow.
    """
    found: dict[str, KnownError] = {}
    for text in _chunks(lines):
        here = [e for e in KNOWN_ERRORS if any(way.mark in text for way in _WAYS[e.name])]
        firsts = []
        for number, error in enumerate(here):
            if error.name not in found:
                places = [_first(way, text, here[:number]) for way in _WAYS[error.name]]
                firsts += [(min(at for at in places if at >= 0), error.name)] if max(places) >= 0 else []
        found.update((name, _BY_NAME[name]) for _, name in sorted(firsts))
    return tuple(found.values())


def _first(way: _Way, text: str, others: Sequence[KnownError]) -> int:
    """Return the start of the first line that matches this way and none of the others, or -1."""
    at = text.find(way.mark)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        line = text[start : end if end >= 0 else len(text)]
        if way.is_in(line) and not any(other.is_in(line) for e in others for other in _WAYS[e.name]):
            return start
        at = text.find(way.mark, start + len(line))
    return -1


def _chunks(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines in small letters, many at a time, with the middle of very long ones left out."""
    kept: list[str] = []
    size = 0
    for line in lines:
        if len(line) > LONGEST_LINE:
            line = line[: LONGEST_LINE // 2] + GAP + line[-LONGEST_LINE // 2 :]
        kept.append(line)
        size += len(line) + 1
        if size >= CHUNK:
            yield "\n".join(kept).lower()
            kept, size = [], 0
    if kept:
        yield "\n".join(kept).lower()
