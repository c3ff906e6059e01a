"""What a shell offers after TAB: hosts of the file and words of our own lists. Silent, quick, no ssh."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

Completer = Callable[[str], list[str]]


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of hosts, from the file that the command line or TOOLKIT_HOSTS names."""
    return _matching(_names(str(ctx.params.get("hosts") or "")), incomplete)


def services(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of services, from the same file."""
    return _matching(_names(str(ctx.params.get("hosts") or ""), "services"), incomplete)


def first_host(ctx: typer.Context, incomplete: str) -> list[str]:
    """The same for a verb whose first word may be a host; what follows is another program's."""
    return [] if ctx.params.get("words") else hosts(ctx, incomplete)


def launchers(incomplete: str) -> list[str]:
    """Launchers that a job can be started by."""
    from toolkit.spec.fields import LAUNCHERS

    return _matching(LAUNCHERS, incomplete)


def flavours(incomplete: str) -> list[str]:
    """Flavours of the image."""
    from toolkit.plan.image import FLAVOURS

    return _matching(FLAVOURS, incomplete)


def extras(incomplete: str) -> list[str]:
    """What can be added to the image, alone or behind others and a comma."""
    from toolkit.plan.extras import EXTRAS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _matching(EXTRAS, last)]


def engines(incomplete: str) -> list[str]:
    """Kinds of engine, alone or behind others and a comma."""
    from toolkit.lab.spec import ENGINES

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _matching(ENGINES, last)]


def lab_users(incomplete: str) -> list[str]:
    """Users that a practice host lets in."""
    from toolkit.lab.spec import SSH_USERS

    return _matching(SSH_USERS, incomplete)


def one_of(*words: str) -> Completer:
    """Return a completer for these words."""

    def complete(incomplete: str) -> list[str]:
        return _matching(words, incomplete)

    return complete


def _matching(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _names(path: str, key: str = "hosts") -> list[str]:
    """The names below a key of a hosts file, none when it cannot be read: no errors while typing."""
    from pathlib import Path

    from toolkit.spec.yaml import MAX_BYTES, read_yaml

    try:
        with Path(path).open("rb") as file:
            data = read_yaml(file.read(MAX_BYTES + 1)).data
    except (OSError, ValueError):
        return []
    found = (data or {}).get(key)
    return [name for name in found if isinstance(name, str)] if isinstance(found, (dict, list)) else []
