"""Checks of the connections between hosts: every ordered pair, on the ports that jobs use, and its route.

Connections from inside containers count; if a pair has none, those from the hosts themselves.
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
from toolkit.network.candidates import link_rate
from toolkit.protocol.large_messages import PIECES
from toolkit.protocol.looks import Tried

# In what words a connection failed. A refusal is a fault only where one of our programs listened.
_FAULTS = {
    "timeout": f"dropped, no answer within {CONNECT_SECONDS:g} s",
    "unreachable": "rejected as unreachable",
    "mute": "opened, then silent",
    "stranger": "answered by another program",
}
_REJECTED = "rejected, though a program listens there"


@dataclass(frozen=True)
class _Pair:
    """One ordered pair.

    Args:
        tried: what came of each kind of port: ``worker``, ``master``, ``any``; empty when nothing was tried.
        listened: whether a program of ours listened on the far side.
        faults: for each kind that failed how it did, in words.
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
    """Yield every ordered pair of hosts that answered and have an address for ranks."""
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
    address = scene.paths[target].address
    return {
        _kind(scene, port): answer
        for (host, to, port), answer in scene.evidence.tries.items()
        if (host, to) == (source, address)
    }


def _kind(scene: Scene, port: int) -> str:
    if port == scene.port:
        return "worker"
    return "master" if FIRST_MASTER_PORT <= port < FIRST_EPHEMERAL_PORT else "any"


def _ports_text(scene: Scene, kinds: Mapping[str, str], tried: Mapping[str, str]) -> str:
    """Return the ports of these kinds for people."""
    names = {
        "worker": f"port {scene.port}",
        "master": f"port {FIRST_MASTER_PORT}",
        "any": "ports that the kernel gives out",
    }
    return "all ports" if len(kinds) == len(tried) > 1 else " and ".join(names[kind] for kind in kinds)


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
                yield unchecked(f"its routes are not known, that to {where} among them", "", source, target)
            elif not by:
                yield error(f"it has no route to {where}", f"on {source}: {look}", source, target)
            elif by == "lo":
                what = f"it takes the address of {where} for its own"
                yield error(what, f"on {source}: ip addr; {look}", source, target)
            elif by != own.interface:
                rates = (link_rate(facts, by), link_rate(facts, own.interface))
                slow = f", which carries {rate_text(rates[0])}" if 0 < rates[0] < rates[1] else ""
                what = f"it sends to {where} by {by}{slow}, not by its data interface {own.interface}"
                fix = f"on {source}: sudo ip route del what leads there: {look}"
                yield warning(what, fix, source, target)


