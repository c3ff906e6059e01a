"""What a shell offers after TAB: hosts of the file and words of our own lists. Silent, quick, no ssh."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from toolkit.hostsfile.fields import LAUNCHER_NAMES
from toolkit.jobs.id_cache import knows_jobs, recall_jobs

Completer = Callable[[str], list[str]]


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of hosts, from the file that the command line or TOOLKIT_HOSTS names."""
    return _matching(_names(str(ctx.params.get("hosts") or "")), incomplete)


def host_list(ctx: typer.Context, incomplete: str) -> list[str]:
    """The same, alone or behind others and a comma."""
    return _last(hosts(ctx, ""), incomplete)


def services(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of services, from the same file."""
    return _matching(_names(str(ctx.params.get("hosts") or ""), "services"), incomplete)


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of jobs of the same file's cluster that this machine has started or listed, newest first."""
    if not knows_jobs():
        return []
    cluster = _read(str(ctx.params.get("hosts") or "")).get("cluster")
    return _matching(recall_jobs(cluster), incomplete) if isinstance(cluster, str) else []


def first_host(ctx: typer.Context, incomplete: str) -> list[str]:
    """The same for a verb whose first word may be a host; what follows is another program's."""
    return [] if ctx.params.get("words") else hosts(ctx, incomplete)


def rates(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of hosts, each with the sign that a rate follows."""
    return [f"{name}=" for name in hosts(ctx, incomplete)]


def launchers(incomplete: str) -> list[str]:
    """Launchers that a job can be started by."""
    return _matching(LAUNCHER_NAMES, incomplete)


def flavors(incomplete: str) -> list[str]:
    """Flavors of the image."""
    from toolkit.image.build_plan import FLAVOURS

    return _matching(FLAVOURS, incomplete)


def extras(incomplete: str) -> list[str]:
    """What can be added to the image, alone or behind others and a comma."""
    from toolkit.image.build_plan import EXTRAS

    return _last(EXTRAS, incomplete)


def check_list(incomplete: str) -> list[str]:
    """Checks of hosts, alone or behind others and a comma."""
    from toolkit.checks.registry import CHECKS

    return _last((check.id for check in CHECKS), incomplete)


def one_of(*words: str) -> Completer:
    """Return a completer for these words."""

    def complete(incomplete: str) -> list[str]:
        return _matching(words, incomplete)

    return complete


def list_of(*words: str) -> Completer:
    """Return a completer for these words, alone or behind others and a comma."""

    def complete(incomplete: str) -> list[str]:
        return _last(words, incomplete)

    return complete


def _matching(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _last(words: Iterable[str], incomplete: str) -> list[str]:
    """Those that begin as the last of the words with commas between them, behind the others."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in _matching(words, last)]


def _names(path: str, key: str = "hosts") -> list[str]:
    """The names below a key of a hosts file."""
    found = _read(path).get(key)
    return [name for name in found if isinstance(name, str)] if isinstance(found, (dict, list)) else []


def _read(path: str) -> dict[Any, Any]:
    """What a hosts file says, nothing when it cannot be read: no errors while typing."""
    from toolkit.hostsfile.yaml import MAX_BYTES, read_yaml

    try:
        with Path(path).open("rb") as file:
            data = read_yaml(file.read(MAX_BYTES + 1)).data
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
