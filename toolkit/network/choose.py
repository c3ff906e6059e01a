"""The data address of every host, and the networks that all hosts share, the best first.

An address is set in the hosts file, remembered from an earlier `up`, or chosen among those of the host.
``Evidence`` has the results of the hosts about connections to each other.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from toolkit.core.facts import Facts, rate_text
from toolkit.errors import NotReady
from toolkit.hostsfile.inventory import Host, Inventory
from toolkit.network.candidates import ASSUMED_RATE, Candidate, candidates, link_rate
from toolkit.protocol.host_list import host_list

# The result of one TCP connection. ``refused``: the target, or a firewall in its name, answered that no
# program listens; ``unreachable``: a router or a firewall answered; ``timeout``: no answer.
Answer = Literal["open", "refused", "timeout", "unreachable"]
# Both show that packets arrive and answers return.
ANSWERED: tuple[Answer, ...] = ("open", "refused")
_BEST_FIRST: tuple[Answer, ...] = (*ANSWERED, "unreachable", "timeout")


@dataclass(frozen=True)
class Evidence:
    """Results of connections between hosts; an absent entry was not tried.

    Args:
        tries: by (source host, address, port).
        routes: by (source host, address) the interface that its kernel uses, empty without a route.
    """

    tries: Mapping[tuple[str, str, int], Answer] = field(default_factory=dict)
    routes: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @cached_property
    def _ports(self) -> Mapping[tuple[str, str], dict[int, Answer]]:
        # Once for all pairs: a search in all attempts for each pair takes time in the fourth power of hosts.
        found: dict[tuple[str, str], dict[int, Answer]] = {}
        for (host, address, port), answer in self.tries.items():
            found.setdefault((host, address), {})[port] = answer
        return found

    def ports(self, host: str, address: str) -> Mapping[int, Answer]:
        """Return the result of each port of an address that a host tried."""
        return self._ports.get((host, address), {})

    def answer(self, host: str, address: str) -> Answer | None:
        """Return the best result of any port of an address, None if none was tried."""
        return min(self.ports(host, address).values(), key=_BEST_FIRST.index, default=None)

    def egress(self, facts: Facts, address: str) -> str | None:
        """Return the interface through which a host sends to an address; None if it is not known.

        The answer of the host's kernel takes precedence over its main routing table.
        """
        queried = self.routes.get((facts.host, address))
        if queried is None and facts.routes:
            return facts.leaves_by(address)
        return queried


@dataclass(frozen=True)
class DataPath:
    """The address and interface of a host's training traffic.

    Args:
        interface: empty if the host did not answer.
        network: in CIDR form; empty if the host did not answer.
        reason: a text that is printed.
        settled: fixed by the hosts file or an earlier `up`, not chosen now.
    """

    host: str
    address: str
    interface: str
    network: str
    reason: str
    settled: bool = False


@dataclass(frozen=True)
class Choice:
    """The data path of every host, and the reason for or against every other address.

    Args:
        paths: of the hosts with a known path, in the file's order.
        candidates: all addresses of the hosts that answered; ``barred`` is empty for usable ones.
        verdicts: by (host, address) the reason for or against it.
        shared: networks that all hosts share, the best first.
        problems: errors of hosts without a known path.
    """

    paths: dict[str, DataPath] = field(default_factory=dict)
    candidates: dict[str, tuple[Candidate, ...]] = field(default_factory=dict)
    verdicts: dict[tuple[str, str], str] = field(default_factory=dict)
    shared: tuple[Shared, ...] = ()
    problems: tuple[NotReady, ...] = ()


_NOTHING = Evidence()


def choose_paths(
    inventory: Inventory, facts: Mapping[str, Facts], evidence: Evidence = _NOTHING
) -> dict[str, DataPath]:
    """Return the data path of each host that answered, or whose path is known anyway; see ``choose``.

    Raises:
        NotReady: a host has no such address; names the host and its addresses.
    """
    choice = choose(inventory, facts, evidence)
    if choice.problems:
        raise choice.problems[0]
    return choice.paths


def choose(inventory: Inventory, facts: Mapping[str, Facts], evidence: Evidence = _NOTHING) -> Choice:
    """Choose each host's data path, with a reason for or against every address.

    In this order: ``data_address`` of the file; the host's address since an earlier `up`, so that neither
    an unreachable host nor a new one changes the address of the others; an address in the network of such
    hosts, if all share it; an address in the best network that all share (``Shared.rank``: successful
    connections, cable before radio before tunnels, the fastest, the one of the SSH address); the SSH
    address. Interfaces that an engine created, interfaces that are down, and addresses that two hosts have
    in common (every host's docker0 is 172.17.0.1) are excluded. A link-local network is used only if all
    hosts reached each other in it (``Shared.usable``).

    A host that did not answer has a path only if the file sets its address: the other hosts do not decide
    about it. See ``Layout.kept`` for the addresses that their files keep.
    """
    found = candidates(facts)
    shared = shared_networks(facts, found, evidence)
    paths: dict[str, DataPath] = {}
    problems, away = [], {}
    for host in inventory.hosts:
        if host.name in facts:
            try:
                fixed = _fixed(host, facts[host.name], found[host.name])
            except NotReady as problem:
                problems.append(problem)
            else:
                if fixed is not None:
                    paths[host.name] = fixed
        elif given := host.data_address or _literal(host.address):
            away[host.name] = given
    best = _best(shared, [path.network for path in paths.values() if path.interface])
    barred = {problem.host for problem in problems}
    for name, own_facts in facts.items():
        if name not in paths and name not in barred:
            try:
                paths[name] = _found(own_facts, found[name], best, shared)
            except NotReady as problem:
                problems.append(problem)
    paths |= {name: absent(name, address) for name, address in away.items()}
    paths = {name: paths[name] for name in inventory.names if name in paths}
    verdicts = {
        (c.host, c.address): _verdict(c, paths.get(name), shared, facts)
        for name, own in found.items()
        for c in own
    }
    return Choice(paths, found, verdicts, shared, tuple(problems))


def undecided_networks(inventory: Inventory, facts: Mapping[str, Facts]) -> tuple[Shared, ...]:
    """Return the networks between which test connections decide; empty if there is only one choice.

    A link-local network is among them only if it would be the best: connections to controllers on the board
    (BMC), which have such addresses, would take seconds until the timeout.
    """
    choice = choose(inventory, facts)
    lasting = tuple(one for one in choice.shared if one.usable)
    best = min((one.rank() for one in lasting), default=None)
    proven = [replace(one, proven=True) for one in choice.shared if not one.usable]
    local = {one.network for one in proven if one.usable and (best is None or one.rank() < best)}
    is_open = any(not path.settled for path in choice.paths.values()) or bool(choice.problems)
    if not is_open or len(lasting) + len(local) < (1 if local else 2):
        return ()
    return tuple(one for one in choice.shared if one.usable or one.network in local)


def cidrs(paths: Mapping[str, DataPath]) -> tuple[str, ...]:
    """Return the networks of the hosts that answered, sorted: equal on all hosts, unlike interface names."""
    return tuple(sorted({p.network for p in paths.values() if p.network}))


def absent(host: str, address: str) -> DataPath:
    """Return the data path of a host that did not answer."""
    return DataPath(host, address, "", "", "the host did not answer", True)


def _literal(address: str) -> str:
    try:
        return str(ipaddress.IPv4Address(address))
    except ValueError:
        return ""


def _path(one: Candidate, reason: str, settled: bool = False) -> DataPath:
    return DataPath(one.host, one.address, one.interface, one.network, reason, settled)


def _fixed(host: Host, facts: Facts, own: tuple[Candidate, ...]) -> DataPath | None:
    """Return the path that the file or an earlier `up` has fixed."""
    if host.data_address:
        for candidate in own:
            if candidate.address == host.data_address:
                return _path(candidate, "hosts.yaml sets data_address to this address", True)
        what = f"data_address {host.data_address} is not among the addresses of the host: {_list(own)}"
        raise NotReady(
            what, f"in hosts.yaml: set hosts/{host.name}/data_address to an address of the host", host.name
        )
    before = dict(facts.remembered.addresses).get(host.name)
    return next(
        (_path(c, "an earlier `toolkit up` selected the address", True) for c in own if c.address == before),
        None,
    )


def _best(shared: tuple[Shared, ...], settled: list[str]) -> Shared | None:
    """Return the network for hosts without a fixed path: that of the fixed hosts, otherwise the best."""
    joined = next((one for one in shared if one.network in settled), None)
    return joined or next((one for one in shared if one.usable), None)


def _found(
    facts: Facts, own: tuple[Candidate, ...], best: Shared | None, shared: tuple[Shared, ...]
) -> DataPath:
    if best is not None:
        member = next(m for m in best.members if m.host == facts.host)
        return _path(member, _why(best, shared))
    for candidate in own:
        if not candidate.barred and not candidate.link_local and candidate.address == facts.ssh_address:
            return _path(candidate, "the hosts share no usable network, so toolkit uses the SSH address")
    fix = f"in hosts.yaml: set hosts/{facts.host}/data_address to an address that the other hosts can reach"
    what = (
        "toolkit cannot select a data address, because the hosts share no usable network; "
        f"the host has {_list(own)}"
    )
    raise NotReady(what, fix, facts.host)


def _why(best: Shared, shared: tuple[Shared, ...]) -> str:
    others = [one for one in shared if one.usable and one != best]
    kind = "link-local network" if best.link_local else "network"
    if not others:
        return f"the address is in the only usable {kind} that all hosts share"
    if best.rank() > min(one.rank() for one in others):
        return f"the address is in a shared {kind} that other hosts already use"
    if best.slowest > max(one.slowest for one in others):
        return f"the address is in the fastest {kind} that all hosts share ({best.speed})"
    if best.by_ssh:
        return f"the address is in a shared {kind} that contains the SSH addresses"
    return f"the address is in the best {kind} that all hosts share"


def _list(own: tuple[Candidate, ...]) -> str:
    return ", ".join(f"{c.address} ({c.interface})" for c in own) or "no address"


def _verdict(
    candidate: Candidate, path: DataPath | None, shared: tuple[Shared, ...], facts: Mapping[str, Facts]
) -> str:
    if path and candidate.address == path.address:
        return path.reason
    if candidate.barred:
        return candidate.barred
    one = next((s for s in shared if s.network == candidate.network), None)
    if one is None:
        missing = [n for n, f in facts.items() if candidate.network not in {i.network for i in f.interfaces}]
        where = f"{host_list(missing)} {'has' if len(missing) == 1 else 'have'} no address" if missing else ""
        return f"{where or 'some hosts have no usable address'} in {candidate.network}"
    if path and path.network == candidate.network:
        return f"the data address {path.address} is in the same network"
    if path and path.settled:
        return f"the host uses {path.address}: {path.reason}"
    best = next((s for s in shared if path and s.network == path.network), None)
    if best:
        return one.behind(best)
    return (
        "toolkit selected no address, because data_address in hosts.yaml is not an address of the host"
        if one.usable
        else one.doubt
    )


@dataclass(frozen=True)
class Shared:
    """A network in which every host has a usable address.

    Args:
        members: one per host, in the order of the hosts.
        unreached: ordered pairs without a successful connection, as sentences.
        detours: ordered pairs whose kernel sends through another interface, as sentences.
        slowest, mean: Mbit/s over all ordered pairs, with the interface that the kernel uses.
        by_ssh: it contains the SSH address of every host.
        proven: every ordered pair has connected.
    """

    network: str
    members: tuple[Candidate, ...]
    unreached: tuple[str, ...] = ()
    detours: tuple[str, ...] = ()
    slowest: float = 0.0
    mean: float = 0.0
    by_ssh: bool = False
    proven: bool = False

    @property
    def link_local(self) -> bool:
        return any(member.link_local for member in self.members)

    @property
    def usable(self) -> bool:
        """False for a link-local network without a connection of every ordered pair.

        All link-local networks have the same number, so that equal numbers do not show a common cable.
        """
        return not self.link_local or (self.proven and len(self.members) > 1)

    @property
    def known(self) -> bool:
        return all(member.rate for member in self.members)

    @property
    def speed(self) -> str:
        """The speed as text."""
        return rate_text(self.slowest) if self.known else "unknown speed"

    def rank(self) -> tuple[object, ...]:
        """Return a sort key, the best network first; of equally fast ones a link-local network is last."""
        return (
            not self.usable,
            len(self.unreached),
            max((member.preference for member in self.members), default=0),
            -self.slowest,
            -self.mean,
            self.link_local,
            not self.by_ssh,
            self.network,
        )

    @property
    def doubt(self) -> str:
        """The reason against a network that is not usable."""
        faults = (
            "; ".join(self.unreached[:2])
            or "not every host has connected to every other host in this network"
        )
        return f"the network is link-local, and {faults}"

    def behind(self, best: Shared) -> str:
        """Return the reason why ``best`` was chosen instead of this network."""
        if self.rank() < best.rank():
            return f"all hosts share the network, but other hosts already use {best.network}"
        faults = "; ".join((*self.unreached[:2], *self.detours[:2]))
        if len(self.unreached) > len(best.unreached):
            return f"all hosts share the network, but {faults}"
        if max(m.preference for m in self.members) > max(m.preference for m in best.members):
            why = "toolkit prefers cables to wireless links, and both to tunnels"
            return f"toolkit uses {best.network}, because {why}"
        because = f"; in addition, {faults}" if faults else ""
        if (self.slowest, self.mean) < (best.slowest, best.mean):
            return (
                f"all hosts share the network, but it is slower than {best.network} ({self.speed} instead of "
                f"{best.speed}){because}"
            )
        if self.link_local and self.slowest <= best.slowest:
            return f"the network is link-local, and {best.network} is as fast{because}"
        if not self.usable:
            return self.doubt
        if best.by_ssh and not self.by_ssh:
            return (
                f"all hosts share the network, but {best.network} (the network of the SSH addresses) is as "
                f"fast{because}"
            )
        return f"all hosts share the network, but toolkit selected {best.network}, which is as fast{because}"


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
    """Return a sort key of addresses in one network; the one whose interface the kernel uses is first.

    Equal ones stay in the order of the kernel.
    """
    sends = facts.leaves_by(candidate.network.partition("/")[0])
    by_ssh = candidate.address == facts.ssh_address
    return (sends not in ("", candidate.interface), -candidate.assumed_rate, candidate.secondary, not by_ssh)


def _shared(
    network: str, members: tuple[Candidate, ...], facts: Mapping[str, Facts], evidence: Evidence
) -> Shared:
    unreached, detours, rates = [], [], [m.assumed_rate for m in members if len(members) == 1]
    proven = True
    for one in members:
        for other in members:
            if one is other:
                continue
            answer = evidence.answer(one.host, other.address)
            proven = proven and answer in ANSWERED
            if answer is not None and answer not in ANSWERED:
                how = "no answer" if answer == "timeout" else answer
                unreached.append(f"{one.host} does not reach {other.address} ({other.host}): {how}")
            by = evidence.egress(facts[one.host], other.address)
            rate = one.assumed_rate
            if by and by != one.interface:
                detours.append(f"{one.host} sends to {other.address} ({other.host}) through {by}")
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
        proven=proven,
    )
