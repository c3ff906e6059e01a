"""Network interfaces of a host: addresses, listeners, routes, links and RDMA devices, from the probe.

The sources are `ip`, `tc`, sysfs, and the kernel's tables in /proc/net.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

from toolkit.core.facts import Gid, Interface, Link, LinkKind, RdmaPort, Route
from toolkit.protocol.decode import MOST, DecodeError, hexadecimal, real, whole
from toolkit.protocol.frames import lines_of

SYS_NET = "/sys/class/net/"
# The files of each interface that the probe reads together with others. sysfs answers from memory.
LINK_FILES = tuple(
    f"{SYS_NET}*/{name}"
    for name in (
        *("operstate", "carrier", "speed", "duplex", "mtu", "type", "uevent", "tun_flags"),
        *(f"statistics/{way}_{what}" for way in ("rx", "tx") for what in ("packets", "errors")),
    )
)
# grep names each file and reads them all in one process; -s skips files that do not exist.
LINK_QUESTIONS = r"""
paths=
for f in @net@*/device @net@*/lower_*; do
  [ ! -e "$f" ] || paths="$paths$f
"
done
say link-paths "$paths"
say shaping "$(PATH="$PATH:/usr/sbin:/sbin" tc qdisc show 2>/dev/null)"
rdma=
[ ! -d /sys/class/infiniband ] || rdma=$(cd /sys/class/infiniband && {
  grep -sH '' ./*/ports/*/state ./*/ports/*/rate ./*/ports/*/link_layer ./*/device/uevent
  grep -sH '' ./*/ports/*/gids/[0-9] ./*/ports/*/gids/1[0-5] ./*/ports/*/gid_attrs/types/[0-9] \
    ./*/ports/*/gid_attrs/types/1[0-5] ./*/ports/*/gid_attrs/ndevs/[0-9] ./*/ports/*/gid_attrs/ndevs/1[0-5]
  ls -d ./*/device/net/* 2>/dev/null
})
say rdma "$rdma"
""".replace("@net@", SYS_NET)

_MOST = 4096  # addresses of a host, which are compared with those of all others; and routes
# Numbers of include/uapi/linux/if_arp.h; tunnels of all sorts have one of these.
_LOOPBACK, _INFINIBAND = "772", "32"
_TUNNELS = frozenset(("65534", "768", "769", "776", "778", "823"))
_OVERLAYS = frozenset(("vxlan", "geneve", "wireguard", "gre", "ppp"))
_RATE = re.compile(r"(?:rate|bandwidth) ([0-9.]+)([KMGT]?)bit", re.IGNORECASE)
_MEGABITS = {"": 1e-6, "k": 1e-3, "m": 1.0, "g": 1e3, "t": 1e6}


def parse_interfaces(listed: str, routes: str, trie: str) -> tuple[Interface, ...]:
    """Return the host's IPv4 addresses, each with its interface.

    Args:
        listed: output of ``ip -o -4 addr show``; empty without iproute2, then the others are used.
        routes, trie: /proc/net/route and /proc/net/fib_trie.
    """
    found = []
    for line in lines_of(listed):
        words = line.split()
        if len(words) > 3 and words[2] == "inet":
            with suppress(ValueError):
                own = ipaddress.IPv4Interface(words[3])
                found.append(
                    Interface(words[1], str(own.ip), own.network.prefixlen, "secondary" in words[4:])
                )
        if len(found) > _MOST:
            raise DecodeError("interfaces", f"the host has more than {_MOST} addresses")
    return tuple(found) or _from_proc(routes, trie)


def _from_proc(routes: str, trie: str) -> tuple[Interface, ...]:
    """Return addresses and interfaces without iproute2, from /proc/net/route and /proc/net/fib_trie.

    A host's own addresses are the trie's ``/32 host LOCAL`` leaves; each belongs to the interface
    whose directly connected network (a route without a gateway) contains it.
    """
    networks = []
    for line in lines_of(routes)[1:]:
        words = line.split()
        if len(words) > 7 and hexadecimal(words[2]) == 0:
            target, mask = _v4(words[1]), hexadecimal(words[7])
            if target and mask:
                networks.append((words[0], ipaddress.IPv4Network(f"{target}/{bin(mask).count('1')}", False)))
    own: list[str] = []
    last = ""
    for line in lines_of(trie):
        words = line.replace("|--", "").split()
        if line.strip().startswith("|--") and words:
            last = words[0]
        elif "/32 host LOCAL" in line and last not in own:
            with suppress(ValueError):
                own.append(str(ipaddress.IPv4Address(last)))
    found = [Interface("lo", a, 8) for a in own if a.startswith("127.")]
    for address in own:
        for name, network in networks:
            if ipaddress.ip_address(address) in network:
                found.append(Interface(name, address, network.prefixlen))
                break
    return tuple(found)


def parse_listeners(text: str) -> tuple[tuple[str, int], ...]:
    """Return address and port of each listener in /proc/net/tcp and tcp6 (state 0A).

    The format is in Linux' Documentation/networking/proc_net_tcp.rst.
    """
    found = set()
    for line in lines_of(text):
        words = line.split()
        if len(words) > 3 and words[3] == "0A":
            word, _, port = words[1].partition(":")
            address, number = _v4(word) if len(word) == 8 else _v6(word), hexadecimal(port, 65535)
            if address and number is not None:
                found.add((address, number))
    return tuple(sorted(found))


def parse_routes(text: str) -> tuple[Route, ...]:
    """Return the active routes in /proc/net/route; none if the table is too long.

    A router can have a million routes. Without them, only the answers of ``ip route get`` count.
    """
    found: list[Route] = []
    lines = lines_of(text)[1:]
    for line in lines if len(lines) <= _MOST else ():
        words = line.split()
        # RTF_UP alone counts; RTF_REJECT (0x200) leads nowhere.
        if len(words) > 7 and (hexadecimal(words[3]) or 0) & 0x201 == 1:
            target, gateway, mask = (_v4(words[i]) for i in (1, 2, 7))
            metric = whole(words[6], 2**32)
            if not (target and gateway and mask) or metric is None:
                continue
            with suppress(ValueError):  # a mask with holes
                network = str(ipaddress.IPv4Network(f"{target}/{mask}", strict=False))
                found.append(Route(words[0], network, "" if gateway == "0.0.0.0" else gateway, metric))
    return tuple(found)


def _v4(word: str) -> str:
    """Return the address of a word, empty if it is invalid."""
    # The tables have each 32-bit word in the machine's (little-endian) order.
    number = hexadecimal(word)
    return "" if number is None else str(ipaddress.IPv4Address(struct.pack("<L", number)))


def _v6(word: str) -> str:
    # Four words, each as in _v4.
    numbers = [hexadecimal(word[i : i + 8]) for i in range(0, 32, 8)]
    if len(word) != 32 or None in numbers:
        return ""
    address = ipaddress.IPv6Address(struct.pack("<4L", *numbers))
    return str(address.ipv4_mapped or address)


def parse_links(links: str, shaping: str) -> tuple[Link, ...]:
    """Return the interfaces, sorted by name.

    Args:
        links: lines such as ``./eth0/mtu:1500`` for the files, and ``./eth0/device`` for other paths.
        shaping: output of ``tc qdisc show``; empty without tc.
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
        _link(name, values, limits.get(name, 0.0), tuple(sorted(lower[name])), name in cards)
        for name, values in sorted(about.items())
        if "operstate" in values
    )


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, path below it and value of lines such as ``./eth0/mtu:1500``."""
    for line in lines_of(text):
        path, _, value = line.partition(":")
        head, _, rest = path.removeprefix("./").partition("/")
        if path.startswith("./") and rest:
            yield head, rest, value.strip()


def _link(name: str, values: dict[str, str], limit: float, lower: tuple[str, ...], card: bool) -> Link:
    def number(key: str) -> int:
        # -1 and 4294967295 both mean "unknown".
        value = whole(values.get(key, ""), least=-MOST) or 0
        return value if 0 < value < 2**32 - 1 or key.endswith("packets") else 0

    carrier = {"1": True, "0": False}.get(values.get("carrier", ""))
    return Link(
        name=name,
        kind=_kind(values),
        state=values["operstate"],
        carrier=carrier,
        speed=number("speed"),
        limit=limit,
        duplex=values.get("duplex", ""),
        mtu=number("mtu"),
        lower=lower,
        card=card,
        packets=number("rx_packets") + number("tx_packets"),
        errors=number("rx_errors") + number("tx_errors"),
        vlan=values.get("DEVTYPE") == "vlan",
    )


def _kind(values: dict[str, str]) -> LinkKind:
    form, number = values.get("DEVTYPE", ""), values.get("type", "")
    if number == _LOOPBACK:
        return "loopback"
    if number == _INFINIBAND:
        return "infiniband"
    if form == "bridge":
        return "bridge"
    if form == "wlan":
        return "wireless"
    if "tun_flags" in values or form in _OVERLAYS or number in _TUNNELS:
        return "tunnel"
    return "ethernet"


def _limits(shaping: str) -> dict[str, float]:
    """Return rates of root qdiscs in Mbit/s, from lines as ``qdisc tbf 8001: dev eth0 root … rate 1Mbit``."""
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
            state=values.get("state", "").rpartition(":")[2].strip(),
            layer=values.get("link_layer", ""),
            rate=_gigabits(values.get("rate", "")),
            interfaces=tuple(sorted(interfaces[device])),
            gids=tuple(_gids(values)),
        )
        for (device, port), values in sorted(ports.items())
    )


def _gigabits(text: str) -> float:
    """Return the number of a text such as ``100 Gb/sec (4X EDR)``."""
    return max(0.0, real(text.partition(" ")[0]) or 0.0)


def _gids(values: dict[str, str]) -> Iterator[Gid]:
    for index in range(16):
        text = values.get(f"gids/{index}", "")
        try:
            address = ipaddress.IPv6Address(text).ipv4_mapped
        except ValueError:
            continue
        if address is not None:
            kind = values.get(f"gid_attrs/types/{index}", "")
            yield Gid(index, kind, str(address), values.get(f"gid_attrs/ndevs/{index}", ""))
