"""Topology of a lab: subnet, hosts with their cards, addresses and volumes, and the labels of a lab."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toolkit.errors import BadInput, Problem
from toolkit.lab.spec import ENGINES, LabSpec

LABEL_LAB = "toolkit.lab"
LABEL_LAB_HOST = "toolkit.lab.host"
LABEL_LAB_SETTINGS = "toolkit.lab.settings"
LABEL_LAB_FOLDER = "toolkit.lab.folder"
LABEL_LAB_IMAGE = "toolkit.lab.image"

# A folder that all hosts of a lab share, like an NFS share.
SHARED = "/srv/shared"

# Linux names of network cards on the board, in slots and in virtual machines. The management cards have the
# same names, shifted: eth0 of one host and eth0 of the next belong to different networks.
_INTERFACES = ("eth0", "enp3s0", "ens5", "eno1")

# The network functions of a DGX Spark: two per socket, on two PCIe links.
_CABLES = ("enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1")
# Addresses .13 and .14 of a cable's /24, so that the engine's own address .1 is outside their /30.
_CABLE_PREFIX, _CABLE_FIRST = 30, 13


@dataclass(frozen=True)
class Means:
    """Rights with which a container can become a host on this machine.

    Args:
        privileged: the engine can start privileged containers; some machines do not have the capabilities.
        private_cgroups: hosts get a cgroup namespace of their own (cgroup v2 and privileged only: with
            cgroup v1 an engine inside cannot start containers from such a namespace).
    """

    privileged: bool
    private_cgroups: bool


@dataclass(frozen=True)
class Card:
    """A network interface of a practice host; ``network`` is the docker network's name.

    Args:
        prefix: bits of the network's number if the host is at a cable, 0 for that of the docker network.
    """

    network: str
    address: str
    interface: str
    rate: str
    prefix: int = 0


@dataclass(frozen=True)
class LabHost:
    """Addresses, cards and volumes of one practice host.

    Args:
        cards: the data card, then the card for ssh if it is a different one, then the cables.
        volumes: (volume name, folder in the host).
    """

    name: str
    container: str
    cards: tuple[Card, ...]
    engine: str
    volumes: tuple[tuple[str, str], ...]

    @property
    def ssh_card(self) -> Card:
        """The card by which ssh arrives."""
        return [card for card in self.cards if not card.prefix][-1]

    @property
    def address(self) -> str:
        """The address for ssh."""
        return self.ssh_card.address

    @property
    def interface(self) -> str:
        """The data card's name."""
        return self.cards[0].interface


def interface_name(index: int, interfaces: str) -> str:
    """Return the name of the data interface of host ``index`` (from 0)."""
    if interfaces == "same":
        return "eth0"
    return _INTERFACES[index] if index < len(_INTERFACES) else f"enp{index + 1}s0"


def management_name(index: int, interfaces: str) -> str:
    """Return the name of the management interface of host ``index`` (from 0)."""
    if interfaces == "same":
        return "eth1"
    if index < len(_INTERFACES):
        return _INTERFACES[(index + 1) % len(_INTERFACES)]
    return f"eno{index + 1}"


def lab_hosts(spec: LabSpec, *subnets: str) -> tuple[LabHost, ...]:
    """Return the hosts of a lab; one /24 in CIDR form for each of its networks."""
    networks = [ipaddress.IPv4Network(subnet) for subnet in subnets]
    return tuple(_host(spec, networks, index) for index in range(spec.hosts))


def _host(spec: LabSpec, subnets: list[ipaddress.IPv4Network], index: int) -> LabHost:
    interfaces = (interface_name(index, spec.interfaces), management_name(index, spec.interfaces))
    rates = (spec.rate, spec.management) if spec.management else (spec.rate,)
    cards = tuple(
        Card(name, str(subnet.network_address + 11 + index), interface, rate)
        for name, subnet, interface, rate in zip(spec.networks, subnets, interfaces, rates, strict=False)
    )
    cards += tuple(
        Card(name, str(subnet.network_address + _CABLE_FIRST + index), interface, "", _CABLE_PREFIX)
        for name, subnet, interface in zip(spec.cable_networks, subnets[len(rates) :], _CABLES, strict=False)
    )
    name = f"box{index + 1}"
    engine = spec.engines[index % len(spec.engines)]
    container = f"{spec.network}-{name}"
    # Per engine: an older engine must never open the data of a newer one.
    volumes = tuple(
        (f"{container}-{engine}-{path.rpartition('/')[2]}", path) for path in ENGINES[engine].data
    )
    volumes += ((f"{spec.network}-shared", SHARED),)
    return LabHost(name, container, cards, engine, volumes)


def host_settings(spec: LabSpec, host: LabHost) -> str:
    """Return, as JSON, all settings of a host's container that cannot be changed later."""
    subject = {
        "engine": host.engine,
        "interface": host.interface,
        "rate": spec.rate,
        "shared": SHARED,
        "user": spec.user,
    }
    subject |= {"management": spec.management} if spec.management else {}
    subject |= {"cables": str(spec.cables)} if spec.cables else {}
    return json.dumps(subject, sort_keys=True)


def settings_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return a host's settings from its container's labels; empty if the labels are missing or invalid."""
    try:
        settings = json.loads(labels.get(LABEL_LAB_SETTINGS, ""))
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in settings.items()} if isinstance(settings, dict) else {}


def free_subnet(taken: Iterable[str], barred: Iterable[str] = ()) -> str:
    """Return the first 10.77.N.0/24 that overlaps with none of ``taken`` (CIDR) and is not in ``barred``.

    Raises:
        BadInput: all 256 are taken.
    """
    used = [ipaddress.IPv4Network(cidr, strict=False) for cidr in taken]
    refused = set(barred)
    for third in range(256):
        subnet = ipaddress.IPv4Network(f"10.77.{third}.0/24")
        if str(subnet) not in refused and not any(subnet.overlaps(other) for other in used):
            return str(subnet)
    problem = Problem("subnet", "every /24 network of 10.77.0.0/16 overlaps with a Docker network or a route")
    raise BadInput("lab", (problem,), "docker network prune  # removes unused Docker networks")


def routed_networks(table: str) -> tuple[str, ...]:
    """Return the networks in the text of /proc/net/route, the default route left out.

    The kernel prints addresses in the machine's byte order (little-endian on amd64 and arm64).
    """
    networks = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or int(fields[7], 16) == 0:
            continue
        address, mask = (ipaddress.IPv4Address(bytes.fromhex(fields[i])[::-1]) for i in (1, 7))
        networks.append(str(ipaddress.IPv4Network(f"{address}/{mask}", strict=False)))
    return tuple(networks)
