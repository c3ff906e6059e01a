"""How problems speak: values, paths and near misses as short, printable text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# A place in the file: keys and list indexes from the top.
Path = tuple[str | int, ...]

_LONGEST = 60


def shown(value: object) -> str:
    """Return a value as a person may read it in a message: YAML's words, clipped, nothing unprintable."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str) and len(value) > _LONGEST:
        value = value[: _LONGEST - 1] + "…"
    return repr(value)


def kind(value: object) -> str:
    """Return what sort of value it is, without the value: for what may be a secret."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return shown(value)


def path_text(path: Path) -> str:
    """Return a path as ``hosts/gpu2/slots``; keys that are empty, long or unprintable come quoted."""
    return "/".join(_key_text(str(key)) for key in path)


def _key_text(key: str) -> str:
    if "=" in key:
        key = key.partition("=")[0] + "=…"  # a variable written as NAME=value, where the value may be secret
    return key if key.isprintable() and 0 < len(key) <= _LONGEST else shown(key)


def meant(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'slots'?`` or, when nothing is near, the list of what is known (clipped)."""
    names = list(known)
    # difflib is quadratic in the length of the words, and the file may hold very long ones.
    near = difflib.get_close_matches(word[:_LONGEST], names[:2000], 1)
    if near:
        return f"did you mean {shown(near[0])}?"
    more = ", …" if len(names) > 24 else ""
    return "known are " + ", ".join(path_text((name,)) for name in names[:24]) + more


def fits(pattern: str, text: str) -> bool:
    """Return whether the pattern takes the whole of the text."""
    return re.fullmatch(pattern, text, re.ASCII) is not None


def require(condition: bool, should: str, found: object) -> None:
    """Refuse a value with what it should be.

    Raises:
        ValueError: unless ``condition``.
    """
    if not condition:
        raise ValueError(f"should be {should}, found {shown(found)}")
