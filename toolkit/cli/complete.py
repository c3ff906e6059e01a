"""Shell completion: names from the hosts file and from lists of toolkit. Connects to no host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from toolkit.hostsfile.fields import LAUNCHER_NAMES
from toolkit.image.cuda import CUDA_NAMES
from toolkit.jobs.id_cache import knows_jobs, recall_jobs

Completer = Callable[[str], list[str]]


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the hosts of the hosts file that the command line or TOOLKIT_HOSTS names."""
    return _matching(_names(str(ctx.params.get("hosts") or "")), incomplete)


def host_list(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return hosts for a list with commas: completes its last name."""
    return _last(hosts(ctx, ""), incomplete)


def services(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the services of the hosts file."""
    return _matching(_names(str(ctx.params.get("hosts") or ""), "services"), incomplete)


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the cluster's jobs that this machine has started or listed, newest first."""
    if not knows_jobs():
        return []
    cluster = _read(str(ctx.params.get("hosts") or "")).get("cluster")
    return _matching(recall_jobs(cluster), incomplete) if isinstance(cluster, str) else []


def first_host(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return hosts for the first argument of a verb; later arguments belong to another program."""
    return [] if ctx.params.get("words") else hosts(ctx, incomplete)


def rates(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the hosts, each followed by `=` for a rate."""
    return [f"{name}=" for name in hosts(ctx, incomplete)]


def launchers(incomplete: str) -> list[str]:
    """Return the launchers of jobs."""
    return _matching(LAUNCHER_NAMES, incomplete)


def flavors(incomplete: str) -> list[str]:
    """Return the flavors of the image."""
    from toolkit.image.build_plan import FLAVOURS

    return _matching(FLAVOURS, incomplete)


def cudas(incomplete: str) -> list[str]:
    """Return the CUDA versions of the GPU image."""
    return _matching(CUDA_NAMES, incomplete)


def extras(incomplete: str) -> list[str]:
    """Return the extras of the image for a list with commas: completes its last name."""
    from toolkit.image.build_plan import EXTRAS

    return _last(EXTRAS, incomplete)


def check_list(incomplete: str) -> list[str]:
    """Return the ids of checks for a list with commas: completes its last id."""
    from toolkit.checks.registry import CHECKS

    return _last((check.id for check in CHECKS), incomplete)


def one_of(*words: str) -> Completer:
    """Return a completer for these words."""

    def complete(incomplete: str) -> list[str]:
        return _matching(words, incomplete)

    return complete


def list_of(*words: str) -> Completer:
    """Return a completer for a list of these words with commas: completes its last word."""

    def complete(incomplete: str) -> list[str]:
        return _last(words, incomplete)

    return complete


def _matching(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _last(words: Iterable[str], incomplete: str) -> list[str]:
    """Return lists that complete the last word of a list with commas, and keep the words before it."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in _matching(words, last)]


def _names(path: str, key: str = "hosts") -> list[str]:
    """Return the names below a key of a hosts file."""
    found = _read(path).get(key)
    return [name for name in found if isinstance(name, str)] if isinstance(found, (dict, list)) else []


def _read(path: str) -> dict[Any, Any]:
    """Return the content of a hosts file; empty if it cannot be read (completion reports no errors)."""
    from toolkit.hostsfile.yaml import MAX_BYTES, read_yaml

    try:
        with Path(path).open("rb") as file:
            data = read_yaml(file.read(MAX_BYTES + 1)).data
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
