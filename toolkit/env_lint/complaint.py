"""What is wrong with a variable, and a variable with the place where it stood."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from toolkit.core.finding import Verdict


@dataclass(frozen=True)
class Setting:
    """One variable as a rank gets it, and where it was written; see ``lint_environment``."""

    name: str
    value: str
    where: str = ""
    host: str = ""


class Complaint(NamedTuple):
    """See ``Finding``; ``error`` is kept for what ends a job that uses the library."""

    verdict: Verdict
    what: str
    fix: str


def listed(words: Iterable[str]) -> str:
    """Return words as people list them: ``LL, LL128 and Simple``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
