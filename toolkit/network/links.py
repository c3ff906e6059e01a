"""Links between hosts: the rate of each one, its source, and the link that limits a ring.

A rate is given on the command line or measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from toolkit.core.printable import counted
from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.errors import path_text
from toolkit.network.cost import Fit, Wire, fits, wire_efficiency
from toolkit.network.measured import Measured
from toolkit.network.units import rate_text, seconds_text
from toolkit.protocol.host_list import host_list

# Links that differ by less are treated as equal: measurements are not more precise.
_ALIKE = 0.9

# The default between two ranks of one host: about half the rate of a PCIe 3.0 x16 slot in one direction.
INSIDE = Wire(rate=64e9, latency=5e-6)
# Between two hosts on one switch, and the time of TCP and the libraries per message on ordinary cores.
LATENCY = 100e-6
OVERHEAD = 30e-6


@dataclass(frozen=True)
class Member:
    """A host with its ranks.

    Args:
        rate: bits of payload per second of its link.
        shown_rate: the rate in messages: the nominal rate of the port, or the measured rate.
    """

    name: str
    slots: int
    rate: float
    shown_rate: float


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
        overhead: additional seconds per message.
        paths: measured bits of payload per second by (from, to); empty without measurements.
        fits: rings fitted to measured all-reduces, by numbers of hosts and ranks.
        share: the share of the narrowest link's payload rate that measured all-reduces reached.
    """

    members: tuple[Member, ...]
    latency: float
    overhead: float
    inside: Wire = INSIDE
    paths: Mapping[tuple[str, str], float] = field(default_factory=dict)
    fits: Mapping[tuple[int, int], Fit] = field(default_factory=dict)
    share: float = 1.0

    def first(self, count: int) -> Network:
        """Return the network of the first ``count`` hosts."""
        return replace(self, members=self.members[:count])

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(member.slots for member in self.members)

    @property
    def link(self) -> Wire:
        """The connection between hosts as seen by a ring through all of them."""
        if len(self.members) == 1:
            return self.inside  # there is no other host, so the value has no effect
        if fit := self.fits.get((len(self.members), sum(self.slots))):
            return fit.wire
        return Wire(self.neck().rate * self.share, self.latency, self.overhead)

    def link_of(self, member: Member) -> Wire:
        """Return the connection between one host and the others."""
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
            raise ValueError("a network of one host has no link between hosts")
        edges = [(self._edge(a, b), a, b) for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True)]
        rate, one, other = min(edges, key=lambda edge: edge[0])
        slowest = min(hosts, key=lambda member: member.rate)
        if rate < _ALIKE * slowest.rate:
            return Neck(rate, f"the link from {one.name} to {other.name} has a rate of {rate_text(rate)}")
        slow = [m.name for m in hosts if m.rate * _ALIKE <= slowest.rate]
        shown = rate_text(slowest.shown_rate)
        if len(slow) == len(hosts):
            if len(hosts) == 2 and self.paths:
                # With two hosts, the measurement does not show which end is slow.
                return Neck(rate, f"the link between {one.name} and {other.name} has a rate of {shown}")
            return Neck(rate, f"the link of every host has a rate of {shown}")
        if len(slow) == 1:
            return Neck(rate, f"the link of {slow[0]} has a rate of {shown}")
        return Neck(rate, f"the links of {host_list(slow)} have a rate of {shown}")


@dataclass(frozen=True)
class Given:
    """Properties of the network from the command line; None and absent if not given.

    Args:
        rate: nominal bits per second of each host that is neither in ``rates`` nor measured.
        rates: the same for single hosts; they take precedence over measurements, for "what if".
        mtu: bytes of an IP packet.
        latency: seconds one way.
        overhead: additional seconds per message.
        inside: bits per second between two ranks of one host.
    """

    rate: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    mtu: int = 1500
    latency: float | None = None
    overhead: float | None = None
    inside: float | None = None


@dataclass(frozen=True)
class _Known:
    """Sources of a host's rate; ``ring`` is the ring fitted to all measured all-reduces."""

    given: Given
    links: Mapping[str, float]
    ring: Fit | None

    def member(self, name: str, slots: int, rates: Mapping[str, float]) -> Member | None:
        """Return the host with its rate of ``rates``, its measured rate, or the rate for all hosts."""
        nominal = rates.get(name)
        if nominal is None and name not in self.links:
            nominal = self.given.rate
        if nominal is not None:
            return Member(name, slots, nominal * wire_efficiency(self.given.mtu), nominal)
        # Without pairs, the rate of the complete ring is the best estimate for each link.
        ring = self.ring.rate if self.ring and not self.links else None
        rate = self.links.get(name) or ring
        return Member(name, slots, rate, rate) if rate else None


