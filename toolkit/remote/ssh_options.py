"""Parser for the output of ``ssh -G``: options, lists of files, tokens, jump hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

Options = Mapping[str, list[str]]


def parse_ssh_g(text: str) -> Options:
    """Return what ``ssh -G`` printed, by option in lower case; those that repeat in order."""
    options: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    return options


def one(options: Options, key: str, default: str) -> str:
    """Return the first value of an option, the default when it is not given."""
    return next(iter(options.get(key, ())), default)


def set_of(value: str) -> str:
    """Return the value, an empty text for the word ``none``."""
    return "" if value.lower() == "none" else value


def split_paths(value: str) -> tuple[str, ...]:
    """Return the files in one line of ``ssh -G``, which parts them by blanks and quotes none."""
    return tuple(re.split(r" +(?=[/~])", value)) if value else ()


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Return the text with ssh_config(5)'s ``%`` tokens and ``${NAME}`` filled in; unknown ones stay."""

    def piece(match: re.Match[str]) -> str:
        if match[1]:
            return os.environ.get(match[1], match[0])
        return tokens.get(match[2], match[0])

    return re.sub(r"\$\{(\w+)\}|%(.)", piece, text)


def split_hop(text: str) -> tuple[str, str, int]:
    """Return user, host and port of one jump host as ``ssh -G`` and users write it; 0 for no port."""
    user, _, place = text.removeprefix("ssh://").rpartition("@")
    # ssh puts brackets around a host with a port, as around an IPv6 address.
    match = re.fullmatch(r"\[?([^\[\]]*?)\]?(?::([0-9]+))?", place)
    return (user, match[1], int(match[2] or 0)) if match else (user, place, 0)
