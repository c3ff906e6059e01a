"""Facts: what a host said about itself when it was asked, read-only."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.core.image import ImageFacts
from toolkit.core.links import Link, RdmaPort, Route
from toolkit.core.names import LABEL_DIGEST


@dataclass(frozen=True)
class Interface:
    """One IPv4 address of a network interface; ``prefix`` is the network's length in bits."""

    name: str
    address: str
    prefix: int

    @property
    def network(self) -> str:
        """The network in CIDR form, such as ``10.0.0.0/24``."""
        return str(ipaddress.ip_interface(f"{self.address}/{self.prefix}").network)


@dataclass(frozen=True)
class ContainerFacts:
    """One container that carries a toolkit label.

    ``state`` is Docker's word (running, exited, created …), ``image`` the engine's Id of its image.
    """

    id: str
    name: str
    state: str
    labels: Mapping[str, str]
    exit_code: int = 0
    image: str = ""

    @property
    def digest(self) -> str:
        return self.labels.get(LABEL_DIGEST, "")


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi on the host reports it; memory in MiB."""

    index: int
    uuid: str
    name: str
    driver: str
    memory_mib: int


@dataclass(frozen=True)
class Remembered:
    """What a host's files say of the cluster since the last `up`, for when another host does not answer.

    Args:
        addresses: data addresses as (host name, address).
        keys: workers' public host keys as (host name, key).
        main_key: main's public key; only workers have it.
    """

    addresses: tuple[tuple[str, str], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    main_key: str = ""


@dataclass(frozen=True)
class Facts:
    """What one host said.

    Args:
        groups: supplementary groups of the ssh user as (id, name), primary included.
        state_dir: absolute path of the toolkit's folder on the host.
        ssh_address: the host's own address of the connection that we came in by.
        listening: TCP ports with a listener, as (address, port); ``0.0.0.0`` and ``::`` mean every address.
        infiniband: RDMA device nodes below /dev/infiniband.
        links: network interfaces; routes: the kernel's main table; rdma: ports of RDMA devices.
    """

    host: str
    user: str
    uid: int
    gid: int
    groups: tuple[tuple[int, str], ...]
    home: str
    state_dir: str
    hostname: str
    arch: str
    docker: str
    store: str
    rootless: bool
    ssh_address: str
    interfaces: tuple[Interface, ...] = ()
    listening: tuple[tuple[str, int], ...] = ()
    containers: tuple[ContainerFacts, ...] = ()
    images: tuple[ImageFacts, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    infiniband: tuple[str, ...] = ()
    free_bytes: int = 0
    remembered: Remembered = Remembered()
    links: tuple[Link, ...] = ()
    routes: tuple[Route, ...] = ()
    rdma: tuple[RdmaPort, ...] = ()

    def link(self, name: str) -> Link | None:
        """Return the interface of that name, None when the host did not list it."""
        return next((link for link in self.links if link.name == name), None)

    def group_name(self) -> str:
        """The name of the primary group."""
        return dict(self.groups).get(self.gid, self.user)
