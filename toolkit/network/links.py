"""Who is in a network, how fast each one's link is, and which link holds a ring of them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from toolkit.network.cost import Wire
from toolkit.network.fit import Fit
from toolkit.network.units import rate_text

# Links that differ by less are called equal: no measurement is better than that.
_ALIKE = 0.9

# Between two ranks of one host, where nobody says more: about what a PCIe 3.0 x16 slot carries one way.
INSIDE = Wire(rate=64e9, latency=5e-6)


@dataclass(frozen=True)
class Member:
    """A host with its ranks.

    Args:
        rate: bits of payload per second of its link.
        told: the link's rate as people know it: what is printed on the port, or what was measured.
    """

    name: str
    slots: int
    rate: float
    told: float


@dataclass(frozen=True)
class Neck:
    """The narrowest part of a ring: bits of payload per second, and a sentence that names it."""

    rate: float
    text: str


@dataclass(frozen=True)
class Network:
    """Hosts in the order in which they join, all with ranks, and the ways between them.

    Args:
        latency: seconds one way.
        overhead: seconds per message besides.
        paths: measured bits of payload per second by (from, to); empty when nobody measured.
        fits: rings fitted to measured all-reduces, by number of ranks.
        share: which share of the narrowest link's payload measured all-reduces came to.
    """

    members: tuple[Member, ...]
    latency: float
    overhead: float
    inside: Wire = INSIDE
    paths: Mapping[tuple[str, str], float] = field(default_factory=dict)
    fits: Mapping[int, Fit] = field(default_factory=dict)
    share: float = 1.0

    def first(self, count: int) -> Network:
        """Return the network of the first ``count`` hosts."""
        return replace(self, members=self.members[:count])

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(member.slots for member in self.members)

    @property
    def link(self) -> Wire:
        """The way between hosts as a ring through all of them sees it."""
        if len(self.members) == 1:
            return self.inside  # nobody to reach; what it would be is of no consequence
        if fit := self.fits.get(sum(self.slots)):
            return fit.wire
        return Wire(self.neck().rate * self.share, self.latency, self.overhead)

    def link_of(self, member: Member) -> Wire:
        """The way between one host and the others."""
        return Wire(member.rate * self.share, self.latency, self.overhead)

    def _edge(self, one: Member, other: Member) -> float:
        return min(one.rate, other.rate, self.paths.get((one.name, other.name), one.rate))

    def neck(self) -> Neck:
        """Return the slowest step of the ring through the hosts in their order.

        Raises:
            ValueError: there is one host only, and so no link.
        """
        hosts = self.members
        if len(hosts) < 2:
            raise ValueError("one host has no link")
        edges = [(self._edge(a, b), a, b) for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True)]
        rate, one, other = min(edges, key=lambda edge: edge[0])
        slowest = min(hosts, key=lambda member: member.rate)
        if rate < _ALIKE * slowest.rate:
            return Neck(rate, f"the way from {one.name} to {other.name} carries {rate_text(rate)}")
        slow = [m.name for m in hosts if m.rate * _ALIKE <= slowest.rate]
        told = rate_text(slowest.told)
        if len(slow) == len(hosts):
            if len(hosts) == 2 and self.paths:
                # Between two hosts nobody can tell whose end it is.
                return Neck(rate, f"the way between {one.name} and {other.name} carries {told}")
            return Neck(rate, f"every host's link is {told}")
        if len(slow) == 1:
            return Neck(rate, f"{slow[0]}'s link is {told}")
        names = ", ".join(slow[:3]) + (f" and {len(slow) - 3} more" if len(slow) > 3 else "")
        return Neck(rate, f"the links of {names} are {told}")
