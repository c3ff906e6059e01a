"""Collects the problems of a command line and reports all of them before any host is contacted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar

from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.fields import env_name
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import load_inventory
from toolkit.protocol.decode import real

Value = TypeVar("Value")
Given = ParamSpec("Given")

SOURCE = "command line"

# The most seconds that an option accepts, about thirty years: every clock and timer can hold them.
_MOST_SECONDS = 1e9
_MOST_DIGITS = 12

# Not a comma in the brackets of a host list.
_COMMA = re.compile(r",(?![^\[]*\])")


def listed(given: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names given to a repeatable option; each value can be a list with commas.

    >>> listed(["gpu1, gpu2", "node[01-04,07]"])
    ('gpu1', 'gpu2', 'node[01-04,07]')
    """
    return tuple(name.strip() for words in given or () for name in _COMMA.split(words))


class CommandLine:
    """Reads the values of one command line; ``accept`` and ``end`` report the problems.

    Each method returns None, or an empty value, for an invalid word, so that the other words are checked too.
    """

    def __init__(self) -> None:
        self._faults: dict[str, list[Problem]] = {}
        self._fix = ""

    def refuse(self, where: str, message: str) -> None:
        """Record a problem, such as ``--np`` and ``should be …``."""
        self._faults.setdefault(SOURCE, []).append(Problem(where, message))

    def whole(self, option: str, text: str | None, least: int = 1, most: int = 10**9) -> int | None:
        """Return a whole number; None if ``text`` is None or invalid."""
        if text is None:
            return None
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS:
            number = int(text)
            if least <= number <= most:
                return number
        room = f"of {least} or more" if most >= 10**9 else f"from {least} to {most}"
        self.refuse(option, f"should be a whole number {room}, found {text!r}")
        return None

    def seconds(self, option: str, text: str | None, least: int = 1) -> float | None:
        """Return a number of seconds, at least ``least``; None if ``text`` is None or invalid."""
        if text is None:
            return None
        number = real(text)
        if number is not None and least <= number <= _MOST_SECONDS:
            return number
        self.refuse(option, f"should be a number of seconds, {least} or more, found {text!r}")
        return None

    def one_of(self, where: str, text: str, known: Iterable[str]) -> str:
        """Return the word; empty unless ``known`` contains it."""
        words = tuple(known)
        if text in words:
            return text
        self.refuse(where, f"should be one of {', '.join(words)}, found {text!r}")
        return ""

    def folder(self, option: str, path: str) -> Path | None:
        """Return an absolute path without links; None if the working directory does not exist any more."""
        try:
            return Path(os.path.realpath(path))
        except OSError as error:
            self.refuse(
                option, f"cannot read the current folder: {error.strerror}; change to an existing folder"
            )
            return None

    def value(self, where: str, make: Callable[[str], Value], text: str) -> Value | None:
        """Return the result of ``make(text)``; None after a ValueError, whose text becomes the problem."""
        try:
            return make(text)
        except ValueError as error:
            self.refuse(where, str(error))
            return None

    def read(self, make: Callable[Given, Value], *args: Given.args, **options: Given.kwargs) -> Value | None:
        """Return the result of ``make``; None if it raises BadInput, whose problems keep their source."""
        try:
            return make(*args, **options)
        except BadInput as error:
            self._faults.setdefault(error.source, []).extend(error.problems)
            self._fix = self._fix or error.fix
            return None

    def hosts(self, path: str) -> Inventory | None:
        """Return the hosts file's inventory; None if the file is invalid."""
        return self.read(load_inventory, path)

    def accept(self, value: Value | None) -> Value:
        """Return a value that was read, if the command line has no problem.

        Raises:
            BadInput: see ``end``.
        """
        self.end()
        assert value is not None
        return value

    def end(self) -> None:
        """Refuse the command line if it has a problem.

        Raises:
            BadInput: with every problem.
        """
        several = len(self._faults) > 1
        problems = [
            # A problem of a complete file has no path: name the file if there are problems of other sources.
            Problem(source, p.message) if several and not (p.path or p.line) and source != SOURCE else p
            for source, own in self._faults.items()
            for p in own
        ]
        if problems:
            raise BadInput(" and ".join(self._faults), tuple(dict.fromkeys(problems)), self._fix)


def variable(line: CommandLine, word: str) -> tuple[str, str | None]:
    """Return name and value of NAME[=VALUE]; the value is None without ``=``, an invalid name is empty."""
    name, equals, value = word.partition("=")
    # The value can be a secret, so no message repeats it.
    good = line.value(f"--env {name}", env_name, name)
    return (good or "", value if equals else None)
