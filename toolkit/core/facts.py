"""Facts: the answers of a host to the probe, read-only."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from toolkit.core.engines import DOCKER, NONE_VISIBLE, PODMAN
from toolkit.core.image import ImageFacts
from toolkit.protocol.names import LABEL_DIGEST


@dataclass(frozen=True)
class Interface:
    """One IPv4 address of a network interface; ``prefix`` is the network's length in bits.

    A secondary address has an earlier, primary address beside it, of the same interface and network. The
    primary address is the source of packets that the host sends. Floating addresses are usually secondary.
    """

    name: str
    address: str
    prefix: int
    secondary: bool = False

    @cached_property
    def network(self) -> str:
        """The network in CIDR form, such as ``10.0.0.0/24``."""
        return str(ipaddress.IPv4Network(f"{self.address}/{self.prefix}", strict=False))


@dataclass(frozen=True)
class ContainerFacts:
    """One container that carries a toolkit label.

    ``state`` is Docker's word (running, exited, created …), ``image`` the engine's Id of its image,
    ``started`` and ``ended`` seconds since the epoch by the host's clock, 0 for never, ``mounts`` the mounted
    paths of the host.
    """

    id: str
    name: str
    state: str
    labels: Mapping[str, str]
    exit_code: int = 0
    image: str = ""
    started: float = 0.0
    ended: float = 0.0
    mounts: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The digest of all settings of the container; empty if its labels do not contain it."""
        return self.labels.get(LABEL_DIGEST, "")


