"""Checks of the connections between hosts: every ordered pair, on the ports that jobs use, and its route.

The results from inside containers are used; a pair without one uses the results of the hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolkit.checks.model import Check, Scene, Seen, error, unchecked, warning
from toolkit.checks.ports import KERNEL, firewall_program, kernel_settings
from toolkit.cluster.pairs import CONNECT_SECONDS, FIRST_EPHEMERAL_PORT
from toolkit.cluster.ports import FIRST_MASTER_PORT
from toolkit.core.command import quoted
from toolkit.core.facts import rate_text
from toolkit.core.finding import Finding
from toolkit.core.printable import counted
from toolkit.network.candidates import link_rate
from toolkit.protocol.chunks import PIECES
from toolkit.protocol.probes import Tried

# Descriptions of failed connections. A refusal is a fault only if a program of toolkit listened.
_FAULTS = {
    "timeout": f"connections to {{ports}} are dropped without a reply within {CONNECT_SECONDS:g} s",
    "unreachable": "connections to {ports} are rejected as unreachable",
    "mute": "connections to {ports} are opened, but transmit no data",
    "stranger": "a program other than the test program accepts connections to {ports}",
}
_SEND = "toolkit image send && toolkit check  # test programs run in containers of the image"
_REJECTED = "connections to {ports} are rejected, although the test program listens"


@dataclass(frozen=True)
class _Pair:
    """One ordered pair.

    Args:
        tried: the result for each kind of port: ``worker``, ``master``, ``any``; empty if nothing was tried.
        listened: a program of toolkit listened on the target.
        faults: the description of each kind of port that failed.
    """

    source: str
    target: str
    tried: Mapping[str, str]
    listened: bool

    @property
    def faults(self) -> dict[str, str]:
        words = {**_FAULTS, "refused": _REJECTED} if self.listened else _FAULTS
        return {kind: words[answer] for kind, answer in self.tried.items() if answer in words}


def _pairs(scene: Scene) -> Iterator[_Pair]:
    """Yield every ordered pair of hosts that answered and have a data address."""
    hosts = [name for name in scene.facts if name in scene.paths]
    for source in hosts:
        looked = scene.inside.get(source)
        seen = looked.report.pairs if looked else {}
        for target in hosts:
            if source == target:
                continue
            if told := seen.get(target):
                tried = {kind: result.answer for kind, result in told.items()}
                yield _Pair(source, target, tried, True)
            else:
                yield _Pair(source, target, _plain(scene, source, target), False)


def _plain(scene: Scene, source: str, target: str) -> dict[str, str]:
    tried = scene.evidence.ports(source, scene.paths[target].address)
    return {_kind(scene, port): answer for port, answer in tried.items()}


def _kind(scene: Scene, port: int) -> str:
    if port == scene.port:
        return "worker"
    return "master" if FIRST_MASTER_PORT <= port < FIRST_EPHEMERAL_PORT else "any"


def _ports_text(scene: Scene, kinds: Mapping[str, str], tried: Mapping[str, str]) -> str:
    """Return the ports of these kinds as text."""
    names = {
        "worker": f"port {scene.port}",
        "master": f"port {FIRST_MASTER_PORT}",
        "any": "ephemeral ports",
    }
    return "all tested ports" if len(kinds) == len(tried) > 1 else " and ".join(names[kind] for kind in kinds)


def _route(scene: Scene) -> Iterator[Finding]:
    for source, facts in scene.facts.items():
        own = scene.paths.get(source)
        for target, path in scene.paths.items():
            if own is None or target == source or target not in scene.facts:
                continue
            by = scene.evidence.egress(facts, path.address)
            look = f"ip route get {quoted(path.address)}; ip rule"
            where = f"{target} ({path.address})"
            if by is None:
                yield unchecked(f"the host did not report its route to {where}", "", source, target)
            elif not by:
                fix = f"on {source}: {look}  # then add the missing route"
                yield error(f"the host has no route to {where}", fix, source, target)
            elif by == "lo":
                what = f"the host has the address of {where} on its own interface"
                fix = f"on {source}: ip addr; {look}  # then remove the address from one of the two hosts"
                yield error(what, fix, source, target)
            elif by != own.interface:
                rates = (link_rate(facts, by), link_rate(facts, own.interface))
                slow = f" ({rate_text(rates[0])})" if 0 < rates[0] < rates[1] else ""
                what = (
                    f"the host sends to {where} through {by}{slow}, but its data interface is {own.interface}"
                )
                change = f"change the routes so that the host sends through {own.interface}"
                fix = f"on {source}: {look}  # then {change}"
                yield warning(what, fix, source, target)


def _filter(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    path, strict = scene.paths.get(seen.host), _strict_filter(seen, scene)
    if path is None or strict is None:
        yield unchecked("the reverse-path filter of the data interface is not known")
        return
    if not strict:
        return
    others = [p for p in scene.paths.values() if p.host != seen.host and p.host in scene.facts]
    for other in others:
        by = scene.evidence.egress(seen.facts, other.address)
        if by and by != path.interface:
            come = next((p for p in _pairs(scene) if (p.source, p.target) == (other.host, seen.host)), None)
            names = (f"net.ipv4.conf.{name}.rp_filter=2" for name in ("all", path.interface))
            loose = f"sudo sysctl -w {quoted(*names)}"
            fix = f"on {seen.host}: {loose}  # or correct the return route"
            # Arrived packets came through the other interface.
            arrived = bool(come and come.tried and not come.faults)
            what = (
                f"the kernel {'would drop' if arrived else 'drops'} packets from {other.host} on "
                f"{path.interface}, because the return route is through {by} (rp_filter 1)"
            )
            yield (warning if arrived else error)(what, fix, subject=other.host)


def _strict_filter(seen: Seen, scene: Scene) -> bool | None:
    """Return True if a host drops packets on its data interface whose way back is another interface."""
    path, settings = scene.paths.get(seen.host), kernel_settings(seen)
    modes = [settings.get(f"conf/{name}/rp_filter", "") for name in ("all", path.interface if path else "")]
    # The larger number is in effect, and 2 means loose: ip-sysctl.rst of Linux.
    return None if "" in modes else max(modes) == "1"


def _explained(scene: Scene, one: str, other: str) -> bool:
    """Return True if links or routes, which other checks judge, make connections between two hosts fail."""
    return _cut_off(scene, one, other) or _cut_off(scene, other, one)


def _cut_off(scene: Scene, host: str, other: str) -> bool:
    link, path = scene.link(host), scene.paths[host]
    by = scene.evidence.egress(scene.facts[host], scene.paths[other].address)
    astray = by not in (None, "", "lo", path.interface)
    filtered = astray and bool(_strict_filter(scene.seen[host], scene))
    return bool(link and link.down) or by in ("", "lo") or filtered


def _open(scene: Scene) -> Iterator[Finding]:
    known = list(_pairs(scene))
    failed = {(pair.source, pair.target): pair for pair in known if pair.faults}
    # Links and routes have checks of their own, and a change of the firewall does not fix them.
    clear = sorted({tuple(sorted(key)) for key in failed if _explained(scene, *key)})
    failed = {key: pair for key, pair in failed.items() if tuple(sorted(key)) not in clear}
    for one, other_host in clear:
        yield unchecked(
            f"connections between {one} and {other_host} fail because a link is down or a route is wrong; "
            "see the checks [net-link, pair-route, pair-filter]"
        )
    for host, group, what in _grouped(failed, scene):
        first = failed[group[0]]
        back = next((p for p in known if (p.target, p.source) == group[0]), None)
        other = ""
        if len(group) == 1 and back and back.tried:
            also = "does not reach" if back.faults else "reaches"
            other = f"; {first.target} {also} {first.source}"
        yield error(f"{what}{other}", _let_in(scene, first), host, first.source)
    untried = [pair for pair in known if not pair.tried]
    if untried:
        names = ", ".join(f"{p.source} → {p.target}" for p in untried[:3])
        more = f" and {len(untried) - 3} more" if len(untried) > 3 else ""
        yield unchecked(
            f"toolkit cannot test {counted(len(untried), 'connection')} ({names}{more}): "
            "a test needs bash, python3 or the image on the host"
        )
    if any(pair.tried and not pair.listened and not pair.faults for pair in known):
        what = (
            "without a test program on each host, toolkit cannot detect a firewall that rejects connections"
        )
        yield unchecked(what, _SEND)


def _grouped(
    failed: dict[tuple[str, str], _Pair], scene: Scene
) -> Iterator[tuple[str, list[tuple[str, str]], str]]:
    """Group pairs with a common cause: all to one host, all from one host, or some to one host.

    Yields the host concerned, the pairs, and a description.
    """
    hosts = [name for name in scene.facts if name in scene.paths]
    left = dict(failed)
    for host in hosts:
        into = [key for key in left if key[1] == host]
        if len(into) == len(hosts) - 1 > 1:
            yield (
                host,
                into,
                f"no other host reaches {host} at {scene.paths[host].address}: {_how(left[into[0]], scene)}",
            )
            left = {key: pair for key, pair in left.items() if key not in into}
    for host in hosts:
        out = [key for key in left if key[0] == host]
        if len(out) == len(hosts) - 1 > 1:
            yield host, out, f"the host reaches no other host: {_how(left[out[0]], scene)}"
            left = {key: pair for key, pair in left.items() if key not in out}
    for one, other in [key for key in left if key[0] < key[1] and key[::-1] in left]:
        how = _how(left[one, other], scene)
        if how == _how(left[other, one], scene):
            yield other, [(one, other), (other, one)], f"{other} and {one} cannot reach each other: {how}"
            left = {key: pair for key, pair in left.items() if set(key) != {one, other}}
    for target in hosts:
        by_how: dict[str, list[tuple[str, str]]] = {}
        for key, pair in left.items():
            if pair.target == target:
                by_how.setdefault(_how(pair, scene), []).append(key)
        for how, keys in by_how.items():
            sources = ", ".join(source for source, _ in keys)
            verb = "does" if len(keys) == 1 else "do"
            what = f"{sources} {verb} not reach {target} ({scene.paths[target].address}): {how}"
            yield target, keys, what


def _how(pair: _Pair, scene: Scene) -> str:
    by_word: dict[str, dict[str, str]] = {}
    for kind, word in pair.faults.items():
        by_word.setdefault(word, {})[kind] = word
    return "; ".join(
        word.format(ports=_ports_text(scene, kinds, pair.tried)) for word, kinds in by_word.items()
    )


def _let_in(scene: Scene, pair: _Pair) -> str:
    """Return the command that opens the firewall of the target for the complete data network."""
    network, address = scene.paths[pair.source].network, scene.paths[pair.target].address
    lines = {
        "ufw": f"sudo ufw allow proto tcp from {network} to {address}",
        "firewall-cmd": f"sudo firewall-cmd --permanent --zone=trusted --add-source={network}; "
        "sudo firewall-cmd --reload",
        "iptables": f"sudo iptables -I INPUT -p tcp -s {network} -j ACCEPT",
    }
    line = lines[firewall_program(scene.seen.get(pair.target))]
    return (
        f"on {pair.target}: {line}  # or allow these connections in the OUTPUT chain of {pair.source} or in "
        "a firewall between the hosts"
    )


def _from_containers(scene: Scene) -> dict[str, dict[str, dict[str, Tried]]]:
    """Return results of connections from inside containers, between hosts that have a data address."""
    return {
        name: {host: ports for host, ports in looked.report.pairs.items() if host in scene.paths}
        for name, looked in scene.inside.items()
        if name in scene.paths
    }


def _untested(scene: Scene, known: Mapping[str, object]) -> Iterator[Finding]:
    """Yield the reason if no container tried a connection to another host."""
    if len(scene.facts) > 1 and not any(known.values()):
        why = next((f" ({name}: {why})" for name in scene.facts if (why := scene.no_look(name))), "")
        what = f"this check needs test programs on at least two hosts{why}"
        yield unchecked(what, _SEND)


def _large(scene: Scene) -> Iterator[Finding]:
    known = _from_containers(scene)
    yield from _untested(scene, known)
    for source, results in known.items():
        for target, ports in results.items():
            sent = ports["any"].sent if "any" in ports else None
            if sent is not None and sent < PIECES:
                mtu = link.mtu if (link := scene.link(source)) else 1500
                ask = f"ping -M do -s {mtu - 28} {quoted(scene.paths[target].address)}"
                what = (
                    f"large messages from {source} to {target} stall, but small messages arrive (MTU {mtu})"
                )
                fix = f"on {source}: {ask}  # then set a smaller MTU on all hosts, or allow ICMP in firewalls"
                yield error(what, fix, source, target)


def _seen_as(scene: Scene) -> Iterator[Finding]:
    known = _from_containers(scene)
    yield from _untested(scene, known)
    for source, results in known.items():
        for target, ports in results.items():
            seen = {result.seen for result in ports.values() if result.seen is not None}
            if strange := seen - {scene.paths[source].address}:
                what = (
                    f"connections from {source} arrive at {target} with the source address "
                    f"{', '.join(sorted(strange))} instead of {scene.paths[source].address}"
                )
                look = f"on {source}: sudo iptables -t nat -S"
                fix = f"{look}  # then exempt data addresses from NAT, also on routers"
                yield error(what, fix, source, target)


# The checks of leftovers are between these two, see ``registry``.
ROUTE_CHECKS = (
    Check(
        "pair-route", "hosts send to each other through their data interfaces", whole=_route, stage="pairs"
    ),
    Check(
        "pair-filter",
        "no host drops packets because of their return route",
        host=_filter,
        probes=(KERNEL,),
        stage="pairs",
    ),
)
CHECKS = (
    Check(
        "pair-open",
        "hosts reach each other on the ports of jobs",
        whole=_open,
        probes=(KERNEL,),
        stage="pairs",
    ),
    Check("pair-seen", "connections between hosts keep their source address", whole=_seen_as, stage="inside"),
    Check("pair-large", "large messages between hosts arrive", whole=_large, stage="inside"),
)
