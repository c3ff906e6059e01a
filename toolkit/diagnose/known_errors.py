"""Errors that training jobs print, with meaning and fix; a search for all of them in one pass; a job's end.

The patterns are plain text. Regular expressions could make the search slow on some logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import yaml

from toolkit.core.printable import without_color
from toolkit.core.templates import package_text
from toolkit.hostsfile.yaml import LOADER
from toolkit.jobs.status import JobStatus
from toolkit.protocol.decode import decode

OR = " | "
GAP = " … "
NAME = "NAME"

# A progress bar without line ends can be megabytes long; other text precedes or follows the progress bar.
LONGEST_LINE = 8192
# Number of characters that one search for all words covers, before single lines are compared.
CHUNK = 1 << 18


@dataclass(frozen=True)
class KnownError:
    """One error.

    Args:
        name: a short name that does not change.
        pattern: words of one line in any case; ``" … "`` matches any text, ``"NAME"`` matches a word without
            a dot or a slash, ``" | "`` separates two ways to print the error.
        what: the meaning of the error, in one sentence.
        fix: a command or an instruction.
        follows: whether another error causes this error, so that an exception explains more.
        timeout: whether a rank waited too long for another rank, so that a stall can precede this error.
    """

    name: str
    pattern: str
    what: str
    fix: str
    follows: bool = False
    timeout: bool = False


@dataclass(frozen=True)
class _Row:
    """An entry of known_errors.yaml, which explains its keys."""

    name: str
    says: tuple[str, ...]
    what: str
    fix: str
    follows: bool = False
    timeout: bool = False


def _read(text: str) -> Iterator[KnownError]:
    groups = decode(dict[str, tuple[_Row, ...]], yaml.load(text, Loader=LOADER))
    for row in (row for rows in groups.values() for row in rows):
        yield KnownError(row.name, OR.join(row.says), row.what, row.fix, row.follows, row.timeout)


@cache
def known_errors() -> tuple[KnownError, ...]:
    """Return all errors in the order of known_errors.yaml, which is read at the first call."""
    return tuple(_read(package_text("diagnose/known_errors.yaml")))


@dataclass(frozen=True)
class _Way:
    """One way to print an error: its words in order, the longest word, and the words that follow a NAME."""

    words: tuple[str, ...]
    mark: str
    after_names: tuple[str, ...] = ()

    def is_in(self, line: str) -> bool:
        at = 0
        for word in self.words:
            start, at = at, line.find(word, at)
            if at < 0 or (word in self.after_names and not line[start:at].replace("-", "_").isidentifier()):
                return False
            at += len(word)
        return True


def _ways(pattern: str) -> tuple[_Way, ...]:
    ways = []
    for way in pattern.split(OR):
        first, *after_names = way.lower().split(NAME.lower()) if NAME in way else (way.lower(),)
        words = (*first.split(GAP), *after_names)
        ways.append(_Way(words, max(words, key=len), tuple(after_names)))
    return tuple(ways)


@cache
def _all_ways() -> tuple[tuple[KnownError, tuple[_Way, ...]], ...]:
    return tuple((error, _ways(error.pattern)) for error in known_errors())


def match(lines: Iterable[str]) -> tuple[KnownError, ...]:
    """Return the known errors of a log, each once, in the order in which they first occur.

    For each line, only the first error of the list that matches counts. In a line longer than 8192
    characters, only both ends are searched. 100,000 lines usually take half a second.
    """
    found: dict[str, KnownError] = {}
    for text in _chunks(lines):
        here = [(e, ways) for e, ways in _all_ways() if any(way.mark in text for way in ways)]
        firsts = []
        for number, (error, ways) in enumerate(here):
            if error.name not in found:
                others = [other for _, earlier in here[:number] for other in earlier]
                places = [_first(way, text, others) for way in ways]
                firsts += [(min(at for at in places if at >= 0), error)] if max(places) >= 0 else []
        found.update((e.name, e) for _, e in sorted(firsts, key=lambda first: (first[0], first[1].name)))
    return tuple(found.values())


def _first(way: _Way, text: str, others: Sequence[_Way]) -> int:
    """Return the start of the first line that matches this way and none of the others, or -1."""
    at = text.find(way.mark)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        line = text[start : end if end >= 0 else len(text)]
        if way.is_in(line) and not any(other.is_in(line) for other in others):
            return start
        at = text.find(way.mark, start + len(line))
    return -1


def _chunks(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines in lower case, many at a time, without the middle of very long lines."""
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


def end_text(job: JobStatus) -> str:
    """Return the last lines of the rank that failed first, then one line with the cause of the job's end."""
    lines = []
    if job.last_lines and job.state == "failed":
        lines = ["  last lines of the rank that failed:", *(f"    {line}" for line in job.last_lines)]
    took = f" after {job.ended - job.started:.1f} s" if job.ended else ""
    error = job.error if lines else ""
    why = "".join(f": {part}" for part in (job.reason, error) if part)
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    lines.append(f"job {job.id}: {job.state}{took}{code}{why}")
    if error:
        lines += [f"  fix: {known.fix}" for known in match([error])]
    return without_color("\n".join(lines)) + "\n"
