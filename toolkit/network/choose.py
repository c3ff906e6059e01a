"""The data address of every host: given in the file, remembered, or found among the addresses it has."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.core.facts import Facts
from toolkit.errors import NotReady
from toolkit.hostsfile.inventory import Host, Inventory
from toolkit.network.candidates import Candidate, candidates
from toolkit.network.evidence import Evidence
from toolkit.network.shared import Shared, shared_networks


@dataclass(frozen=True)
class DataPath:
    """Where a host's ranks talk to the others.

    Args:
        interface: empty when the host did not answer.
        network: in CIDR form; empty when the host did not answer.
        reason: for people.
        settled: by the file or by an earlier `up`, not chosen now.
    """

    host: str
    address: str
    interface: str
    network: str
    reason: str
    settled: bool = False


@dataclass(frozen=True)
class Choice:
    """The data path of every host, and what came of every other address.

    Args:
        paths: of the hosts for which one can be told, in the file's order.
        candidates: all addresses of the hosts that answered; ``barred`` is empty for those that can be used.
        verdicts: by (host, address) why it was taken, or why not.
        shared: networks that all hosts share, the best first.
        problems: hosts for which no path can be told.
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
    """Return the data path of each host that gave facts, or of which enough is known without; see ``choose``.

    Raises:
        NotReady: a host has no such address; names the host and what it has.
    """
    choice = choose(inventory, facts, evidence)
    if choice.problems:
        raise choice.problems[0]
    return choice.paths


def choose(inventory: Inventory, facts: Mapping[str, Facts], evidence: Evidence = _NOTHING) -> Choice:
    """Choose each host's data path, and say of every address why or why not.

    In this order: ``data_address`` of the file; the address that the host itself has had since an earlier
    `up`, so that neither a host which is away for a while nor a new one moves the others; an address in
    the network that such hosts are in, if all share it; an address in the best network that all share
    (``Shared.rank``: connections come about, cable before radio before tunnels, the fastest, the one
    that ssh comes in by); the address that ssh comes in by. Never an interface made by an engine, one
    that is down, nor an address that two hosts have in common (every host's docker0 is 172.17.0.1).

    A host that did not answer has an address here only if the file gives one: the others do not decide
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
    for name, said in facts.items():
        if name not in paths and name not in barred:
            try:
                paths[name] = _found(said, found[name], best, shared)
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


def open_question(inventory: Inventory, facts: Mapping[str, Facts]) -> tuple[Shared, ...]:
    """Return the networks between which connections should decide; none when there is nothing to decide."""
    choice = choose(inventory, facts)
    is_open = any(not path.settled for path in choice.paths.values())
    return choice.shared if is_open and len(choice.shared) > 1 else ()


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
    """The path that the file or an earlier `up` has settled."""
    if host.data_address:
        for candidate in own:
            if candidate.address == host.data_address:
                return _path(candidate, "data_address of the hosts file", True)
        what = f"data_address {host.data_address} is not one of its addresses: {_list(own)}"
        raise NotReady(what, "correct it", host.name)
    before = dict(facts.remembered.addresses).get(host.name)
    return next((_path(c, "as the cluster has had it", True) for c in own if c.address == before), None)


def _best(shared: tuple[Shared, ...], settled: list[str]) -> Shared | None:
    """The network for those whose path is open: where the others are already, else the best."""
    joined = next((one for one in shared if one.network in settled), None)
    return joined or next(iter(shared), None)


def _found(
    facts: Facts, own: tuple[Candidate, ...], best: Shared | None, shared: tuple[Shared, ...]
) -> DataPath:
    if best is not None:
        member = next(m for m in best.members if m.host == facts.host)
        return _path(member, _why(best, shared))
    for candidate in own:
        if not candidate.barred and candidate.address == facts.ssh_address:
            return _path(candidate, "where ssh comes in; no network is shared by all hosts")
    fix = f"set hosts/{facts.host}/data_address to the address that the other hosts reach it by"
    what = f"cannot tell which of its addresses the other hosts reach: {_list(own)}"
    raise NotReady(what, fix, facts.host)


def _why(best: Shared, shared: tuple[Shared, ...]) -> str:
    if len(shared) == 1:
        return "in the one network that all hosts share"
    if best != shared[0]:
        return "in a network that all hosts share, and where the cluster is already"
    if best.slowest > max(one.slowest for one in shared[1:]):
        return f"in the fastest network that all hosts share ({best.speed})"
    if best.by_ssh:
        return "in a network that all hosts share, and where ssh comes in"
    return "in the best network that all hosts share"


def _list(own: tuple[Candidate, ...]) -> str:
    return ", ".join(f"{c.address} ({c.interface})" for c in own) or "none"


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
        where = f"{', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no address" if missing else ""
        return f"{where or 'not all hosts have a usable address'} in {candidate.network}"
    if path and path.network == candidate.network:
        return f"{path.address} is in the same network"
    if path and path.settled:
        return f"{path.address} is settled: {path.reason}"
    best = next((s for s in shared if path and s.network == path.network), None)
    return one.behind(best) if best else "the host's path is settled otherwise"