def assemble(
    hosts: Sequence[tuple[str, int]], given: Given, measured: Measured | None = None
) -> tuple[Network, str]:
    """Return the network of these hosts, and one line with the sources of its figures.

    Args:
        hosts: names and numbers of ranks, in the order in which they join; each has a rank.

    Raises:
        BadInput: a rate for an unknown host, or a host without a known rate.
    """
    if measured and len(measured.hosts) < 2 <= len(hosts):
        measured = None  # all-reduces inside one host do not use the links between hosts
    made = fits(measured.allreduce) if measured else {}
    known = _Known(given, measured_rates(measured) if measured else {}, made.get(0))
    network = Network(
        members=_members(hosts, known),
        latency=LATENCY if given.latency is None else given.latency,
        overhead=OVERHEAD if given.overhead is None else given.overhead,
        inside=INSIDE if given.inside is None else Wire(given.inside, INSIDE.latency),
    )
    if measured is None:
        return network, _given_text(given)
    changed = given.rates.keys() & set(measured.hosts)
    ways = {(p.source, p.target): p.rate for p in measured.pairs}
    network = replace(network, paths={w: r for w, r in ways.items() if not changed.intersection(w)})
    if measured.pairs and given.latency is None:
        network = replace(network, latency=max(pair.latency for pair in measured.pairs))
    if known.ring is not None:
        before = [known.member(name, 1, {}) for name in measured.hosts]
        as_measured = replace(network, members=tuple(m for m in before if m), paths=ways)
        if len(as_measured.members) > 1:
            network = replace(network, share=known.ring.rate / as_measured.neck().rate)
        if given.latency is None and given.overhead is None:
            network = replace(network, latency=known.ring.message, overhead=0.0)
            names = [name for name, _ in hosts]
            same = all(a == b for a, b in zip(names, measured.hosts, strict=False))
            if same and not changed:
                rings = {(len(measured.hosts), ranks): fit for ranks, fit in made.items() if ranks}
                network = replace(network, fits=rings)
    return network, _measured_text(measured, known.ring, sorted(changed))


def _members(hosts: Sequence[tuple[str, int]], known: _Known) -> tuple[Member, ...]:
    names = [name for name, _ in hosts]
    unknown = f"this host is not one of the predicted hosts: {host_list(names)}"
    problems = [
        Problem(f"--rate {path_text((name,))}", unknown) for name in known.given.rates if name not in names
    ]
    found = [known.member(name, slots, known.given.rates) for name, slots in hosts]
    silent = [name for name, one in zip(names, found, strict=True) if one is None]
    if silent:
        what = f"the rate of the link is unknown; add --rate 1gbit or --rate {silent[0]}=1gbit"
        problems.append(Problem(host_list(silent), what))
    if problems:
        raise BadInput("command line", tuple(problems))
    return tuple(member for member in found if member)


def measured_rates(measured: Measured) -> dict[str, float]:
    """Return the rate of each host's link from the measured pairs, in bits of payload per second.

    A connection is as fast as the slower of its two ends, so that a host's own link is at least as fast as
    its fastest outgoing and incoming connections; the slower of the two directions is used.
    """
    out: dict[str, float] = {}
    into: dict[str, float] = {}
    for pair in measured.pairs:
        out[pair.source] = max(out.get(pair.source, 0.0), pair.rate)
        into[pair.target] = max(into.get(pair.target, 0.0), pair.rate)
    sides = {name: [side[name] for side in (out, into) if name in side] for name in measured.hosts}
    return {name: min(found) for name, found in sides.items() if found}


def _given_text(given: Given) -> str:
    latency = _or_assumed(given.latency, LATENCY, "one-way latency")
    overhead = _or_assumed(given.overhead, OVERHEAD, "overhead per message")
    share = f"{wire_efficiency(given.mtu):.1%}".replace("%", " %")
    return (
        f"rates from the command line, with {share} payload (TCP/IP, Ethernet, MTU {given.mtu}), "
        f"{latency}, {overhead}"
    )


def _or_assumed(value: float | None, otherwise: float, what: str) -> str:
    assumed = " (assumed)" if value is None else ""
    return f"{seconds_text(otherwise if value is None else value)} {what}{assumed}"


def _measured_text(measured: Measured, fit: Fit | None, changed: Sequence[str]) -> str:
    parts = []
    if fit is not None:
        worst = f"{fit.worst:.0%}".replace("%", " %")
        parts.append(
            f"a ring model fitted to {counted(fit.points, 'measured all-reduce')} (error at most {worst}), "
            f"{seconds_text(fit.message)} overhead per message"
        )
    if measured.pairs:
        parts.append(
            f"measured rates of {counted(len(measured.pairs), 'link')} between hosts "
            "(each direction is one link)"
        )
    if changed:
        parts.append(f"rate from the command line for {', '.join(changed)}")
    return "; ".join(parts)
