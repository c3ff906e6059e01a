"""The data address of every host: given in the file, or found among the addresses that the host has."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.core.facts import Facts, Interface
from toolkit.errors import NotReady
from toolkit.spec.inventory import Inventory

# Interfaces that never lead to another host: made by engines, hypervisors and overlay networks.
_LOCAL_ONLY = ("docker", "br-", "veth", "virbr", "vnet", "cni", "flannel", "cali", "podman", "lxc")


@dataclass(frozen=True)
class DataPath:
    """Where a host's ranks talk to the others; ``network`` in CIDR form, ``reason`` for people."""

    host: str
    address: str
    interface: str
    network: str
    reason: str


def choose_paths(inventory: Inventory, facts: Mapping[str, Facts]) -> dict[str, DataPath]:
    """Return the data path of each host that gave facts, or of which enough is known without.

    In this order: ``data_address`` of the file; the address that the cluster has had since an earlier
    `up`, so that a host which is away for a while does not change the others' choice; an address in a
    network that all hosts share, the one that we came in by first; the address that we came in by.
    Never an interface made by an engine, nor an address that two hosts have in common (every host's
    docker0 is 172.17.0.1).

    Raises:
        NotReady: a host has no such address; names the host and what it has.
    """
    counts = Counter(address for f in facts.values() for address in {i.address for i in f.interfaces})
    usable = {
        name: tuple(i for i in f.interfaces if _leads_out(i) and counts[i.address] == 1)
        for name, f in facts.items()
    }
    shared = _shared_networks(list(usable.values()))
    remembered = {name: a for f in facts.values() for name, a in f.remembered.addresses}
    paths = {}
    for host in inventory.hosts:
        if host.name in facts:
            paths[host.name] = _choose(
                host.name, host.data_address, facts[host.name], usable[host.name], shared
            )
        elif given := remembered.get(host.name) or host.data_address or _literal(host.address):
            paths[host.name] = DataPath(host.name, given, "", f"{given}/32", "the host did not answer")
    return paths


def cidrs(paths: Mapping[str, DataPath]) -> tuple[str, ...]:
    """Return the networks of these paths, sorted: equal on all hosts even where interface names differ."""
    return tuple(sorted({p.network for p in paths.values()}))


def _leads_out(interface: Interface) -> bool:
    address = ipaddress.ip_address(interface.address)
    return not (address.is_loopback or address.is_link_local or interface.name.startswith(_LOCAL_ONLY))


def _shared_networks(per_host: list[tuple[Interface, ...]]) -> frozenset[str]:
    sets = [frozenset(i.network for i in interfaces) for interfaces in per_host]
    return frozenset.intersection(*sets) if sets else frozenset()


def _literal(address: str) -> str:
    try:
        return str(ipaddress.IPv4Address(address))
    except ValueError:
        return ""


def _choose(
    name: str, given: str, facts: Facts, usable: tuple[Interface, ...], shared: frozenset[str]
) -> DataPath:
    def path(interface: Interface, reason: str) -> DataPath:
        return DataPath(name, interface.address, interface.name, interface.network, reason)

    if given:
        for interface in facts.interfaces:
            if interface.address == given:
                return path(interface, "data_address of the hosts file")
        have = ", ".join(f"{i.address} ({i.name})" for i in facts.interfaces)
        raise NotReady(f"data_address {given} is not one of its addresses: {have}", "correct it", name)
    before = dict(facts.remembered.addresses).get(name)
    for interface in usable:
        if interface.address == before:
            return path(interface, "as the cluster has had it")
    for interface in usable:
        if interface.network in shared and interface.address == facts.ssh_address:
            return path(interface, "in a network that all hosts share, and where ssh comes in")
    for interface in usable:
        if interface.network in shared:
            return path(interface, "in a network that all hosts share")
    for interface in usable:
        if interface.address == facts.ssh_address:
            return path(interface, "where ssh comes in; no network is shared by all hosts")
    have = ", ".join(f"{i.address} ({i.name})" for i in facts.interfaces) or "none"
    fix = f"set hosts/{name}/data_address to the address that the other hosts reach it by"
    raise NotReady(f"cannot tell which of its addresses the other hosts reach: {have}", fix, name)
