"""Grouping of hosts that report the same value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def grouped(values: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return, from pairs of host and word, the hosts of each word in their order."""
    groups: dict[str, list[str]] = {}
    for host, word in values:
        groups.setdefault(word, []).append(host)
    return groups


def groups_text(groups: Mapping[str, Sequence[str]]) -> str:
    """Return the groups in one line, such as ``550.54 on gpu1, gpu2; 535.183 on gpu3``."""
    return "; ".join(f"{word} on {', '.join(hosts)}" for word, hosts in groups.items())