@dataclass(frozen=True)
class Mig:
    """A part of a GPU that Multi-Instance GPU has split; ``profile`` such as ``1g.10gb``."""

    index: int
    uuid: str
    profile: str


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi on the host reports it; memory in MiB, 0 if nvidia-smi prints no number."""

    index: int
    uuid: str
    name: str
    driver: str
    memory_mib: int
    migs: tuple[Mig, ...] = ()

    @property
    def usable(self) -> tuple[str, ...]:
        """UUIDs of what a process can compute on: the parts of a GPU that is split, else the GPU."""
        return tuple(mig.uuid for mig in self.migs) or (self.uuid,)


@dataclass(frozen=True)
class GpuProcess:
    """A process of any user that computes on a GPU; its arguments are private and not read.

    Args:
        gpu: UUID as nvidia-smi prints it; for a partitioned GPU possibly the UUID of the physical GPU.
        memory_mib: memory that it uses on the GPU; 0 if the driver reports no figure.
        user: its owner; empty if the system hides processes of other users.
        program: the kernel's short name for it.
        container: Id of the container that it runs in, empty for none.
        job: the toolkit job, if the SSH user can see it; empty for none.
    """

    gpu: str
    pid: int
    memory_mib: int = 0
    user: str = ""
    program: str = ""
    container: str = ""
    job: str = ""


@dataclass(frozen=True)
class Claim:
    """The public reservation of slots and GPUs of this host by a running job of any cluster.

    Args:
        owner: user who started the job, according to the job; ``user`` owns the process that reports it.
        slots: local numbers; gpus: UUIDs.
        since: when the claim was made, in seconds since the epoch by the host's clock; 0 for unknown.
    """

    job: str
    cluster: str
    owner: str
    slots: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    user: str = ""
    pid: int = 0
    since: float = 0.0


@dataclass(frozen=True)
class Remembered:
    """The state of the cluster in a host's files since the last `up`, used if another host does not answer.

    It affects the files of this host only: a user who can write to one host must not affect the others. The
    exception is the user name, which a new host gets if all other hosts remember the same one.

    Args:
        addresses: data addresses as (host name, address).
        keys: workers' public host keys as (host name, key).
        main_key: main's public key; only workers have it.
        user: the user name inside the container.
    """

    addresses: tuple[tuple[str, str], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    main_key: str = ""
    user: str = ""


@dataclass(frozen=True)
class StateFolder:
    """One of the directories that lead to a cluster's state.

    Args:
        uid: of its owner.
        mode: type and permission bits, as ``st_mode``.
        outer: it is ``state_dir`` of hosts.yaml, which users share; the others belong to the ssh user.
    """

    path: str
    uid: int
    mode: int
    outer: bool = False


@dataclass(frozen=True)
class StateFile:
    """One file or directory of a cluster's state on a host.

    Args:
        path: below the state directory.
        mode: type and permission bits, as ``st_mode``.
        sum: sha256 of a file's content in hexadecimal; empty for others.
    """

    path: str
    mode: int
    sum: str = ""


@dataclass(frozen=True)
class Facts:
    """The probe results of one host.

    Args:
        groups: supplementary groups of the SSH user as (id, name), primary included.
        state_dir: absolute path of the toolkit's folder on the host.
        state_folders: that folder and those above it as far as they are toolkit's, the innermost first; those
            that do not exist are left out.
        ssh_address: the host's own address of the SSH connection.
        listening: TCP ports with a listener, as (address, port); ``0.0.0.0`` and ``::`` mean every address.
        infiniband: RDMA device nodes below /dev/infiniband.
        imex: device nodes of the IMEX channels that the SSH user can open; NVLink between hosts requires one.
        selinux: the engine labels containers for SELinux.
        arch: output of ``uname -m``.
        gpu_trouble: output of nvidia-smi besides the GPU list; empty if it reports no problem.
        nvidia_runtime: the engine can give GPUs through NVIDIA's container runtime.
        cdi: names of the GPUs that the engine can give by CDI, such as ``0``, ``GPU-…`` and ``all``.
        booted: when the host was started, in seconds since the epoch by its own clock; 0 for unknown.
        version: of the toolkit that wrote the cluster's files last; empty when none did, or one that did not
            write it down.
        programs: name and sha256 of the inside programs on the host.
        state_files: the entries of ``state_dir``, and what is below its folders conf, etc and inside.
        proved: content of the file ``conf/proved``, see ``toolkit.lifecycle.up``.
        public_keys: name of the private key's file, and the public key, of the keys in ``conf``.
        applied: digests of the keys of hosts.yaml that the last `up` applied to the host, by key.
        tuned: on main, the saved results of `toolkit network tune`, see ``toolkit.network.tuning``.
        gpu_processes: processes of all users on the GPUs; claims: running jobs of all users' clusters.
        engine: docker or podman, independent of the program's name.
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
    gpu_trouble: str = ""
    nvidia_runtime: bool = False
    cdi: tuple[str, ...] = ()
    infiniband: tuple[str, ...] = ()
    imex: tuple[str, ...] = ()
    selinux: bool = False
    free_bytes: int = 0
    remembered: Remembered = Remembered()
    booted: float = 0.0
    version: str = ""
    programs: tuple[tuple[str, str], ...] = ()
    applied: tuple[tuple[str, str], ...] = ()
    tuned: str = ""
    links: tuple[Link, ...] = ()
    routes: tuple[Route, ...] = ()
    rdma: tuple[RdmaPort, ...] = ()
    engine: str = DOCKER
    gpu_processes: tuple[GpuProcess, ...] = ()
    claims: tuple[Claim, ...] = ()
    state_folders: tuple[StateFolder, ...] = ()
    state_files: tuple[StateFile, ...] = ()
    proved: str = ""
    public_keys: tuple[tuple[str, str], ...] = ()

    @property
    def userns(self) -> str:
        """The mapping of a container's users, for ``--userns``; empty for the engine's default.

        By default, rootless Podman maps the SSH user to root, and files on mounts get another owner.
        """
        return "keep-id" if self.engine == PODMAN and self.rootless else ""

    @property
    def as_user(self) -> tuple[str, ...]:
        """The options with which a container's processes run as the SSH user, with or without GPUs."""
        own = ("--user", f"{self.uid}:{self.gid}", *(("--userns", self.userns) if self.userns else ()))
        # Without this variable, a broken driver can prevent the start.
        broken = self.nvidia_runtime and not self.gpus
        return (*own, "--env", "=".join(NONE_VISIBLE)) if broken else own

    def link(self, name: str) -> Link | None:
        """Return the interface of that name, None if the host did not list it."""
        return self._links.get(name)

    @cached_property
    def _links(self) -> dict[str, Link]:
        return {link.name: link for link in self.links}

    def leaves_by(self, address: str) -> str:
        """Return the interface on which the main table sends to an address; empty if there is no route.

        The longest prefix wins, then the smallest metric, then the earlier line, as in the kernel.
        Rules that use other tables are ignored; ``ip route get`` on the host applies them.
        """
        number = int(ipaddress.IPv4Address(address))
        return next((by[key] for bits, by in self._routes if (key := number >> 32 - bits) in by), "")

    @cached_property
    def _routes(self) -> list[tuple[int, dict[int, str]]]:
        """The interface of each network by its first bits, for each length of a prefix, the longest first.

        Once for all addresses: a search in all routes for each pair of hosts takes seconds.
        """
        found: dict[int, dict[int, str]] = {}
        for route in sorted(self.routes, key=lambda route: route.metric):
            network = ipaddress.IPv4Network(route.network)
            first = int(network.network_address) >> 32 - network.prefixlen
            found.setdefault(network.prefixlen, {}).setdefault(first, route.interface)
        return sorted(found.items(), reverse=True)


