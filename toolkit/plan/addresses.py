"""A host's own addresses, listeners and routes, from what `ip` and the kernel's tables say."""

from __future__ import annotations

import ipaddress
import struct

from toolkit.core.facts import Interface
from toolkit.core.links import Route


def parse_interfaces(listed: str, routes: str, trie: str) -> tuple[Interface, ...]:
    """Return the host's IPv4 addresses, each with its interface.

    Args:
        listed: what ``ip -o -4 addr show`` printed; empty where there is no iproute2, then the others tell.
        routes, trie: /proc/net/route and /proc/net/fib_trie.
    """
    found = []
    for line in listed.splitlines():
        words = line.split()
        if len(words) > 3 and words[2] == "inet":
            address, _, prefix = words[3].partition("/")
            found.append(Interface(words[1], address, int(prefix or 32)))
    return tuple(found) or _from_proc(routes, trie)


def _from_proc(routes: str, trie: str) -> tuple[Interface, ...]:
    """Addresses and interfaces without iproute2, from /proc/net/route and /proc/net/fib_trie.

    A host's own addresses are the trie's ``/32 host LOCAL`` leaves; each belongs to the interface
    whose directly connected network (a route without a gateway) contains it.
    """
    networks = []
    for line in routes.splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and int(words[2], 16) == 0 and words[7] != "00000000":
            prefix = bin(int(words[7], 16)).count("1")
            networks.append((words[0], ipaddress.ip_network(f"{_v4(words[1])}/{prefix}", False)))
    own: list[str] = []
    last = ""
    for line in trie.splitlines():
        words = line.replace("|--", "").split()
        if line.strip().startswith("|--") and words:
            last = words[0]
        elif "/32 host LOCAL" in line and last not in own:
            own.append(last)
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
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and words[3] == "0A":
            address, _, port = words[1].partition(":")
            if len(address) == 8:
                found.add((_v4(address), int(port, 16)))
            else:
                found.add((_v6(address), int(port, 16)))
    return tuple(sorted(found))


def parse_routes(text: str) -> tuple[Route, ...]:
    """Return the routes in /proc/net/route that lead somewhere."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        # RTF_UP alone counts; RTF_REJECT (0x200) leads nowhere.
        if len(words) > 7 and int(words[3], 16) & 0x201 == 1:
            target, gateway, mask = (_v4(words[i]) for i in (1, 2, 7))
            network = str(ipaddress.ip_network(f"{target}/{mask}", strict=False))
            found.append(Route(words[0], network, "" if gateway == "0.0.0.0" else gateway, int(words[6])))
    return tuple(found)


def _v4(word: str) -> str:
    # The tables have each 32-bit word in the machine's (little-endian) order.
    return str(ipaddress.IPv4Address(struct.pack("<L", int(word, 16))))


def _v6(word: str) -> str:
    # Four words, each as in _v4.
    raw = b"".join(struct.pack("<L", int(word[i : i + 8], 16)) for i in range(0, 32, 8))
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)
