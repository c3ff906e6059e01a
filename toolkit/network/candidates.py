"""Every address of every host as a candidate for training traffic, with reasons against unusable ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.core.facts import Facts, Interface, Link
from toolkit.core.printable import counted

# Interfaces without a route to other hosts: created by engines, hypervisors and overlay networks.
_MADE_BY_ENGINES = ("docker", "veth", "virbr", "vnet", "cni", "flannel", "cali", "podman", "lxc")
# If a host does not report the kind of an interface, its name decides: Docker names its bridges so.
_BRIDGES = ("br-",)

# The first criterion, before the speed.
_PREFERENCE = {"ethernet": 0, "infiniband": 0, "bridge": 0, "wireless": 1, "tunnel": 2}
# Mbit/s; network cards of virtual machines do not report their speed.
ASSUMED_RATE = 1000.0


@dataclass(frozen=True)
class Candidate:
    """One address of a host.

    Args:
        rate: Mbit/s of its interface, 0 if it is not known.
        preference: smaller is better; cables come before radio, radio before tunnels.
        twins: other hosts that have the same address, the first few of them.
        barred: the reason why ranks cannot use it; empty if they can.
        conflict: it is usable except for its twins.
        secondary: see ``Interface``.
    """

    host: str
    interface: str
    address: str
    network: str
    rate: float = 0.0
    preference: int = 0
    twins: tuple[str, ...] = ()
    barred: str = ""
    conflict: bool = False
    secondary: bool = False

    @property
    def assumed_rate(self) -> float:
        """The rate, or an assumed one if it is not known."""
        return self.rate or ASSUMED_RATE

    @property
    def link_local(self) -> bool:
        """True if no router forwards packets to it; see ``Shared.usable``."""
        return is_link_local(self.address)


_MOST_TWINS = 8


def is_link_local(address: str) -> bool:
    """Return True for an address in 169.254.0.0/16, which a host assigns itself (RFC 3927)."""
    return address.startswith("169.254.")


def candidates(facts: Mapping[str, Facts]) -> dict[str, tuple[Candidate, ...]]:
    """Return every address of the hosts that answered, in the hosts' own order."""
    owners: dict[str, list[str]] = defaultdict(list)
    for name, own_facts in facts.items():
        for address in {interface.address for interface in own_facts.interfaces}:
            owners[address].append(name)
    return {
        name: tuple(_candidate(own_facts, i, owners[i.address]) for i in own_facts.interfaces)
        for name, own_facts in facts.items()
    }


def _candidate(facts: Facts, interface: Interface, owners: Sequence[str]) -> Candidate:
    link = facts.link(interface.name)
    # All hosts have a loopback, and most an engine's bridge: with a thousand hosts a few names are enough.
    twins = tuple(owner for owner in owners[: _MOST_TWINS + 1] if owner != facts.host)[:_MOST_TWINS]
    more = len(owners) - 1 - len(twins)
    bars = _bars(facts, interface, link)
    # Controllers on the board (BMC) give the hosts they are in the same link-local address.
    conflict = bool(twins) and not bars and not is_link_local(interface.address)
    if twins and not _is_loopback(interface, link):
        others = f" and {counted(more, 'other host')}" if more else ""
        bars.append(f"the address also exists on {', '.join(twins)}{others}, so ranks cannot use the address")
    return Candidate(
        host=facts.host,
        interface=interface.name,
        address=interface.address,
        network=interface.network,
        rate=link_rate(facts, interface.name),
        preference=_PREFERENCE.get(link.kind, 0) if link else 0,
        twins=twins,
        barred="; ".join(bars),
        conflict=conflict,
        secondary=interface.secondary,
    )


def link_rate(facts: Facts, interface: str) -> float:
    """Return the rate of an interface in Mbit/s, 0 if it is not known."""
    link = facts.link(interface)
    if link is None:
        return 0.0
    if not link.speed and link.kind == "infiniband":
        # IP over InfiniBand has no speed in older kernels; the port below it has one.
        below = max((p.rate * 1000 for p in facts.rdma if interface in p.interfaces), default=0.0)
        return min(rate for rate in (below, link.limit or below) if rate or not below)
    return link.rate


def _is_loopback(interface: Interface, link: Link | None) -> bool:
    return interface.address.startswith("127.") or bool(link and link.kind == "loopback")


def _bars(facts: Facts, interface: Interface, link: Link | None) -> list[str]:
    if _is_loopback(interface, link):
        return ["the loopback interface reaches no other host"]
    found = []
    if is_link_local(interface.address):
        others = [i.address for i in facts.interfaces if i.name == interface.name]
        if lasting := next((address for address in others if not is_link_local(address)), ""):
            found.append(f"the address is link-local, and toolkit prefers {lasting} on the same interface")
    if _made_by_engine(interface.name, link):
        found.append("a container engine or hypervisor created the interface, so toolkit does not use it")
    elif link and link.kind == "bridge" and not _has_card(facts, link):
        found.append("the bridge has no network card, so it reaches no other host")
    elif link and link.down:
        found.append(
            "the interface is switched off"
            if link.carrier is None
            else "the interface has no carrier (no cable, or the other device is off)"
        )
    return found


def _made_by_engine(name: str, link: Link | None) -> bool:
    return name.startswith(_MADE_BY_ENGINES if link else (*_MADE_BY_ENGINES, *_BRIDGES))


def _has_card(facts: Facts, link: Link) -> bool:
    """Return True if a network card is among the ports, or below a bond or VLAN among them."""
    found = {link.name: link}
    names = list(link.lower)
    while names:
        name = names.pop()
        if name not in found and (below := facts.link(name)):
            found[name] = below
            names += below.lower
    return any(one.card for one in found.values())
