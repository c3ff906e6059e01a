"""Checks of the network that ranks use: the data address of each host, and the link of this address."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from toolkit.checks.model import Check, Scene, Seen, error, unchecked, warning
from toolkit.core.command import quoted
from toolkit.core.facts import Interface, rate_text
from toolkit.core.finding import Finding
from toolkit.core.printable import counted
from toolkit.protocol.host_list import host_list

# Mbit/s. Gradients of a small model (25 million parameters) take 8 s each way on such a link.
SLOW_RATE = 100
# The share of all packets; a good cable damages fewer than one in a million.
_BAD_SHARE, _BAD_LEAST = 1e-5, 100


def _address(scene: Scene) -> Iterator[Finding]:
    for problem in scene.choice.problems:
        yield error(problem.what, problem.fix, problem.host)
    if not scene.paths and not scene.choice.problems:
        yield unchecked("no host answered")


def _shared(scene: Scene) -> Iterator[Finding]:
    own = {name: path.network for name, path in scene.paths.items() if path.interface}
    if len(set(own.values())) > 1:
        where = ", ".join(f"{name} in {network}" for name, network in own.items())
        what = f"the data addresses of the hosts are in different networks: {where}"
        yield warning(
            what,
            "in hosts.yaml: set data_address of these hosts to addresses in one network  # not necessary if "
            "a router connects the networks",
        )
    if not own:
        yield unchecked("no host has a known data address")


def _conflict(scene: Scene) -> Iterator[Finding]:
    reported = set()
    for name, own in scene.choice.candidates.items():
        for one in own:
            if one.conflict and one.address not in reported:
                reported.add(one.address)
                who = host_list((name, *one.twins))
                fix = (
                    f"on {name}: ip -4 addr  # then give each host a different address, or remove the "
                    "address from all hosts except one"
                )
                if any(path.address == one.address for path in scene.paths.values()):
                    yield error(
                        f"the hosts {who} have the same address {one.address}, "
                        "which reaches only one of these hosts",
                        fix,
                    )
                else:
                    what = f"the hosts {who} have the same address {one.address}, which ranks do not use"
                    yield warning(what, fix)


def _link(seen: Seen, scene: Scene) -> Iterator[Finding]:
    link, path = scene.link(seen.host), scene.paths.get(seen.host)
    if link is None or path is None:
        yield unchecked("the data interface of the host is not known")
    elif link.carrier is None:
        what = f"the data interface {link.name} ({path.address}) is switched off"
        yield error(what, f"on {seen.host}: sudo ip link set {quoted(link.name)} up", subject=link.name)
    elif link.down:
        what = f"the data interface {link.name} ({path.address}) has no carrier"
        fix = f"on {seen.host}: ip link show {quoted(link.name)}  # then check the cable and the switch"
        yield error(what, fix, subject=link.name)


def _speed(seen: Seen, scene: Scene) -> Iterator[Finding]:
    link = scene.link(seen.host)
    if link is None or not (link.rate or link.duplex == "half"):
        yield unchecked("the speed of the data link is not known")
        return
    fix = f"on {seen.host}: ethtool {quoted(link.name)}  # then try another cable or switch port"
    if link.duplex == "half":
        yield warning(f"{link.name} runs at half duplex, so it cannot send and receive at the same time", fix)
    if link.limit and link.limit == link.rate and link.limit <= SLOW_RATE:
        what = f"traffic shaping limits {link.name} to {rate_text(link.limit)}"
        yield warning(
            what,
            f"on {seen.host}: tc qdisc show dev {quoted(link.name)}  # then raise the limit",
            subject=link.name,
        )
    elif 0 < link.rate <= SLOW_RATE:
        what = f"the link {link.name} has only {rate_text(link.rate)}"
        yield warning(
            f"{what}, so a job on several hosts can be slower than on one host", fix, subject=link.name
        )


def _speeds(scene: Scene) -> Iterator[Finding]:
    links = {name: scene.link(name) for name in scene.paths}
    rates = {name: link.rate for name, link in links.items() if link and link.rate}
    if len(rates) < len(scene.facts):
        yield unchecked("the speed of some data links is not known")
    if len(set(rates.values())) > 1:
        least, most = min(rates.values()), max(rates.values())
        slow = [name for name, rate in rates.items() if rate == least]
        what = (
            f"the speed of the data link is only {rate_text(least)} on {host_list(slow)}, "
            f"but up to {rate_text(most)} on other hosts"
        )
        slowest = links[slow[0]]
        name = quoted(slowest.name) if slowest else "INTERFACE"
        fix = f"on {slow[0]}: ethtool {name}  # then try another cable or switch port"
        yield warning(what, fix, slow[0])


def _mtu(scene: Scene) -> Iterator[Finding]:
    by_network: dict[str, dict[int, dict[str, str]]] = {}
    for name, facts in scene.facts.items():
        for interface in _data_interfaces(scene, name):
            link = facts.link(interface.name)
            if link and link.mtu:
                sizes = by_network.setdefault(interface.network, {})
                sizes.setdefault(link.mtu, {}).setdefault(name, quoted(link.name))
    if not by_network:
        yield unchecked("the MTU of the data interfaces is not known")
    for network, sizes in by_network.items():
        if len(sizes) > 1:
            by_size = "; ".join(f"{size} on {', '.join(on)}" for size, on in sorted(sizes.items()))
            odd, name = next(iter(min(sizes.values(), key=len).items()))
            fix = (
                f"on {odd}: sudo ip link set {name} mtu NUMBER  # set this MTU on all hosts and on the switch"
            )
            what = f"large messages can stall, because the MTU differs in {network}: {by_size}"
            yield warning(what, fix, odd)


def _data_interfaces(scene: Scene, host: str) -> Iterator[Interface]:
    """Yield the interface of the data address, and those of the RoCE ports that ranks use."""
    path = scene.paths.get(host)
    ports = scene.fabric.ports.get(host, ()) if scene.fabric.kind == "roce" else ()
    interfaces = scene.facts[host].interfaces
    rdma = {name for port in ports for name in port.addressed(scene.facts[host])}
    for interface in interfaces:
        if interface.name in rdma or (path and interface.address == path.address):
            yield interface


def _errors(seen: Seen, scene: Scene) -> Iterator[Finding]:
    link = scene.link(seen.host)
    if link is None:
        yield unchecked("the data interface of the host is not known")
    elif link.errors > max(_BAD_LEAST, link.packets * _BAD_SHARE):
        what = f"the interface {link.name} counted {link.errors} errors in {counted(link.packets, 'packet')}"
        fix = f"on {seen.host}: ip -s link show {quoted(link.name)}  # then try another cable or transceiver"
        yield warning(what, fix, subject=link.name)


def _public(seen: Seen, scene: Scene) -> Iterator[Finding]:
    path = scene.paths.get(seen.host)
    if path is None:
        yield unchecked("the data address is not known")
    elif ipaddress.ip_address(path.address).is_global:
        what = f"the data address {path.address} is public, and ranks connect without authentication"
        fix = (
            "in hosts.yaml: set data_address to an address in a private network"
            "  # or, in the firewall, allow only SSH and connections from hosts of the cluster"
        )
        yield warning(what, fix, subject=path.address)


CHECKS = (
    Check("net-address", "every host has a data address", whole=_address),
    Check("net-shared", "the data addresses of all hosts are in one network", whole=_shared),
    Check("net-conflict", "no two hosts have the same usable address", whole=_conflict),
    Check("net-link", "the data interface is up", host=_link),
    Check("net-speed", f"the data link is faster than {SLOW_RATE} Mb/s", host=_speed),
    Check("net-speeds", "the data interfaces of all hosts have the same speed", whole=_speeds),
    Check("net-mtu", "data interfaces in the same network have the same MTU", whole=_mtu),
    Check("net-errors", "the data link has few packet errors", host=_errors),
    Check("net-public", "the data address is not public", host=_public),
)
