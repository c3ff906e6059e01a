"""Small helpers for text: counts, JSON within other output, versions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from toolkit.protocol.decode import decode, load_first


def counted(number: int, noun: str) -> str:
    """Return ``1 host`` or ``3 hosts``; `noun` forms its plural with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


T = TypeVar("T")


def json_list(kind: type[T], text: str) -> tuple[T, ...]:
    """Return the first JSON array in the text as values of a type; empty if the text contains none.

    Raises:
        DecodeError: the text at the first bracket is no array of such values.
    """
    start = text.find("[")
    if start < 0:
        return ()
    return decode(tuple[kind, ...], load_first(text, start)[0])  # type: ignore[valid-type]


def is_newer(version: str, than: str) -> bool:
    """Return whether the first is a later release than the second, by their first three numbers.

    What is no version at all, such as the empty text of a cluster from before versions were written down,
    is newer than nothing.

    >>> is_newer("0.10.0", "0.9.3"), is_newer("", "0.1.0"), is_newer("0.1.0rc1", "0.1.0")
    (True, False, False)
    """
    return _numbers(version) > _numbers(than)


def latest(versions: Iterable[str]) -> str:
    """Return the latest of the versions; empty if there is none."""
    return max(versions, key=_numbers, default="")


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", version)
    return tuple(map(int, found.groups())) if found else ()
