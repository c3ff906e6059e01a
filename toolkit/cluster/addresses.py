"""A host's own addresses, listeners and routes, from what `ip` and the kernel's tables say."""

from __future__ import annotations

import ipaddress
import struct
from contextlib import suppress

from toolkit.core.facts import Interface, Route
from toolkit.protocol.frames import lines_of
from toolkit.protocol.numbers import hexadecimal, whole


def parse_interfaces(listed: str, routes: str, trie: str) -> tuple[Interface, ...]:
    """Return the host's IPv4 addresses, each with its interface.

    Args:
        listed: what ``ip -o -4 addr show`` printed; empty where there is no iproute2, then the others tell.
        routes, trie: /proc/net/route and /proc/net/fib_trie.
    """
    found = []
    for line in lines_of(listed):
        words = line.split()
        if len(words) > 3 and words[2] == "inet":
            with suppress(ValueError):
                own = ipaddress.IPv4Interface(words[3])
                found.append(Interface(words[1], str(own.ip), own.network.prefixlen))
    return tuple(found) or _from_proc(routes, trie)


def _from_proc(routes: str, trie: str) -> tuple[Interface, ...]:
    """Addresses and interfaces without iproute2, from /proc/net/route and /proc/net/fib_trie.

    A host's own addresses are the trie's ``/32 host LOCAL`` leaves; each belongs to the interface
    whose directly connected network (a route without a gateway) contains it.
    """
    networks = []
    for line in lines_of(routes)[1:]:
        words = line.split()
        if len(words) > 7 and hexadecimal(words[2]) == 0:
            target, mask = _v4(words[1]), hexadecimal(words[7])
            if target and mask:
                networks.append((words[0], ipaddress.IPv4Network(f"{target}/{bin(mask).count('1')}", False)))
    own: list[str] = []
    last = ""
    for line in lines_of(trie):
        words = line.replace("|--", "").split()
        if line.strip().startswith("|--") and words:
            last = words[0]
        elif "/32 host LOCAL" in line and last not in own:
            with suppress(ValueError):
                own.append(str(ipaddress.IPv4Address(last)))
    found = [Interface("lo", a, 8) for a in own if a.startswith("127.")]
    for address in own:
        for name, network in networks:
            if ipaddress.ip_address(address) in network:
                found.append(Interface(name, address, network.prefixlen))
                break
    return tuple(found)


def parse_listeners(text: str) -> tuple[tuple[str, int], ...]:
    """Return address and port of each listener in /proc/net/tcp and tcp6 (state 0A).

    The format is in Linux' Documentation/networking/proc_net_tcp.rst.
    """
    found = set()
    for line in lines_of(text):
        words = line.split()
        if len(words) > 3 and words[3] == "0A":
            word, _, port = words[1].partition(":")
            address, number = _v4(word) if len(word) == 8 else _v6(word), hexadecimal(port, 65535)
            if address and number is not None:
                found.add((address, number))
    return tuple(sorted(found))


def parse_routes(text: str) -> tuple[Route, ...]:
    """Return the routes in /proc/net/route that lead somewhere."""
    found = []
    for line in lines_of(text)[1:]:
        words = line.split()
        # RTF_UP alone counts; RTF_REJECT (0x200) leads nowhere.
        if len(words) > 7 and (hexadecimal(words[3]) or 0) & 0x201 == 1:
            target, gateway, mask = (_v4(words[i]) for i in (1, 2, 7))
            metric = whole(words[6], 2**32)
            if not (target and gateway and mask) or metric is None:
                continue
            with suppress(ValueError):  # a mask with holes
                network = str(ipaddress.IPv4Network(f"{target}/{mask}", strict=False))
                found.append(Route(words[0], network, "" if gateway == "0.0.0.0" else gateway, metric))
    return tuple(found)


def _v4(word: str) -> str:
    """The address of a word, empty for what is none."""
    # The tables have each 32-bit word in the machine's (little-endian) order.
    number = hexadecimal(word)
    return "" if number is None else str(ipaddress.IPv4Address(struct.pack("<L", number)))


def _v6(word: str) -> str:
    # Four words, each as in _v4.
    numbers = [hexadecimal(word[i : i + 8]) for i in range(0, 32, 8)]
    if len(word) != 32 or None in numbers:
        return ""
    address = ipaddress.IPv6Address(struct.pack("<4L", *numbers))
    return str(address.ipv4_mapped or address)
