"""What is wrong with a command line, gathered: it is refused once, before any host is contacted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.fields import env_name
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import load_inventory

Value = TypeVar("Value")
Given = ParamSpec("Given")

SOURCE = "command line"

# A number of seconds that every clock and timer can hold: thirty years.
_MOST_SECONDS = 1e9
_MOST_DIGITS = 12


def listed(given: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names that an option was given: one each time, or several with commas between them."""
    return tuple(name.strip() for words in given or () for name in words.split(","))


class CommandLine:
    """Reads the words of one command line; faults wait until ``accept`` or ``end``.

    Each method gives None, or an empty value, for what cannot be read, so that the rest is still looked at.
    """

    def __init__(self) -> None:
        self._faults: dict[str, list[Problem]] = {}
        self._fix = ""

    def refuse(self, where: str, message: str) -> None:
        """Note a fault, such as ``--np`` and ``should be …``."""
        self._faults.setdefault(SOURCE, []).append(Problem(where, message))

    def whole(self, option: str, text: str | None, least: int = 1, most: int = 10**9) -> int | None:
        """Return a whole number, None when none is given."""
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
        """Return a number of seconds, at least ``least``; None when none is given."""
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if least <= number <= _MOST_SECONDS:
            return number
        self.refuse(option, f"should be a number of seconds, {least} or more, found {text!r}")
        return None

    def one_of(self, where: str, text: str, known: Iterable[str]) -> str:
        """Return the word, empty unless it is one of ``known``."""
        words = tuple(known)
        if text in words:
            return text
        self.refuse(where, f"is one of {', '.join(words)}, found {text!r}")
        return ""

    def value(self, where: str, make: Callable[[str], Value], text: str) -> Value | None:
        """Return what ``make`` gives for a word, None when it raises ValueError, with what is wrong."""
        try:
            return make(text)
        except ValueError as error:
            self.refuse(where, str(error))
            return None

    def read(self, make: Callable[Given, Value], *args: Given.args, **options: Given.kwargs) -> Value | None:
        """Return what ``make`` gives, None when it refuses; its faults are kept under their own source."""
        try:
            return make(*args, **options)
        except BadInput as error:
            self._faults.setdefault(error.source, []).extend(error.problems)
            self._fix = self._fix or error.fix
            return None

    def hosts(self, path: str) -> Inventory | None:
        """Return the hosts file's inventory, None when it is wrong."""
        return self.read(load_inventory, path)

    def accept(self, value: Value | None) -> Value:
        """Return a value that was read, now that nothing is wrong.

        Raises:
            BadInput: see ``end``.
        """
        self.end()
        assert value is not None
        return value

    def end(self) -> None:
        """Refuse the command line when anything is wrong with it.

        Raises:
            BadInput: with every fault.
        """
        several = len(self._faults) > 1
        problems = [
            # Beside faults of the command line, one of a whole file says of which.
            Problem(source, p.message) if several and not (p.path or p.line) and source != SOURCE else p
            for source, own in self._faults.items()
            for p in own
        ]
        if problems:
            raise BadInput(" and ".join(self._faults), tuple(dict.fromkeys(problems)), self._fix)


def variable(line: CommandLine, word: str) -> tuple[str, str | None]:
    """Return the name and the value of NAME[=VALUE], None without one; an empty name for one that is none."""
    name, equals, value = word.partition("=")
    # The value may be a secret: no message repeats it.
    good = line.value(f"--env {name}", env_name, name)
    return (good or "", value if equals else None)
