"""A LabSpec decides everything about a practice cluster: names, addresses, engines, interfaces."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from toolkit.errors import BadInput, Problem
from toolkit.spec import fields

LABEL_LAB = "toolkit.lab"
LABEL_LAB_HOST = "toolkit.lab.host"
LABEL_LAB_SETTINGS = "toolkit.lab.settings"
LABEL_LAB_FOLDER = "toolkit.lab.folder"
LABEL_LAB_IMAGE = "toolkit.lab.image"

DOCKER_DATA = "/var/lib/docker"
CONTAINERD_DATA = "/var/lib/containerd"
# One folder that all hosts of a lab see, as hosts do that have a share on NFS.
SHARED = "/srv/shared"
MANAGEMENT = "-management"  # what the second network's name ends with
SSH_USERS = ("trainer", "root")
MOST_HOSTS = 200  # addresses .11 to .210 of the lab's /24

# Names as Linux gives them to cards on the board, in slots and in virtual machines. Those of the management
# cards are the same ones, shifted: what is eth0 on one host leads elsewhere on another.
_INTERFACES = ("eth0", "enp3s0", "ens5", "eno1")
_RATE = re.compile(r"([1-9][0-9]{0,5})(kbit|mbit|gbit)")
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


@dataclass(frozen=True)
class EngineKind:
    """A Docker engine that a practice host can carry: Debian release, its packages, its image store."""

    suite: str
    packages: tuple[str, ...]
    store: Literal["overlay2", "containerd"]

    @property
    def base(self) -> str:
        """The base image's reference."""
        return f"debian:{self.suite}-slim"

    @property
    def data(self) -> tuple[str, ...]:
        """The folders that outlive the host's container."""
        return (DOCKER_DATA, CONTAINERD_DATA) if self.store == "containerd" else (DOCKER_DATA,)


_NEW = ("docker.io", "docker-cli", "docker-compose")
ENGINES: dict[str, EngineKind] = {
    "old": EngineKind("bookworm", ("docker.io", "docker-compose"), "overlay2"),
    "new": EngineKind("trixie", _NEW, "overlay2"),
    "containerd": EngineKind("trixie", _NEW, "containerd"),
}


def lab_name(text: str) -> str:
    """Return a lab's name.

    Raises:
        ValueError: it cannot be one.
    """
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?", text):
        raise ValueError(f"should be up to 24 of a-z, 0-9 and inner '-', found {text!r}")
    return text


@dataclass(frozen=True)
class LabSpec:
    """What a person asks for.

    Args:
        hosts: how many.
        engines: keys of ENGINES, given to the hosts in turn.
        rate: what each host's link carries at most, such as ``100mbit``; empty for no limit.
        management: the rate of a second card by which ssh comes in, as machines have one; empty for none.
        interfaces: ``differ`` gives the hosts' data interfaces different names, ``same`` calls all eth0.
        user: whom the toolkit logs in as; ``trainer`` (uid 1000, in group docker) or ``root``.
        image: the cluster's image, written to hosts.yaml.
        folder: absolute path for hosts.yaml and the ssh files.
    """

    name: str
    folder: str
    hosts: int = 2
    engines: tuple[str, ...] = ("new",)
    rate: str = ""
    interfaces: str = "differ"
    user: str = "trainer"
    slots: int = 1
    image: str = "toolkit:cpu"
    management: str = ""

    def __post_init__(self) -> None:
        problems = tuple(self._problems())
        if problems:
            raise BadInput("lab", problems)

    def _problems(self) -> Iterable[Problem]:
        try:
            lab_name(self.name)
        except ValueError as error:
            yield Problem("name", str(error))
        try:
            fields.image(self.image)
        except ValueError as error:
            yield Problem("image", str(error))
        if not 1 <= self.hosts <= MOST_HOSTS:
            yield Problem("hosts", f"should be 1 to {MOST_HOSTS}, found {self.hosts}")
        if not self.engines:
            yield Problem("engine", f"should be one or more of {', '.join(ENGINES)}")
        for engine in self.engines:
            if engine not in ENGINES:
                yield Problem("engine", f"should be one or more of {', '.join(ENGINES)}, found {engine!r}")
        for field, rate in (("rate", self.rate), ("management", self.management)):
            if rate and not _RATE.fullmatch(rate):
                yield Problem(field, f"should be a number with kbit, mbit or gbit, found {rate!r}")
        if self.interfaces not in ("same", "differ"):
            yield Problem("interfaces", f"should be same or differ, found {self.interfaces!r}")
        if self.user not in SSH_USERS:
            yield Problem("user", f"should be one of {', '.join(SSH_USERS)}, found {self.user!r}")
        if not 1 <= self.slots <= 64:
            yield Problem("slots", f"should be 1 to 64, found {self.slots}")

    @property
    def network(self) -> str:
        """The name of the lab's docker network."""
        return f"toolkit-lab-{self.name}"

    @property
    def networks(self) -> tuple[str, ...]:
        """The docker networks of the lab: that of the data cards, then that of the management cards."""
        return (self.network, self.network + MANAGEMENT) if self.management else (self.network,)


