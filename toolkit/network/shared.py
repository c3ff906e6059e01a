"""Networks that all hosts have an address in, the best first, and what speaks against each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.core.facts import Facts, leaves_by, rate_text
from toolkit.network.candidates import ASSUMED_RATE, Candidate, link_rate
from toolkit.network.evidence import ANSWERED, Evidence


@dataclass(frozen=True)
class Shared:
    """A network in which every host has a usable address.

    Args:
        members: one per host, in the order of the hosts.
        unreached: ordered pairs between which no connection came about, as sentences.
        detours: ordered pairs whose kernel sends by another interface, as sentences.
        slowest, mean: Mbit/s over all ordered pairs, with the interface that is really sent by.
        by_ssh: whether ssh comes in here on every host.
    """

    network: str
    members: tuple[Candidate, ...]
    unreached: tuple[str, ...] = ()
    detours: tuple[str, ...] = ()
    slowest: float = 0.0
    mean: float = 0.0
    by_ssh: bool = False

    @property
    def known(self) -> bool:
        return all(member.rate for member in self.members)

    @property
    def speed(self) -> str:
        """Its speed for people."""
        return rate_text(self.slowest) if self.known else "unknown speed"

    def rank(self) -> tuple[object, ...]:
        """Sort key, the best network first."""
        return (
            len(self.unreached),
            max((member.preference for member in self.members), default=0),
            -self.slowest,
            -self.mean,
            not self.by_ssh,
            self.network,
        )

    def behind(self, best: Shared) -> str:
        """Say why ``best`` was taken and not this one."""
        if self.rank() < best.rank():
            return f"shared by all, but the cluster is in {best.network} already"
        faults = "; ".join((*self.unreached[:2], *self.detours[:2]))
        if len(self.unreached) > len(best.unreached):
            return f"shared by all, but {faults}"
        if max(m.preference for m in self.members) > max(m.preference for m in best.members):
            return f"shared by all, but it is radio or a tunnel and {best.network} is a cable"
        because = f"; besides, {faults}" if faults else ""
        if (self.slowest, self.mean) < (best.slowest, best.mean):
            than = f"{best.network} ({self.speed} against {best.speed})"
            return f"shared by all, but slower than {than}{because}"
        if best.by_ssh and not self.by_ssh:
            return f"shared by all, but no faster than {best.network}, where ssh comes in{because}"
        return f"shared by all, but no better than {best.network}{because}"


def shared_networks(
    facts: Mapping[str, Facts], candidates: Mapping[str, Sequence[Candidate]], evidence: Evidence
) -> tuple[Shared, ...]:
    """Return the networks that all hosts share, the best first."""
    usable = {name: [c for c in own if not c.barred] for name, own in candidates.items()}
    sets = [{c.network for c in own} for own in usable.values()]
    common = set.intersection(*sets) if sets else set()
    found = []
    for network in common:
        members = tuple(
            min((c for c in usable[name] if c.network == network), key=lambda c: _order(facts[c.host], c))
            for name in usable
        )
        found.append(_shared(network, members, facts, evidence))
    return tuple(sorted(found, key=Shared.rank))


def _order(facts: Facts, candidate: Candidate) -> tuple[object, ...]:
    """Of several addresses in one network, the one by whose interface the kernel sends there."""
    sends = leaves_by(facts.routes, candidate.network.partition("/")[0])
    by_ssh = candidate.address == facts.ssh_address
    return (sends not in ("", candidate.interface), -candidate.assumed_rate, not by_ssh, candidate.address)


def _shared(
    network: str, members: tuple[Candidate, ...], facts: Mapping[str, Facts], evidence: Evidence
) -> Shared:
    unreached, detours, rates = [], [], [m.assumed_rate for m in members if len(members) == 1]
    for one in members:
        for other in members:
            if one is other:
                continue
            answer = evidence.answer(one.host, other.address)
            if answer is not None and answer not in ANSWERED:
                how = "no answer" if answer == "timeout" else answer
                unreached.append(f"{one.host} does not reach {other.address} ({other.host}): {how}")
            by = evidence.egress(facts[one.host], other.address)
            rate = one.assumed_rate
            if by and by != one.interface:
                detours.append(f"{one.host} sends to {other.address} ({other.host}) by {by}")
                rate = min(rate, link_rate(facts[one.host], by) or ASSUMED_RATE)
            rates.append(min(rate, other.assumed_rate))
    return Shared(
        network=network,
        members=members,
        unreached=tuple(unreached),
        detours=tuple(detours),
        slowest=min(rates),
        mean=sum(rates) / len(rates),
        by_ssh=all(m.address == facts[m.host].ssh_address for m in members),
    )
