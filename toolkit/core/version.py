"""Which of two releases is the later one."""

from __future__ import annotations

import re
from collections.abc import Iterable


def is_newer(version: str, than: str) -> bool:
    """Return whether the first is a later release than the second, by their first three numbers.

    What is no version at all, such as the empty text of a cluster from before versions were written down,
    is newer than nothing.

    >>> is_newer("0.10.0", "0.9.3"), is_newer("", "0.1.0"), is_newer("0.1.0rc1", "0.1.0")
    (True, False, False)
    """
    return _numbers(version) > _numbers(than)


def latest(versions: Iterable[str]) -> str:
    """Return the latest of the versions; empty when there is none."""
    return max(versions, key=_numbers, default="")


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", version)
    return tuple(map(int, found.groups())) if found else ()
