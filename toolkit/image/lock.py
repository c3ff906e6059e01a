"""The lock: the SHA-256 of each package file that the recipes of toolkit fetch.

The lock is a file in the format of ``sha256sum``. ``scripts/lock.py`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from toolkit.core.printable import counted
from toolkit.errors import BadInput, Problem
from toolkit.image.build_values import Locked
from toolkit.image.wheelhouse import Pin, Target, file_key, runs_on

LOCK_FILE = "image/wheels.lock"
_HEAD = """\
# SHA-256 of the wheels that the recipes of the images fetch. `make lock` writes this file.
# The Dockerfiles contain the SHA-256 of the source archives.
"""
_SHOWN = 4
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")

# Digests by file name, for each package by its normalized name and its version.
Lock = Mapping[tuple[str, str], Mapping[str, str]]


def parse_lock(text: str) -> Lock:
    """Return the content of the lock.

    Raises:
        BadInput: a line is not a SHA-256, two spaces and a file name.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.startswith("#"):
            continue
        if match := _LINE.fullmatch(line):
            found.setdefault(file_key(match[2]), {})[match[2]] = match[1]
        else:
            problems.append(Problem("", f"should be SHA-256 and FILE, found '{line}'", number))
    if problems:
        raise BadInput(LOCK_FILE, tuple(problems))
    return found


def lock_text(files: Mapping[str, str]) -> str:
    """Return the text of the lock.

    Args:
        files: digests by file name.
    """
    return _HEAD + "".join(f"{files[name]}  {name}\n" for name in sorted(files))


def locked_pins(pins: Collection[Pin], lock: Lock, target: Target) -> tuple[Locked, ...]:
    """Return the pins that the lock has a file for on this target, with the digests of these files."""
    found = []
    for pin in pins:
        files = lock.get((pin.key, pin.version), {})
        if digests := tuple(sorted(digest for name, digest in files.items() if runs_on(name, target))):
            found.append(Locked(pin.name, pin.version, digests))
    return tuple(found)


def expected_digests(filename: str, locked: Collection[Locked]) -> tuple[str, ...]:
    """Return the digests that a file of this name can have; empty if its package is not locked."""
    found = (each for each in locked if Pin(each.name, each.version, "").is_in(filename))
    return next((each.digests for each in found), ())


def unlocked_text(pins: Sequence[str]) -> str:
    """Return the message about packages without an entry in the lock."""
    names, others = ", ".join(pins[:_SHOWN]), len(pins) - _SHOWN
    more = f" and {others} more" if others > 0 else ""
    of = counted(len(pins), "package")
    unchecked = f"toolkit cannot verify the files of these packages: {names}{more}"
    return f"{LOCK_FILE} contains no SHA-256 of {of}, so {unchecked}"
