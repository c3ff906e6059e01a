"""Which networks of this machine are taken, and which one a practice cluster may have."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from toolkit.errors import BadInput, Problem


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
