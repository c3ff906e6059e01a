"""The fabric that ranks use besides TCP: InfiniBand, RoCE or EFA if every host has it, otherwise none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from toolkit.core.facts import Facts, RdmaPort
from toolkit.network.candidates import candidates, is_link_local
from toolkit.network.choose import DataPath, Evidence, shared_networks
from toolkit.protocol.host_list import host_list

# "tcp" if no host has another fabric; "tcp only" if some have one, so that libraries must be restricted.
FabricKind = Literal["tcp", "tcp only", "infiniband", "roce", "efa"]


@dataclass(frozen=True)
class Fabric:
    """The fabric that all hosts have in common.

    Args:
        reason: the reason for it, printed as a sentence.
        ports: by host the ports that ranks use; empty for tcp and efa.
        required: the file requires it, so a job fails instead of falling back to TCP.
        lacking: hosts without the required fabric.
        networks: a RoCE port with several addresses uses the one in the first of these networks.
        some_efa: a host has an EFA device.
    """

    kind: FabricKind
    reason: str
    ports: Mapping[str, tuple[RdmaPort, ...]] = field(default_factory=dict)
    required: bool = False
    lacking: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    some_efa: bool = False


_NO_PATHS: Mapping[str, DataPath] = {}


def choose_fabric(
    profile: str, facts: Mapping[str, Facts], paths: Mapping[str, DataPath] = _NO_PATHS
) -> Fabric:
    """Return the fabric for a profile of hosts.yaml (``network:``).

    Collective libraries choose on each host: if only some hosts use RDMA, ranks wait for each other
    forever. So either all hosts use it or none. Of each host's active ports the fastest are used; of RoCE
    ports those whose interface has an address in a network that all hosts share. If all hosts have both,
    the ports with the larger total rate are used: the others are usually for storage.

    NCCL connects the first port of a host to the first port of the next, and so on. If that would connect
    ports in different networks, only the ports in the network of the data addresses are used.

    Args:
        paths: the data paths; RoCE uses a link-local address only if it is a data address.
    """
    some_efa = any(map(_efa, facts.values()))
    if profile == "ethernet":
        return Fabric("tcp only", "hosts.yaml sets network: ethernet", some_efa=some_efa)
    if profile == "efa":
        lacking = tuple(name for name, f in facts.items() if not _efa(f))
        return Fabric("efa", "hosts.yaml sets network: efa", required=True, lacking=lacking)
    infiniband = {name: _fastest(f, "InfiniBand") for name, f in facts.items()}
    roce, networks = _roce(facts, paths)
    required = profile == "infiniband"
    reason = "hosts.yaml sets network: infiniband" if required else "every host has an active RDMA port"
    with_infiniband, with_roce = facts and all(infiniband.values()), facts and all(roce.values())
    if with_infiniband and with_roce and _total(roce) > _total(infiniband):
        with_infiniband = False
        reason = f"{reason}, and the RoCE ports are faster than the InfiniBand ports"
    if with_infiniband:
        return Fabric("infiniband", reason, infiniband, required)
    if with_roce:
        return Fabric("roce", f"{reason} (RoCE)", roce, required, networks=networks)
    lacking = tuple(name for name in facts if not infiniband[name] and not roce[name])
    if required:
        some = {name: infiniband[name] or roce[name] for name in facts}
        return Fabric("infiniband", reason, some, True, lacking or tuple(facts))
    if facts and all(_efa(f) for f in facts.values()):
        return Fabric("efa", "every host has an EFA device")
    if some_efa or any(port.active for f in facts.values() for port in f.rdma):
        if len(lacking) == len(facts) and some_efa:
            lacking = tuple(name for name, f in facts.items() if not _efa(f))
            who = f"{host_list(lacking)} {'has' if len(lacking) == 1 else 'have'} no EFA device"
        elif len(lacking) == len(facts):
            who = "no shared network has an active RoCE port on every host"
        elif lacking:
            who = f"{host_list(lacking)} {'has' if len(lacking) == 1 else 'have'} no usable RDMA port"
        else:
            who = "some hosts have only InfiniBand, and others only RoCE"
        reason = f"not all hosts can reach each other by RDMA ({who})"
        return Fabric("tcp only", reason, lacking=lacking, some_efa=some_efa)
    return Fabric("tcp", "no host has an active RDMA port")


def _total(ports: Mapping[str, Sequence[RdmaPort]]) -> float:
    """Return the rate of all ports of the slowest host, in Gbit/s."""
    return min(sum(port.rate for port in each) for each in ports.values())


def gid_index(ports: Sequence[RdmaPort], facts: Facts, networks: Sequence[str]) -> int | None:
    """Return the one GID index that is RoCE v2 over IPv4 on all these ports, None without one.

    Args:
        networks: ``Fabric.networks``; a port has the GID of its address in the first of these networks.
    """
    own = {(i.name, i.address): i.network for i in facts.interfaces}
    sets = [
        {
            gid.index
            for gid in port.gids
            if gid.kind == "RoCE v2" and own.get((gid.interface, gid.address)) == network
        }
        for port in ports
        for network in [_network(facts, port, networks)]
    ]
    common = set.intersection(*sets) if sets else set()
    return min(common, default=None)


def _efa(facts: Facts) -> bool:
    return any(port.driver == "efa" for port in facts.rdma)


def _fastest(facts: Facts, layer: str, interfaces: frozenset[str] | None = None) -> tuple[RdmaPort, ...]:
    active = [
        port
        for port in facts.rdma
        if port.active
        and port.layer == layer
        and port.driver != "efa"
        and (interfaces is None or interfaces.intersection(port.addressed(facts)))
    ]
    best = max((port.rate for port in active), default=0.0)
    return tuple(port for port in active if port.rate == best)


def _roce(
    facts: Mapping[str, Facts], paths: Mapping[str, DataPath]
) -> tuple[dict[str, tuple[RdmaPort, ...]], tuple[str, ...]]:
    """Return the RoCE ports of each host, and ``Fabric.networks``."""
    if not any(port.layer == "Ethernet" for f in facts.values() for port in f.rdma):
        return dict.fromkeys(facts, ()), ()
    every = shared_networks(facts, candidates(facts), Evidence())
    shared = [one.network for one in every if not one.link_local]
    found = {name: _fastest(f, "Ethernet", _own(f, shared, paths.get(name))) for name, f in facts.items()}
    distinct = {tuple(_nets(facts[name], own, shared)) for name, own in found.items()}
    if all(distinct) and len(distinct) > 1 and len(set().union(*distinct)) > 1:
        # First the networks of the fastest ports, then those in which every host has a slower port.
        common = [network for network in shared if all(network in order for order in distinct)] or [
            network
            for network in shared
            if all(_fastest(f, "Ethernet", _own(f, [network], None)) for f in facts.values())
        ]
        rails = {
            name: tuple(port for port in own if _network(facts[name], port, shared) in common)
            for name, own in found.items()
        }
        if (
            all(rails.values())
            and len({tuple(_nets(facts[n], own, shared)) for n, own in rails.items()}) == 1
        ):
            return rails, tuple(common)
        data = [network for network in common if any(p.network == network for p in paths.values())]
        one = (data or common)[:1]
        found = {name: _fastest(f, "Ethernet", _own(f, one, None)) for name, f in facts.items()}
        return found, tuple(one)
    local = dict.fromkeys(path.network for path in paths.values() if is_link_local(path.address))
    return found, (*local, *shared)


def _own(facts: Facts, networks: Sequence[str], path: DataPath | None) -> frozenset[str]:
    """Return the interfaces that have an address in one of the networks, or the one of a link-local path."""
    if path and is_link_local(path.address):
        return frozenset((path.interface,))
    return frozenset(i.name for i in facts.interfaces if i.network in networks)


def _nets(facts: Facts, ports: Sequence[RdmaPort], networks: Sequence[str]) -> list[str]:
    return [_network(facts, port, networks) for port in ports]


def _network(facts: Facts, port: RdmaPort, networks: Sequence[str]) -> str:
    addressed = port.addressed(facts)
    own = {i.network for i in facts.interfaces if i.name in addressed}
    return next((network for network in networks if network in own), "")
