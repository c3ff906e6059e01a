"""Answers to the questions of ``toolkit init``: text in, value out."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from toolkit.hostsfile import fields
from toolkit.hostsfile.errors import shown
from toolkit.init.draft import DraftHost, faults_between, read_host

ALL, NONE = "all", "none"


def read_hosts(text: str, listed: Sequence[str]) -> tuple[DraftHost, ...]:
    """Return the hosts that an answer picks: ``all``, numbers and ranges of the list, its names, addresses.

    Args:
        listed: the aliases as they are numbered, from 1 on.

    Raises:
        ValueError: with everything that is wrong with the answer.
    """
    hosts: list[DraftHost] = []
    faults: list[str] = []
    for word in _words(text):
        try:
            if word == ALL and listed:
                hosts += [DraftHost(name) for name in listed]
            elif word in listed:
                hosts.append(DraftHost(word))
            elif numbers := _numbers(word, len(listed)):
                hosts += [DraftHost(listed[number - 1]) for number in numbers]
            else:
                hosts.append(read_host(word))
        except ValueError as error:
            faults.append(f"{shown(word)}: {error}")
    hosts = list(dict.fromkeys(hosts))
    faults += [f"{shown(hosts[index].address)}: {message}" for index, message in faults_between(hosts)]
    if faults:
        raise ValueError("; ".join(faults))
    if not hosts:
        raise ValueError("select at least one host")
    return tuple(hosts)


def read_some(text: str, listed: Sequence[str]) -> tuple[str, ...]:
    """Return those of a list that an answer picks: ``all``, ``none``, numbers and ranges, or their names.

    Raises:
        ValueError: with everything that is wrong with the answer.
    """
    words = _words(text)
    if words == [NONE]:
        return ()
    found: list[str] = []
    faults: list[str] = []
    for word in words:
        try:
            if word == ALL:
                found += listed
            elif word in listed:
                found.append(word)
            elif numbers := _numbers(word, len(listed)):
                found += [listed[number - 1] for number in numbers]
            else:
                faults.append(f"{shown(word)} is not in the list")
        except ValueError as error:
            faults.append(f"{shown(word)}: {error}")
    if faults:
        raise ValueError("; ".join(faults))
    return tuple(one for one in listed if one in found)


def read_choice(text: str, choices: Sequence[str]) -> str:
    """Return the one of ``choices`` that the answer is, or begins.

    Raises:
        ValueError: it is none of them.
    """
    found = [choice for choice in choices if text and choice.startswith(text.lower())]
    if len(found) != 1:
        raise ValueError(f"should be one of {', '.join(choices)}, found {shown(text)}")
    return found[0]


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _numbers(word: str, most: int) -> tuple[int, ...]:
    """Return the numbers that a word such as ``3`` or ``2-5`` means; none if it is no number."""
    match = re.fullmatch("([0-9]{1,6})(?:-([0-9]{1,6}))?", word)
    if match is None:
        return ()
    first, last = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= last <= most:
        raise ValueError(
            f"should be a number from 1 to {most}, or a range such as 1-{most}"
            if most
            else "a number requires a list of hosts, but toolkit printed no list"
        )
    return tuple(range(first, last + 1))


def cluster_name(file: str, folder: str) -> str:
    """Return a cluster's name: the name of its file, or of the folder if the file has a generic name.

    Args:
        file: name of the file without its extension.
    """
    for text in ("" if file in ("hosts", "-") else file, folder):
        name = re.sub("[^a-z0-9]+", "-", text.lower())[:32].strip("-")
        if name:
            return fields.cluster(name)
    return "demo"


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the cluster's name, or a similar name that is free."""
    tries = (name, *(f"{name[:28]}-{number}" for number in range(2, 100)))
    return next((each for each in tries if each not in taken), name)
