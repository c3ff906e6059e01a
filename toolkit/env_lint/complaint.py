"""A variable with its place in the file, and a complaint about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from toolkit.core.finding import Verdict


@dataclass(frozen=True)
class Setting:
    """One variable as a rank receives it, and its place; see ``lint_environment``."""

    name: str
    value: str
    where: str = ""
    host: str = ""


class Complaint(NamedTuple):
    """Parts of a ``Finding``; ``error`` is for a variable that stops a job that uses the library."""

    verdict: Verdict
    what: str
    fix: str


def listed(words: Iterable[str]) -> str:
    """Return words as a list in a sentence: ``LL, LL128 and Simple``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
