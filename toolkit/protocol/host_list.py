"""Many host names as one short text, ``gpu[1-64]``, the notation of Slurm and clush."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

# A shorter series is as readable in full.
_SERIES = 4
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)
_LIST = re.compile(r"([^\[\]]*)\[([0-9,-]+)\]")
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
# More hosts than that in one pattern is a mistake.
_MOST = 100_000


def host_list(names: Iterable[str], separator: str = ", ") -> str:
    """Return the names in their order, with a series of four or more numbered hosts in brackets.

    >>> host_list(["gpu1", "gpu2", "gpu3"])
    'gpu1, gpu2, gpu3'
    >>> host_list([f"node{n:02}" for n in (1, 2, 3, 4, 7)] + ["login"])
    'node[01-04,07], login'
    """
    parts: list[str] = []
    for prefix, group in _by_prefix(list(names)):
        if len(group) < _SERIES or not prefix:
            parts += group
        else:
            parts.append(f"{prefix}[{_spans([name[len(prefix) :] for name in group])}]")
    return separator.join(parts)


def slots_list(hosts: Iterable[tuple[str, int]]) -> str:
    """Return hosts in their order with their slots; neighbors with equal slots can be one list.

    >>> slots_list([("gpu1", 2), ("gpu2", 2), ("big", 8)])
    'gpu1 x 2, gpu2 x 2, big x 8'
    """
    groups = ((slots, [name for name, _ in group]) for slots, group in groupby(hosts, lambda host: host[1]))
    return ", ".join(f"{host_list(names, f' x {slots}, ')} x {slots}" for slots, names in groups)


def spans(numbers: Iterable[int]) -> str:
    """Return increasing numbers as ``1-7,9``."""
    return _spans([str(number) for number in numbers])


def hosts_of_list(text: str) -> tuple[str, ...]:
    """Return the hosts that a word names: those of a list in brackets, otherwise the word itself.

    >>> hosts_of_list("node[08-10,12]"), hosts_of_list("node7")
    (('node08', 'node09', 'node10', 'node12'), ('node7',))
    """
    found = _LIST.fullmatch(text)
    if not found:
        return (text,)
    numbers: list[str] = []
    for word in found[2].split(","):
        part = _PART.fullmatch(word)
        if not part:
            return (text,)
        first, last = part[1], part[2] or part[1]
        if int(last) - int(first) + len(numbers) > _MOST:
            return (text,)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return tuple(found[1] + number for number in numbers) or (text,)


def every_host(words: Iterable[str]) -> tuple[str, ...]:
    """Return the hosts that words name; a word can be a list in brackets."""
    return tuple(chain.from_iterable(map(hosts_of_list, words)))


def _by_prefix(names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Group neighbors that differ only in a number at their end, which increases."""
    group: list[str] = []
    last = ("", "")
    for name in names:
        found = _NUMBERED.fullmatch(name)
        own = (found[1], found[2]) if found else ("", "")
        same = own[0] and own[0] == last[0] and int(own[1]) > int(last[1]) and _same_form(last[1], own[1])
        if group and not same:
            yield last[0], group
            group = []
        group.append(name)
        last = own
    if group:
        yield last[0], group


def _same_form(one: str, other: str) -> bool:
    """Return whether two numbers have the same number of digits, or no leading zeros."""
    return len(one) == len(other) or not (one.startswith("0") or other.startswith("0"))


def _spans(numbers: Sequence[str]) -> str:
    found: list[list[str]] = []
    for number in numbers:
        if found and int(number) == int(found[-1][1]) + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(a if a == b else f"{a}-{b}" for a, b in found)
