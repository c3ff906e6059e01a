"""What the values of a service in hosts.yaml may be."""

from __future__ import annotations

import shlex

from toolkit.hostsfile.words import fits, require, shown

# Part of a container's name, beside the cluster's.
NAME = r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?"
# RFC 3986, 3.3: what may stand in a path, and behind "?" in a query, without being written as %XX.
HEALTH = r"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*"


def name(text: str) -> str:
    should = "1 to 32 of a-z, 0-9 and '-', beginning and ending with a letter or digit"
    require(fits(NAME, text), should, text)
    return text


def health(text: str) -> str:
    require(fits(HEALTH, text), "the path of a URL such as /healthz", text)
    return text


def command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"cannot be split into words ({error}), found {shown(text)}") from None
    require(bool(words), "a command", text)
    return text


def words(value: str | list[str]) -> tuple[str, ...]:
    """Return a checked command's words; nobody expands variables or patterns in them."""
    return tuple(shlex.split(value) if isinstance(value, str) else value)
