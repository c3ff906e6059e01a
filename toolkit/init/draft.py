"""A hosts.yaml about to be written: what somebody knows of the hosts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.core.container import Mount
from toolkit.core.engines import DOCKER
from toolkit.hostsfile import fields

MOST_SLOTS = 1024

_WORD = re.compile(r"(?:([^=@:]*)=)?(?:([^@]*)@)?([^@:]*)(?::([^:]*))?")


@dataclass(frozen=True)
class DraftHost:
    """A host as far as it is known.

    Args:
        address: where ssh connects to.
        name: empty means: made from the address by ``named``.
        user, port, slots, data_address: empty, 0 or None means: not written, so that the file's defaults
            hold.
        notes: what the file says about the host in comments, a line each.
    """

    address: str
    name: str = ""
    user: str = ""
    port: int = 0
    slots: int | None = None
    data_address: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Draft:
    """What a hosts.yaml shall say; without hosts it gets two that stand for the reader's own.

    Args:
        left_out: hosts that were meant and are not in it, as (host, why), for a comment.
    """

    cluster: str = "demo"
    image: str = "toolkit:gpu"
    hosts: tuple[DraftHost, ...] = ()
    engine: str = DOCKER
    mounts: tuple[Mount, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def read_host(word: str) -> DraftHost:
    """Return the host that ``[NAME=][USER@]ADDRESS[:SLOTS]`` describes.

    Raises:
        ValueError: it is not written so; says what is wrong.
    """
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError("should be ADDRESS, with NAME= and USER@ in front of it and :SLOTS behind it")
    name, user, address, slots = match.groups()
    return DraftHost(
        fields.address(address),
        fields.host_name(name) if name is not None else "",
        fields.user(user) if user is not None else "",
        slots=read_slots(slots, "; a port is written in the file") if slots is not None else None,
    )


def read_slots(text: str, hint: str = "") -> int:
    """Return a number of slots.

    Raises:
        ValueError: it is none.
    """
    if not (re.fullmatch("[0-9]{1,9}", text) and int(text) <= MOST_SLOTS):
        raise ValueError(f"slots should be 0 to {MOST_SLOTS}, found {text!r}{hint}")
    return int(text)


def faults_between(hosts: Sequence[DraftHost]) -> Iterator[tuple[int, str]]:
    """Yield what is wrong between hosts, with the index of the host at fault."""
    names: dict[str, int] = {}
    places: dict[tuple[str, int], int] = {}
    for index, host in enumerate(hosts):
        if places.setdefault((host.address.lower(), host.port or 22), index) != index:
            yield index, f"{host.address} is named twice; name a machine once"
        if host.name and names.setdefault(host.name, index) != index:
            yield index, f"another host is called {host.name}; give each its own name"
        if host.slots == 0 and index > 0:
            yield index, "only the first host, which is main, may have 0 slots"
    if len(hosts) == 1 and hosts[0].slots == 0:
        yield 0, "no host has a slot"


def named(hosts: Sequence[DraftHost]) -> tuple[DraftHost, ...]:
    """Return the hosts, each with a name: its own, one made of its address, or ``host1`` and so on."""
    names = {index: host.name for index, host in enumerate(hosts) if host.name}
    # Addresses that hold a name choose first: what is made up for the others must not take theirs.
    for tries in (_short, _whole, _numbered):
        for index, host in enumerate(hosts):
            taken = set(names.values())
            name = names.get(index) or next((n for n in tries(host.address, index) if n not in taken), "")
            if name:
                names[index] = name
    return tuple(replace(host, name=names[index]) for index, host in enumerate(hosts))


def _short(address: str, index: int) -> Iterator[str]:
    return _label(address.partition(".")[0], address)


def _whole(address: str, index: int) -> Iterator[str]:
    return _label(address, address)


def _numbered(address: str, index: int) -> Iterator[str]:
    return (f"host{number}" for number in itertools.count(index + 1))


def _label(text: str, address: str) -> Iterator[str]:
    """The text as a host name; nothing when it cannot be one, or the address is made of numbers."""
    name = re.sub("[^a-z0-9]+", "-", text.lower())[:60].strip("-")
    try:
        if not re.fullmatch("[0-9.]+", address):
            yield fields.host_name(name)
    except ValueError:
        return
