"""JSON out of a program's output that other text may precede."""

from __future__ import annotations

from typing import TypeVar

from toolkit.protocol.decode import decode, load_first

T = TypeVar("T")


def json_list(kind: type[T], text: str) -> tuple[T, ...]:
    """Return the first JSON array in the text as values of a type; nothing when there is none.

    Raises:
        DecodeError: what begins there is no array of such values.
    """
    start = text.find("[")
    if start < 0:
        return ()
    return decode(tuple[kind, ...], load_first(text, start)[0])  # type: ignore[valid-type]