@dataclass(frozen=True)
class Means:
    """How a container may become a host on this machine.

    Args:
        privileged: the engine can start privileged containers; a machine may lack the capabilities for it.
        private_cgroups: hosts get a cgroup namespace of their own (cgroup v2 and privileged only: with
            cgroup v1 an engine inside cannot start containers from such a namespace).
    """

    privileged: bool
    private_cgroups: bool


@dataclass(frozen=True)
class Card:
    """A network card of a practice host; ``network`` is the docker network's name."""

    network: str
    address: str
    interface: str
    rate: str


@dataclass(frozen=True)
class LabHost:
    """One practice host.

    Args:
        cards: the data card, then the one by which ssh comes in, where that is another.
        volumes: (volume name, folder in the host).
    """

    name: str
    container: str
    cards: tuple[Card, ...]
    engine: str
    volumes: tuple[tuple[str, str], ...]

    @property
    def address(self) -> str:
        """Where ssh connects to."""
        return self.cards[-1].address

    @property
    def interface(self) -> str:
        """The data card's name."""
        return self.cards[0].interface


def interface_name(index: int, interfaces: str) -> str:
    """Return what the data interface of host ``index`` (from 0) is called."""
    if interfaces == "same":
        return "eth0"
    return _INTERFACES[index] if index < len(_INTERFACES) else f"enp{index + 1}s0"


def management_name(index: int, interfaces: str) -> str:
    """Return what the management interface of host ``index`` (from 0) is called."""
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
    cards = tuple(
        Card(name, str(subnet.network_address + 11 + index), interface, rate)
        for name, subnet, interface, rate in zip(
            spec.networks, subnets, interfaces, (spec.rate, spec.management), strict=False
        )
    )
    name = f"box{index + 1}"
    engine = spec.engines[index % len(spec.engines)]
    container = f"{spec.network}-{name}"
    # By engine: data of a newer engine must never be opened by an older one.
    volumes = tuple(
        (f"{container}-{engine}-{path.rpartition('/')[2]}", path) for path in ENGINES[engine].data
    )
    volumes += ((f"{spec.network}-shared", SHARED),)
    return LabHost(name, container, cards, engine, volumes)


def host_settings(spec: LabSpec, host: LabHost) -> str:
    """Return, as JSON, all that a host's container is made from and that cannot be changed later."""
    subject = {
        "engine": host.engine,
        "interface": host.interface,
        "rate": spec.rate,
        "shared": SHARED,
        "user": spec.user,
    }
    subject |= {"management": spec.management} if spec.management else {}
    return json.dumps(subject, sort_keys=True)


def settings_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return a host's settings from its container's labels; empty when they say nothing that can be read."""
    try:
        settings = json.loads(labels.get(LABEL_LAB_SETTINGS, ""))
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in settings.items()} if isinstance(settings, dict) else {}


def rate_bits(rate: str) -> int:
    """Return a rate such as ``100mbit`` in bits per second.

    Raises:
        ValueError: it is not written so.
    """
    match = _RATE.fullmatch(rate)
    if match is None:
        raise ValueError(rate)
    return int(match[1]) * _UNITS[match[2]]


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
    raise BadInput("lab", (Problem("subnet", "every network of 10.77.0.0/16 is in use"),))


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


def render_hosts_yaml(spec: LabSpec, hosts: tuple[LabHost, ...]) -> str:
    """Return the lab's hosts.yaml. Scalars are written as JSON, which YAML reads as they are."""
    lines = [
        f"# Written by `toolkit lab up`; goes with `toolkit lab down --name {spec.name}`.",
        f"cluster: {json.dumps(spec.name)}",
        f"image: {json.dumps(spec.image)}",
        f"main: {json.dumps(hosts[0].name)}",
        f"known_hosts: {json.dumps(f'{spec.folder}/known_hosts')}",
        "hosts:",
    ]
    for host in hosts:
        fields = {
            "address": host.address,
            "user": spec.user,
            "identity_file": f"{spec.folder}/id_ed25519",
            "slots": spec.slots,
        }
        lines.append(f"  {host.name}:")
        lines += [f"    {key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def render_known_hosts(keys: Iterable[tuple[str, str]]) -> str:
    """Return known_hosts text from pairs of address and ``type key``."""
    return "".join(f"{address} {key}\n" for address, key in keys)
