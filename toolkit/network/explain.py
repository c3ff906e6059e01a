"""The choice of the network as one value: the address of each host, reasons, and resulting settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.core.facts import Facts, RdmaPort
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import Choice, Evidence, choose, cidrs
from toolkit.network.fabric import choose_fabric
from toolkit.network.settings import all_settings
from toolkit.network.tuning import Tuning, parse_tunings
from toolkit.protocol.transport import openmpi_network


@dataclass(frozen=True)
class AddressExplanation:
    """One address of a host; ``rate`` in Mbit/s, 0 if it is not known."""

    address: str
    interface: str
    network: str
    rate: float
    taken: bool
    why: str


@dataclass(frozen=True)
class RouteExplanation:
    """The route to another host's data address: interface, and result of a connection."""

    to: str
    address: str
    interface: str
    answer: str


@dataclass(frozen=True)
class PortExplanation:
    """One RDMA port; ``rate`` in Gbit/s."""

    name: str
    layer: str
    state: str
    rate: float
    interfaces: tuple[str, ...]
    used: bool


@dataclass(frozen=True)
class SettingExplanation:
    """One variable of the ranks; ``file`` if the hosts file sets another value, which takes precedence."""

    name: str
    value: str
    why: str
    file: bool = False


@dataclass(frozen=True)
class HostExplanation:
    """One host; ``address`` is empty if no path was found or the host did not answer."""

    host: str
    address: str
    interface: str
    network: str
    why: str
    addresses: tuple[AddressExplanation, ...] = ()
    ways: tuple[RouteExplanation, ...] = ()
    rdma: tuple[PortExplanation, ...] = ()
    settings: tuple[SettingExplanation, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """The complete choice; ``launcher`` holds settings of Open MPI's launcher, ``tuned`` those of jobs."""

    cluster: str
    networks: tuple[str, ...]
    fabric: str
    fabric_why: str
    hosts: tuple[HostExplanation, ...]
    launcher: Mapping[str, str]
    tuned: tuple[Tuning, ...] = ()


def explain(
    inventory: Inventory,
    facts: Mapping[str, Facts],
    evidence: Evidence,
    away: Mapping[str, str],
) -> Explanation:
    """Return the choice with all reasons.

    Args:
        away: reasons why hosts did not answer.
    """
    choice = choose(inventory, facts, evidence)
    networks, fabric = cidrs(choice.paths), choose_fabric(inventory.network, facts, choice.paths)
    settings = all_settings(choice.paths, networks, fabric, facts)
    problems = {problem.host: problem.what for problem in choice.problems}
    hosts = []
    for host in inventory.hosts:
        name, path = host.name, choice.paths.get(host.name)
        own = facts.get(name)
        given = dict((*inventory.env, *host.env))
        hosts.append(
            HostExplanation(
                host=name,
                address=path.address if path else "",
                interface=path.interface if path else "",
                network=path.network if path else "",
                why=problems.get(name) or away.get(name) or (path.reason if path else ""),
                addresses=_addresses(name, choice),
                ways=_ways(own, choice, evidence) if own else (),
                rdma=tuple(_port(p, fabric.ports.get(name, ())) for p in own.rdma) if own else (),
                settings=tuple(
                    SettingExplanation(s.name, given.get(s.name, s.value), s.why, s.name in given)
                    for s in settings.get(name, ())
                ),
            )
        )
    kind = "none" if fabric.kind.startswith("tcp") else fabric.kind
    main = facts.get(inventory.main)
    tuned = parse_tunings(main.tuned) if main else ()
    launcher = openmpi_network(networks)
    return Explanation(inventory.cluster, networks, kind, fabric.reason, tuple(hosts), launcher, tuned)


def _addresses(host: str, choice: Choice) -> tuple[AddressExplanation, ...]:
    path = choice.paths.get(host)
    return tuple(
        AddressExplanation(
            c.address,
            c.interface,
            c.network,
            c.rate,
            bool(path and path.address == c.address),
            choice.verdicts[host, c.address],
        )
        for c in choice.candidates.get(host, ())
    )


def _ways(facts: Facts, choice: Choice, evidence: Evidence) -> tuple[RouteExplanation, ...]:
    others = [p for p in choice.paths.values() if p.host != facts.host]
    return tuple(
        RouteExplanation(
            p.host,
            p.address,
            evidence.egress(facts, p.address) or "",
            evidence.answer(facts.host, p.address) or "not tested",
        )
        for p in others
    )


def _port(port: RdmaPort, used: tuple[RdmaPort, ...]) -> PortExplanation:
    return PortExplanation(port.name, port.layer, port.state, port.rate, port.interfaces, port in used)
