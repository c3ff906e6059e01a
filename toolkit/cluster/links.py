"""The part of the probe that asks about links and RDMA devices, and the parser of what it prints."""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterator

from toolkit.core.facts import Gid, Link, LinkKind, RdmaPort
from toolkit.protocol.frames import lines_of
from toolkit.protocol.numbers import MOST, real, whole

# sysfs answers from memory. grep names each file, reads them all in one process, and -s passes over what
# an interface lacks or, being down, does not say.
QUESTIONS = r"""
say links "$(cd /sys/class/net && {
  grep -sH '' ./*/operstate ./*/carrier ./*/speed ./*/duplex ./*/mtu ./*/type ./*/uevent ./*/tun_flags \
    ./*/statistics/rx_packets ./*/statistics/tx_packets ./*/statistics/rx_errors ./*/statistics/tx_errors
  ls -d ./*/device ./*/lower_* 2>/dev/null
})"
say shaping "$(PATH="$PATH:/usr/sbin:/sbin" tc qdisc show 2>/dev/null)"
say rdma "$(cd /sys/class/infiniband 2>/dev/null && {
  grep -sH '' ./*/ports/*/state ./*/ports/*/rate ./*/ports/*/link_layer ./*/device/uevent
  grep -sH '' ./*/ports/*/gids/[0-9] ./*/ports/*/gids/1[0-5] ./*/ports/*/gid_attrs/types/[0-9] \
    ./*/ports/*/gid_attrs/types/1[0-5] ./*/ports/*/gid_attrs/ndevs/[0-9] ./*/ports/*/gid_attrs/ndevs/1[0-5]
  ls -d ./*/device/net/* 2>/dev/null
})"
"""

# Numbers of include/uapi/linux/if_arp.h; tunnels of all sorts have one of these.
_LOOPBACK, _INFINIBAND = "772", "32"
_TUNNELS = frozenset(("65534", "768", "769", "776", "778", "823"))
_OVERLAYS = frozenset(("vxlan", "geneve", "wireguard", "gre", "ppp"))
_RATE = re.compile(r"(?:rate|bandwidth) ([0-9.]+)([KMGT]?)bit", re.IGNORECASE)
_MEGABITS = {"": 1e-6, "k": 1e-3, "m": 1.0, "g": 1e3, "t": 1e6}


def parse_links(links: str, shaping: str) -> tuple[Link, ...]:
    """Return the interfaces, sorted by name.

    Args:
        links: what the section ``links`` of the probe printed.
        shaping: what ``tc qdisc show`` printed; empty where there is no tc.
    """
    about: dict[str, dict[str, str]] = defaultdict(dict)
    lower: dict[str, list[str]] = defaultdict(list)
    cards = set()
    for name, what, value in _lines(links):
        if what == "device" and not value:
            cards.add(name)
        elif what.startswith("lower_"):
            lower[name].append(what.removeprefix("lower_"))
        elif what == "uevent":
            key, _, word = value.partition("=")
            about[name][key] = word
        else:
            about[name][what.rpartition("/")[2]] = value
    limits = _limits(shaping)
    return tuple(
        _link(name, said, limits.get(name, 0.0), tuple(sorted(lower[name])), name in cards)
        for name, said in sorted(about.items())
        if "operstate" in said
    )


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, path below it and value of lines such as ``./eth0/mtu:1500``."""
    for line in lines_of(text):
        path, _, value = line.partition(":")
        head, _, rest = path.removeprefix("./").partition("/")
        if path.startswith("./") and rest:
            yield head, rest, value.strip()


def _link(name: str, said: dict[str, str], limit: float, lower: tuple[str, ...], card: bool) -> Link:
    def number(key: str) -> int:
        # -1 and 4294967295 both stand for "unknown".
        value = whole(said.get(key, ""), least=-MOST) or 0
        return value if 0 < value < 2**32 - 1 or key.endswith("packets") else 0

    carrier = {"1": True, "0": False}.get(said.get("carrier", ""))
    return Link(
        name=name,
        kind=_kind(said),
        state=said["operstate"],
        carrier=carrier,
        speed=number("speed"),
        limit=limit,
        duplex=said.get("duplex", ""),
        mtu=number("mtu"),
        lower=lower,
        card=card,
        packets=number("rx_packets") + number("tx_packets"),
        errors=number("rx_errors") + number("tx_errors"),
    )


def _kind(said: dict[str, str]) -> LinkKind:
    form, number = said.get("DEVTYPE", ""), said.get("type", "")
    if number == _LOOPBACK:
        return "loopback"
    if number == _INFINIBAND:
        return "infiniband"
    if form == "bridge":
        return "bridge"
    if form == "wlan":
        return "wireless"
    if "tun_flags" in said or form in _OVERLAYS or number in _TUNNELS:
        return "tunnel"
    return "ethernet"


def _limits(shaping: str) -> dict[str, float]:
    """Rates of root qdiscs in Mbit/s, from lines such as ``qdisc tbf 8001: dev eth0 root … rate 1Mbit …``."""
    found = {}
    for line in lines_of(shaping):
        words = line.split()
        rate = _RATE.search(line)
        number = real(rate[1]) if rate else None
        if rate and number is not None and len(words) > 5 and words[3] == "dev" and words[5] == "root":
            found[words[4]] = number * _MEGABITS[rate[2].lower()]
    return found


def parse_rdma(text: str) -> tuple[RdmaPort, ...]:
    """Return the ports of all RDMA devices, sorted by name."""
    ports: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    drivers: dict[str, str] = {}
    interfaces: dict[str, list[str]] = defaultdict(list)
    for device, what, value in _lines(text):
        parts = what.split("/")
        if parts[0] == "ports" and len(parts) > 2:
            if (port := whole(parts[1])) is not None:
                ports[device, port]["/".join(parts[2:])] = value
        elif parts[:2] == ["device", "net"] and len(parts) == 3:
            interfaces[device].append(parts[2])
        elif value.startswith("DRIVER="):
            drivers[device] = value.removeprefix("DRIVER=")
    return tuple(
        RdmaPort(
            device=device,
            port=port,
            driver=drivers.get(device, ""),
            # "4: ACTIVE"
            state=said.get("state", "").rpartition(":")[2].strip(),
            layer=said.get("link_layer", ""),
            rate=_gigabits(said.get("rate", "")),
            interfaces=tuple(sorted(interfaces[device])),
            gids=tuple(_gids(said)),
        )
        for (device, port), said in sorted(ports.items())
    )


def _gigabits(text: str) -> float:
    """``100 Gb/sec (4X EDR)`` as a number."""
    return max(0.0, real(text.partition(" ")[0]) or 0.0)


def _gids(said: dict[str, str]) -> Iterator[Gid]:
    for index in range(16):
        text = said.get(f"gids/{index}", "")
        try:
            address = ipaddress.IPv6Address(text).ipv4_mapped
        except ValueError:
            continue
        if address is not None:
            kind = said.get(f"gid_attrs/types/{index}", "")
            yield Gid(index, kind, str(address), said.get(f"gid_attrs/ndevs/{index}", ""))
