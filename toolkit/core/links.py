"""Links, routes and RDMA ports of a host as its kernel shows them, read-only."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# What a network interface is, from its type number and DEVTYPE in sysfs; never from its name.
LinkKind = Literal["loopback", "ethernet", "infiniband", "wireless", "bridge", "tunnel"]


@dataclass(frozen=True)
class Link:
    """One network interface; 0 and empty text mean that the kernel does not say.

    Args:
        state: the kernel's operstate: up, down, lowerlayerdown, unknown …
        carrier: whether the other end is there; None when the interface is switched off.
        speed: what the hardware has agreed on, in Mbit/s.
        limit: what traffic shaping lets out, in Mbit/s.
        mtu: greatest packet in bytes.
        lower: interfaces that this one stands on, such as the ports of a bridge.
        card: whether a device of this machine is behind it.
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

    @property
    def down(self) -> bool:
        """Whether nothing passes: it has no carrier, or is switched off and tells of none."""
        return self.carrier is not True or self.state in ("down", "lowerlayerdown", "notpresent")

    @property
    def rate(self) -> float:
        """What it carries at most in Mbit/s, 0 when that is not known."""
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
        gids: what its GID table's first entries hold; IPv4 addresses alone.
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


def leaves_by(routes: Sequence[Route], address: str) -> str:
    """Return the interface by which the main table sends to an address; empty when there is no route.

    The longest prefix wins, then the smallest metric, then the earlier line, as in the kernel.
    Rules that ask other tables are not seen here; ``ip route get`` on the host sees them.
    """
    to = ipaddress.ip_address(address)
    found = [
        (-network.prefixlen, route.metric, index, route.interface)
        for index, route in enumerate(routes)
        for network in [ipaddress.ip_network(route.network)]
        if to in network
    ]
    return min(found)[3] if found else ""


def rate_text(rate: float) -> str:
    """Return a rate in Mbit/s for people.

    >>> rate_text(100000), rate_text(2500), rate_text(0.5), rate_text(0)
    ('100 Gb/s', '2.5 Gb/s', '0.5 Mb/s', 'unknown speed')
    """
    if not rate:
        return "unknown speed"
    return f"{rate / 1000:g} Gb/s" if rate >= 1000 else f"{rate:g} Mb/s"