# What a network interface is, from its type number and DEVTYPE in sysfs; never from its name.
LinkKind = Literal["loopback", "ethernet", "infiniband", "wireless", "bridge", "tunnel"]


@dataclass(frozen=True)
class Link:
    """One network interface; 0 and empty text mean that the kernel does not report a value.

    Args:
        state: the kernel's operstate: up, down, lowerlayerdown, unknown …
        carrier: whether the interface has a link; None if the interface is disabled.
        speed: negotiated speed in Mbit/s.
        limit: limit of traffic shaping in Mbit/s.
        mtu: greatest packet in bytes.
        lower: interfaces below this interface, such as the ports of a bridge.
        vlan: whether it is a VLAN, whose packets the interface below sends.
        card: whether it belongs to a hardware device.
        packets: sent and received since the interface exists; ``errors`` those that were damaged.
    """

    name: str
    kind: LinkKind = "ethernet"
    state: str = ""
    carrier: bool | None = True
    speed: int = 0
    limit: float = 0.0
    duplex: str = ""
    mtu: int = 0
    lower: tuple[str, ...] = ()
    card: bool = False
    packets: int = 0
    errors: int = 0
    vlan: bool = False

    @property
    def down(self) -> bool:
        """True if the interface passes no traffic: it has no carrier, or is disabled."""
        return self.carrier is not True or self.state in ("down", "lowerlayerdown", "notpresent")

    @property
    def rate(self) -> float:
        """The maximum rate in Mbit/s, 0 if unknown."""
        return min((rate for rate in (self.speed, self.limit) if rate), default=0.0)


@dataclass(frozen=True)
class Route:
    """One line of the kernel's main table; ``gateway`` is empty for a network on the link itself."""

    interface: str
    network: str
    gateway: str = ""
    metric: int = 0


@dataclass(frozen=True)
class Gid:
    """One entry of an RDMA port's GID table; ``kind`` is the kernel's word, such as ``RoCE v2``."""

    index: int
    kind: str
    address: str
    interface: str


@dataclass(frozen=True)
class RdmaPort:
    """One port of an RDMA device.

    Args:
        device: its name, such as ``mlx5_0``.
        driver: the kernel's driver, such as ``mlx5_core`` or ``efa``.
        state: the kernel's word without its number: ACTIVE, INIT, DOWN …
        layer: ``InfiniBand``, ``Ethernet`` (RoCE, iWARP) or ``Unspecified`` (EFA).
        rate: Gbit/s.
        interfaces: network interfaces of the same device.
        gids: first entries of its GID table; only IPv4 addresses.
    """

    device: str
    port: int
    driver: str = ""
    state: str = ""
    layer: str = ""
    rate: float = 0.0
    interfaces: tuple[str, ...] = ()
    gids: tuple[Gid, ...] = ()

    @property
    def name(self) -> str:
        """Device and port as NCCL and UCX write them."""
        return f"{self.device}:{self.port}"

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    def addressed(self, facts: Facts) -> frozenset[str]:
        """Return the interfaces whose addresses the port uses: its own, and bonds and VLANs above them.

        The kernel has a GID for each address of an interface that is above the port's own ones
        (drivers/infiniband/core/roce_gid_mgmt.c in Linux). It also has those of containers, whose interfaces
        can have the same names, so the address decides too. A VLAN counts without its GID, which can follow
        after the first entries of the table.
        """
        known = {(interface.name, interface.address) for interface in facts.interfaces}
        above = (gid.interface for gid in self.gids if (gid.interface, gid.address) in known)
        vlans = (link.name for link in facts.links if link.vlan and set(link.lower) & set(self.interfaces))
        return frozenset((*self.interfaces, *above, *vlans))


def rate_text(rate: float) -> str:
    """Return a rate in Mbit/s as text.

    >>> rate_text(100000), rate_text(2500), rate_text(0.5), rate_text(0)
    ('100 Gb/s', '2.5 Gb/s', '0.5 Mb/s', 'unknown speed')
    """
    if not rate:
        return "unknown speed"
    return f"{rate / 1000:g} Gb/s" if rate >= 1000 else f"{rate:g} Mb/s"
