"""Limits what the hosts of a practice cluster send, for benchmarks of slow links."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from toolkit.network.cost import wire_efficiency

# tbf counts an Ethernet frame's header and none of the rest, so that 95.6 % of the rate is payload, where a
# real port has 94.1 %.
FRAME = 14


def payload(mbit: int) -> float:
    """Return the bits of payload per second on a link with this limit in Mb/s."""
    return mbit * 1e6 * wire_efficiency(1500, FRAME)


def links_of(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the containers of the practice hosts with their addresses, from their hosts.yaml."""
    # It names the cluster as the lab, and the hosts' containers are named after both.
    return [
        (f"toolkit-lab-{data['cluster']}-{name}", host["address"]) for name, host in data["hosts"].items()
    ]


def shape(links: Sequence[tuple[str, str]], mbit: int, burst: int = 16_384) -> None:
    """Limit what each host sends; 0 lifts the limit.

    Args:
        burst: bytes of the shaper's bucket. Small ones cost this machine's processors a timer per packet.
    """
    # Into a bucket that is full, bytes go at no cost in time; a port has none, so this one is small. What
    # would wait longer than in a queue of usual length is dropped, as on a port.
    rule = (
        f"replace dev $d root handle 1: tbf rate {mbit}mbit burst {max(burst, mbit * 125)} latency 150ms"
        if mbit
        else "del dev $d root"
    )
    # Independent of the setting of this machine. Not every host has cubic, the kernel's default; every host
    # has reno. With bbr a slow link that is busy in both directions loses a tenth.
    setting = "net.ipv4.tcp_congestion_control"
    control = f"for name in cubic reno; do sysctl -qw {setting}=$name 2>/dev/null && break; done"
    for container, address in links:
        ask = f"{control}; d=$(ip -o -4 addr | awk '/ {address}\\// {{print $2}}') && tc qdisc {rule}"
        argv = ["docker", "exec", container, "sh", "-c", ask]
        subprocess.run(argv, check=bool(mbit), stderr=None if mbit else subprocess.DEVNULL)


@contextmanager
def limited(
    links: Sequence[tuple[str, str]], rates: Sequence[int], burst: int = 16_384
) -> Iterator[Iterator[int]]:
    """Yield an iterator that sets each rate in turn; remove the limit at the end."""

    def each() -> Iterator[int]:
        for mbit in rates:
            shape(links, mbit, burst)
            yield mbit

    try:
        yield each()
    finally:
        shape(links, 0)
