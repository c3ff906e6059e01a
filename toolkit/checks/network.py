"""Checks of the network that ranks use: an address of each host, and the link that it is on."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from toolkit.checks.model import Check, Scene, Seen, error, unchecked, warning
from toolkit.core.command import quoted
from toolkit.core.facts import rate_text
from toolkit.core.finding import Finding

# Mbit/s. Gradients of a small model (25 million parameters) take 8 s each way on such a link.
SLOW_RATE = 100
# Of packets that were sent and received; a sound cable damages fewer than one in a million.
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
        what = f"the hosts' data addresses are in different networks: {where}"
        yield warning(what, "fine if a router joins them; else set data_address for these hosts")
    if not own:
        yield unchecked("no data address is known")


def _conflict(scene: Scene) -> Iterator[Finding]:
    told = set()
    for name, own in scene.choice.candidates.items():
        for one in own:
            if one.conflict and one.address not in told:
                told.add(one.address)
                who = ", ".join((name, *one.twins))
                fix = "give each host an address of its own, or remove the one that nobody uses"
                if any(path.address == one.address for path in scene.paths.values()):
                    yield error(f"{one.address} is the address of {who}: it leads to one of them", fix)
                else:
                    yield warning(f"{one.address} is the address of {who}; ranks do not use it", fix)


def _link(seen: Seen, scene: Scene) -> Iterator[Finding]:
    link, path = scene.link(seen.host), scene.paths.get(seen.host)
    if link is None or path is None:
        yield unchecked("the host does not say what its links are like")
    elif link.carrier is None:
        what = f"{link.name}, where ranks talk to the others ({path.address}), is switched off"
        yield error(what, f"on {seen.host}: sudo ip link set {quoted(link.name)} up", subject=link.name)
    elif link.down:
        what = f"{link.name}, where ranks talk to the others ({path.address}), has no carrier"
        fix = f"on {seen.host}: see to the cable and to the switch; ip link show {quoted(link.name)}"
        yield error(what, fix, subject=link.name)


def _speed(seen: Seen, scene: Scene) -> Iterator[Finding]:
    link = scene.link(seen.host)
    if link is None or not (link.rate or link.duplex == "half"):
        yield unchecked("the host does not say how fast its link is")
        return
    fix = f"on {seen.host}: ethtool {quoted(link.name)}; another cable or port of the switch"
    if link.duplex == "half":
        yield warning(f"{link.name} runs at half duplex: it cannot send while it receives", fix)
    if link.limit and link.limit == link.rate and link.limit <= SLOW_RATE:
        what = f"traffic shaping holds {link.name} to {rate_text(link.limit)}"
        yield warning(what, f"on {seen.host}: tc qdisc show dev {quoted(link.name)}", subject=link.name)
    elif 0 < link.rate <= SLOW_RATE:
        what = f"{link.name} runs at {rate_text(link.rate)}"
        yield warning(f"{what}: several machines may be slower than one", fix, subject=link.name)


def _speeds(scene: Scene) -> Iterator[Finding]:
    links = {name: scene.link(name) for name in scene.paths}
    rates = {name: link.rate for name, link in links.items() if link and link.rate}
    if len(rates) < len(scene.facts):
        yield unchecked("not all hosts say how fast their links are")
    if len(set(rates.values())) > 1:
        least, most = min(rates.values()), max(rates.values())
        slow = [name for name, rate in rates.items() if rate == least]
        what = f"the link of {', '.join(slow)} carries {rate_text(least)}, others {rate_text(most)}"
        fix = f"on {slow[0]}: ethtool the interface; the slowest link sets the pace of all hosts"
        yield warning(what, fix, slow[0])


def _mtu(scene: Scene) -> Iterator[Finding]:
    by_network: dict[str, dict[int, list[str]]] = {}
    for name, path in scene.paths.items():
        link = scene.link(name)
        if link and link.mtu:
            by_network.setdefault(path.network, {}).setdefault(link.mtu, []).append(name)
    if not by_network:
        yield unchecked("no host says how large its packets are")
    for network, sizes in by_network.items():
        if len(sizes) > 1:
            said = "; ".join(f"{size} on {', '.join(names)}" for size, names in sorted(sizes.items()))
            odd = min(sizes.values(), key=len)[0]
            link = scene.link(odd)
            name = quoted(link.name) if link else "the interface"
            fix = f"on {odd}: sudo ip link set {name} mtu NUMBER, the same on all hosts and on the switch"
            yield warning(f"the MTU differs in {network}: {said}; large messages may stall", fix, odd)


def _errors(seen: Seen, scene: Scene) -> Iterator[Finding]:
    link = scene.link(seen.host)
    if link is None:
        yield unchecked("the host does not say what its links are like")
    elif link.errors > max(_BAD_LEAST, link.packets * _BAD_SHARE):
        share = link.packets // link.errors
        what = f"{link.name} has counted {link.errors} damaged packets, one in {share}"
        fix = f"on {seen.host}: ip -s link show {quoted(link.name)}; another cable, port or transceiver"
        yield warning(what, fix, subject=link.name)


def _public(seen: Seen, scene: Scene) -> Iterator[Finding]:
    path = scene.paths.get(seen.host)
    if path is None:
        yield unchecked("its data address is not known")
    elif ipaddress.ip_address(path.address).is_global:
        what = f"ranks talk to each other at {path.address}, a public address, without any authentication"
        fix = "use a private network (data_address), or let a firewall pass only the cluster's hosts"
        yield warning(what, fix, subject=path.address)


CHECKS = (
    Check("net-address", "every host has an address for ranks", whole=_address),
    Check("net-shared", "all hosts share a network", whole=_shared),
    Check("net-conflict", "no address is on two hosts", whole=_conflict),
    Check("net-link", "the data interface is up", host=_link),
    Check("net-speed", "the data link is fast enough", host=_speed),
    Check("net-speeds", "data links are equally fast", whole=_speeds),
    Check("net-mtu", "the MTU is the same on all hosts", whole=_mtu),
    Check("net-errors", "the data link damages no packets", host=_errors),
    Check("net-public", "ranks talk on a private network", host=_public),
)