def _filter(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    path, strict = scene.paths.get(seen.host), _strict_filter(seen, scene)
    if path is None or strict is None:
        yield unchecked("whether its kernel drops packets by their way back is not known")
        return
    if not strict:
        return
    others = [p for p in scene.paths.values() if p.host != seen.host and p.host in scene.facts]
    for other in others:
        by = scene.evidence.egress(seen.facts, other.address)
        if by and by != path.interface:
            come = next((p for p in _pairs(scene) if (p.source, p.target) == (other.host, seen.host)), None)
            how = (
                f"what comes from {other.host} by {path.interface}, since it answers by {by} (rp_filter is 1)"
            )
            names = (f"net.ipv4.conf.{name}.rp_filter=2" for name in ("all", path.interface))
            loose = f"sudo sysctl -w {quoted(*names)}"
            fix = f"on {seen.host}: {loose}; or mend the route"
            if come and come.tried and not come.faults:
                # It came by the other interface, this time.
                yield warning(f"its kernel would drop {how}", fix, subject=other.host)
            else:
                yield error(f"its kernel drops {how}", fix, subject=other.host)


def _strict_filter(seen: Seen, scene: Scene) -> bool | None:
    """Tell whether a host drops what comes in by its data interface and would be answered by another one."""
    path, settings = scene.paths.get(seen.host), kernel_settings(seen)
    modes = [settings.get(f"conf/{name}/rp_filter", "") for name in ("all", path.interface if path else "")]
    # The stricter of the two counts, and 2 (loose) is the larger number: ip-sysctl.rst of Linux.
    return None if "" in modes else max(modes) == "1"


def _explained(scene: Scene, one: str, other: str) -> bool:
    """Tell whether links and routes, which other checks judge, make connections between two hosts fail."""
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
    # Links and routes have checks of their own, and no firewall is to blame for them.
    clear = sorted({tuple(sorted(key)) for key in failed if _explained(scene, *key)})
    failed = {key: pair for key, pair in failed.items() if tuple(sorted(key)) not in clear}
    for one, other_host in clear:
        yield unchecked(
            f"connections of {one} and {other_host} fail for what is said of their links and routes"
        )
    for host, group, what in _grouped(failed, scene):
        first = failed[group[0]]
        back = next((p for p in known if (p.target, p.source) == group[0]), None)
        other = ""
        if len(group) == 1 and back and back.tried:
            also = "fails too" if back.faults else "is open"
            other = f"; {first.target} → {first.source} {also}"
        yield error(f"{what}{other}", _let_in(scene, first), host, first.source)
    untried = [pair for pair in known if not pair.tried]
    if untried:
        names = ", ".join(f"{p.source} → {p.target}" for p in untried[:3])
        more = f" and {len(untried) - 3} more" if len(untried) > 3 else ""
        yield unchecked(f"not tried: {names}{more}; these hosts have neither bash, python3 nor the image")
    if any(pair.tried and not pair.listened and not pair.faults for pair in known):
        what = "hosts answer each other; a firewall that rejects cannot be told before a container listens"
        yield unchecked(what, "toolkit image send, then toolkit check")


def _grouped(
    failed: dict[tuple[str, str], _Pair], scene: Scene
) -> Iterator[tuple[str, list[tuple[str, str]], str]]:
    """Put pairs together that have one cause: all into a host, all out of one, else those into one.

    Yields the host concerned, the pairs, and what happened in words.
    """
    hosts = [name for name in scene.facts if name in scene.paths]
    left = dict(failed)
    for host in hosts:
        into = [key for key in left if key[1] == host]
        if len(into) == len(hosts) - 1 > 1:
            yield (
                host,
                into,
                f"nobody reaches it at {scene.paths[host].address}: {_how(left[into[0]], scene)}",
            )
            left = {key: pair for key, pair in left.items() if key not in into}
    for host in hosts:
        out = [key for key in left if key[0] == host]
        if len(out) == len(hosts) - 1 > 1:
            yield host, out, f"it reaches nobody: {_how(left[out[0]], scene)}"
            left = {key: pair for key, pair in left.items() if key not in out}
    for one, other in [key for key in left if key[0] < key[1] and key[::-1] in left]:
        how = _how(left[one, other], scene)
        if how == _how(left[other, one], scene):
            yield other, [(one, other), (other, one)], f"it and {one} do not reach each other: {how}"
            left = {key: pair for key, pair in left.items() if set(key) != {one, other}}
    for target in hosts:
        by_how: dict[str, list[tuple[str, str]]] = {}
        for key, pair in left.items():
            if pair.target == target:
                by_how.setdefault(_how(pair, scene), []).append(key)
        for how, keys in by_how.items():
            sources = ", ".join(source for source, _ in keys)
            yield target, keys, f"{sources} → {target} ({scene.paths[target].address}): {how}"


def _how(pair: _Pair, scene: Scene) -> str:
    by_word: dict[str, dict[str, str]] = {}
    for kind, word in pair.faults.items():
        by_word.setdefault(word, {})[kind] = word
    return "; ".join(f"{_ports_text(scene, kinds, pair.tried)} {w}" for w, kinds in by_word.items())


def _let_in(scene: Scene, pair: _Pair) -> str:
    """The line that opens the far side's firewall for the whole data network, as jobs need it."""
    network, address = scene.paths[pair.source].network, scene.paths[pair.target].address
    lines = {
        "ufw": f"sudo ufw allow proto tcp from {network} to {address}",
        "firewall-cmd": f"sudo firewall-cmd --permanent --zone=trusted --add-source={network}; "
        "sudo firewall-cmd --reload",
        "iptables": f"sudo iptables -I INPUT -p tcp -s {network} -j ACCEPT",
    }
    line = lines[firewall_program(scene.seen.get(pair.target))]
    return f"on {pair.target}: {line}; or the same for OUTPUT on {pair.source}, or what stands between them"


def _told(scene: Scene) -> dict[str, dict[str, dict[str, Tried]]]:
    """Results of connections from inside containers, between hosts that have an address for ranks."""
    return {
        name: {host: ports for host, ports in looked.report.pairs.items() if host in scene.paths}
        for name, looked in scene.inside.items()
        if name in scene.paths
    }


def _large(scene: Scene) -> Iterator[Finding]:
    known = _told(scene)
    if len(scene.facts) > 1 and not any(known.values()):
        yield unchecked("needs the image on two hosts: toolkit image send")
    for source, told in known.items():
        for target, ports in told.items():
            sent = ports["any"].sent if "any" in ports else None
            if sent is not None and sent < PIECES:
                mtu = link.mtu if (link := scene.link(source)) else 1500
                ask = f"ping -M do -s {mtu - 28} {quoted(scene.paths[target].address)}"
                what = f"{source} → {target}: small messages pass, large ones stall (MTU {mtu} here)"
                fix = f"on {source}: {ask}; a smaller MTU on all hosts, or let ICMP pass between them"
                yield error(what, fix, source, target)


def _seen_as(scene: Scene) -> Iterator[Finding]:
    known = _told(scene)
    if len(scene.facts) > 1 and not any(known.values()):
        yield unchecked("needs the image on two hosts: toolkit image send")
    for source, told in known.items():
        for target, ports in told.items():
            seen = {result.seen for result in ports.values() if result.seen is not None}
            if strange := seen - {scene.paths[source].address}:
                what = f"{target} sees {source} as {', '.join(sorted(strange))}: its address is translated"
                fix = (
                    f"on {source}, and on what stands between: sudo iptables -t nat -S; spare data addresses"
                )
                yield error(what, fix, source, target)


# The checks of leftovers are between these two, see ``registry``.
ROUTE_CHECKS = (
    Check("pair-route", "hosts send to each other by their data interfaces", whole=_route, stage="pairs"),
    Check(
        "pair-filter", "kernels drop nothing for its way back", host=_filter, probes=(KERNEL,), stage="pairs"
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
    Check("pair-seen", "hosts see each other under their own addresses", whole=_seen_as, stage="inside"),
    Check("pair-large", "large messages pass", whole=_large, stage="inside"),
)
