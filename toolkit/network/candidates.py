"""Every address of every host as a candidate for ranks' traffic, and why some can be none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.core.facts import Facts, Interface, Link

# Interfaces that never lead to another host: made by engines, hypervisors and overlay networks.
_MADE_BY_ENGINES = ("docker", "veth", "virbr", "vnet", "cni", "flannel", "cali", "podman", "lxc")
# Where a host does not say what an interface is, its name must do: Docker calls its bridges so.
_BRIDGES = ("br-",)

# What is taken in the first place, and only then, whatever the speed.
_PREFERENCE = {"ethernet": 0, "infiniband": 0, "bridge": 0, "wireless": 1, "tunnel": 2}
# Mbit/s; virtual machines' cards do not say how fast they are.
ASSUMED_RATE = 1000.0


@dataclass(frozen=True)
class Candidate:
    """One address of a host.

    Args:
        rate: Mbit/s that its interface carries, 0 when that is not known.
        preference: the smaller the sooner; cables come before radio, radio before tunnels.
        twins: other hosts that have the same address, the first few of them.
        barred: why ranks cannot use it at all; empty when they can.
        conflict: whether it would be a good address but for its twins.
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

    @property
    def assumed_rate(self) -> float:
        """Its rate, or what stands for it where it is not known."""
        return self.rate or ASSUMED_RATE


_MOST_TWINS = 8


def candidates(facts: Mapping[str, Facts]) -> dict[str, tuple[Candidate, ...]]:
    """Return every address of the hosts that gave facts, in the hosts' own order."""
    owners: dict[str, list[str]] = defaultdict(list)
    for name, said in facts.items():
        for address in {interface.address for interface in said.interfaces}:
            owners[address].append(name)
    return {
        name: tuple(_candidate(said, i, owners[i.address]) for i in said.interfaces)
        for name, said in facts.items()
    }


def _candidate(facts: Facts, interface: Interface, owners: Sequence[str]) -> Candidate:
    link = facts.link(interface.name)
    # All hosts have a loopback, and most an engine's bridge: with a thousand of them a few names are enough.
    twins = tuple(owner for owner in owners[: _MOST_TWINS + 1] if owner != facts.host)[:_MOST_TWINS]
    more = len(owners) - 1 - len(twins)
    bars = _bars(facts, interface, link)
    conflict = bool(twins) and not bars
    if twins and not _is_loopback(interface, link):
        others = f" and {more} others" if more else ""
        bars.append(f"also on {', '.join(twins)}{others}: each keeps to itself")
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
    )


def link_rate(facts: Facts, interface: str) -> float:
    """Return what an interface carries in Mbit/s, 0 when that is not known."""
    link = facts.link(interface)
    if link is None:
        return 0.0
    if not link.speed and link.kind == "infiniband":
        # IP over InfiniBand says no speed in older kernels; the port below it does.
        below = max((p.rate * 1000 for p in facts.rdma if interface in p.interfaces), default=0.0)
        return min(rate for rate in (below, link.limit or below) if rate or not below)
    return link.rate


def _is_loopback(interface: Interface, link: Link | None) -> bool:
    return interface.address.startswith("127.") or bool(link and link.kind == "loopback")


def _bars(facts: Facts, interface: Interface, link: Link | None) -> list[str]:
    if _is_loopback(interface, link):
        return ["loopback: it never leaves the host"]
    found = []
    if interface.address.startswith("169.254."):
        found.append("link-local: nobody forwards it, and it changes")
    if _made_by_engine(interface.name, link):
        found.append("made by an engine or a hypervisor: it ends on this host")
    elif link and link.kind == "bridge" and not _has_card(facts, link):
        found.append("a bridge without a network card: it ends on this host")
    elif link and link.down:
        off = "switched off" if link.carrier is None else "without a carrier: no cable, or nobody at its end"
        found.append(f"the interface is {off}")
    return found


def _made_by_engine(name: str, link: Link | None) -> bool:
    return name.startswith(_MADE_BY_ENGINES if link else (*_MADE_BY_ENGINES, *_BRIDGES))


def _has_card(facts: Facts, link: Link) -> bool:
    """Tell whether a card of the machine is among the ports, or below a bond or VLAN that is."""
    below = [found for name in link.lower if (found := facts.link(name)) and found != link]
    return link.card or any(_has_card(facts, one) for one in below)
