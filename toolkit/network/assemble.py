"""A network out of what is known: rates that a person gives, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from toolkit.errors import BadInput, Problem
from toolkit.network.cost import Wire, wire_efficiency
from toolkit.network.links import INSIDE, Member, Network
from toolkit.network.measured import Fit, Measured, fits
from toolkit.network.units import seconds_text

# Between two hosts on one switch, and what TCP and the libraries take for a message on ordinary cores.
LATENCY = 100e-6
OVERHEAD = 30e-6


@dataclass(frozen=True)
class Given:
    """What the person says about the network; None and absent where nothing is said.

    Args:
        rate: bits per second as printed on the port, of each host that is neither in ``rates`` nor measured.
        rates: the same for single hosts; they win over what was measured: "what if".
        mtu: bytes of an IP packet.
        latency: seconds one way.
        overhead: seconds per message besides.
        inside: bits per second between two ranks of one host.
    """

    rate: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    mtu: int = 1500
    latency: float | None = None
    overhead: float | None = None
    inside: float | None = None


def assemble(
    hosts: Sequence[tuple[str, int]], given: Given, measured: Measured | None = None
) -> tuple[Network, str]:
    """Return the network of these hosts, and one line that says where its figures are from.

    Args:
        hosts: names and numbers of ranks, in the order in which they join; none without ranks.

    Raises:
        BadInput: a rate for a host that is not there, or a host whose rate nobody knows.
    """
    names = [name for name, _ in hosts]
    unknown = [Problem(f"--rate {n}", f"there is no such host; there are: {', '.join(names[:20])}")
               for n in given.rates if n not in names]  # fmt: skip
    made = fits(measured.allreduce) if measured else {}
    known = measured_rates(measured) if measured else {}
    everything = made.get(0)
    efficiency = wire_efficiency(given.mtu)

    def member(name: str, slots: int, rates: Mapping[str, float]) -> Member | None:
        told = rates.get(name)
        if told is None and name not in known:
            told = given.rate
        if told is not None:
            return Member(name, slots, told * efficiency, told)
        # Without pairs, what the ring as a whole came to is the best that is known of each link.
        rate = known.get(name) or (everything.rate if everything and not known else None)
        return Member(name, slots, rate, rate) if rate else None

    found = [member(name, slots, given.rates) for name, slots in hosts]
    lacking = [
        Problem(name, f"nothing says how fast its link is: --rate 1gbit, or --rate {name}=1gbit")
        for name, one in zip(names, found, strict=True)
        if one is None
    ]
    if unknown or lacking:
        raise BadInput("command line", (*unknown, *lacking))
    network = Network(
        members=tuple(one for one in found if one),
        latency=LATENCY if given.latency is None else given.latency,
        overhead=OVERHEAD if given.overhead is None else given.overhead,
        inside=INSIDE if given.inside is None else Wire(given.inside, INSIDE.latency),
    )
    if measured is None:
        return network, _given_text(given, efficiency)
    changed = given.rates.keys() & set(measured.hosts)
    paths = {(p.source, p.target): p.rate for p in measured.pairs}
    before = tuple(
        one for name, slots in hosts if name in measured.hosts and (one := member(name, slots, {}))
    )
    reference = replace(network, members=before, paths=paths)
    network = replace(
        network, paths={way: rate for way, rate in paths.items() if not changed.intersection(way)}
    )
    if given.latency is None and measured.pairs:
        network = replace(network, latency=max(pair.latency for pair in measured.pairs))
    if everything is not None:
        network = _fitted(network, given, made, reference, bool(changed))
    return network, _measured_text(measured, everything, sorted(changed))


def _fitted(
    network: Network, given: Given, made: Mapping[int, Fit], reference: Network, changed: bool
) -> Network:
    """Return the network with what all-reduces came to in place of what its links promise."""
    everything = made[0]
    share = everything.rate / reference.neck().rate if len(reference.members) > 1 else 1.0
    if given.latency is not None or given.overhead is not None:
        return replace(network, share=share)
    network = replace(network, share=share, latency=everything.message, overhead=0.0)
    return network if changed else replace(network, fits={r: f for r, f in made.items() if r})


def measured_rates(measured: Measured) -> dict[str, float]:
    """Return each host's link as the measured pairs show it, in bits of payload per second.

    A way is as fast as the slower of its two ends, so that a host's own link is at least as fast as the
    fastest way out of it, and as the fastest way in; the slower of the two directions counts.
    """
    out: dict[str, float] = {}
    into: dict[str, float] = {}
    for pair in measured.pairs:
        out[pair.source] = max(out.get(pair.source, 0.0), pair.rate)
        into[pair.target] = max(into.get(pair.target, 0.0), pair.rate)
    sides = {name: [side[name] for side in (out, into) if name in side] for name in measured.hosts}
    return {name: min(found) for name, found in sides.items() if found}


def _given_text(given: Given, efficiency: float) -> str:
    latency = _said(given.latency, LATENCY, "one way")
    overhead = _said(given.overhead, OVERHEAD, "per message besides")
    share = f"{efficiency:.1%}".replace("%", " %")
    return f"links as given, {share} of it payload (TCP/IP, Ethernet, MTU {given.mtu}); {latency}, {overhead}"


def _said(value: float | None, otherwise: float, what: str) -> str:
    assumed = " (assumed)" if value is None else ""
    return f"{seconds_text(otherwise if value is None else value)} {what}{assumed}"


def _measured_text(measured: Measured, fit: Fit | None, changed: Sequence[str]) -> str:
    parts = []
    if fit is not None:
        worst = f"{fit.worst:.0%}".replace("%", " %")
        parts.append(
            f"a ring fitted to {fit.points} measured all-reduces (at most {worst} off), "
            f"{seconds_text(fit.message)} per message"
        )
    if measured.pairs:
        parts.append(f"links from {len(measured.pairs)} measured pairs")
    if changed:
        parts.append(f"but the given rate of {', '.join(changed)}")
    return "; ".join(parts)
