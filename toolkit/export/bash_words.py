"""Words of a bash script, some of which stand for its variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence


def env_words(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return docker's options for variables."""
    return [word for name, value in pairs for word in ("--env", f"{name}={value}")]


def var(name: str) -> str:
    """Return a word that stands for a variable of the script, until ``quoted``."""
    return f"\0{name}\0"


def quoted(word: str) -> str:
    """Return a word as bash reads it."""
    # Whatever holds a NUL is quoted by single quotes; they end where a variable begins.
    text = re.sub("\0(.*?)\0", r"""'"$\1"'""", shlex.quote(word))
    return re.sub(r"^''(?=\")|(?<=\")''$", "", text).replace("\"''\"", '""')


def joined(words: Iterable[str]) -> str:
    """Return words in one line."""
    return " ".join(map(quoted, words))


def as_lines(words: Sequence[str]) -> list[str]:
    """Return words as lines: an option and its values on each."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") or not lines or not lines[-1].startswith("-") or " " in lines[-1]:
            lines.append(quoted(word))
        else:
            lines[-1] += " " + quoted(word)
    return lines
