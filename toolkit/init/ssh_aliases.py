"""The aliases that an ssh configuration names, and the files that it includes; see ssh_config(5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

# A keyword, and its arguments behind blanks or one '='.
_LINE = re.compile(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)")
_WORD = re.compile(r'"([^"]*)"|(\S+)')


def parse_aliases(text: str) -> Iterator[tuple[Literal["host", "include"], str]]:
    """Yield each name of a ``Host`` line without wildcards, and each pattern of an ``Include``, in order.

    Names that stand for other machines than themselves (``*``, ``?``, ``!``) are passed over.
    """
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or line.lstrip().startswith("#"):
            continue
        words = [quoted or bare for quoted, bare in _WORD.findall(match[2])]
        for index, word in enumerate(words):
            if word.startswith("#"):
                words = words[:index]
                break
        if match[1].lower() == "host":
            yield from (("host", word) for word in words if word and not set(word) & set("*?!"))
        elif match[1].lower() == "include":
            yield from (("include", word) for word in words if word)
