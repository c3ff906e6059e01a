"""Checks of the ways between hosts: every ordered pair, on the ports that jobs use."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks.model import Check, Scene, error, unchecked
from toolkit.checks.pairs import Pair, pairs, ports_text
from toolkit.checks.ports import KERNEL, firewall_program
from toolkit.checks.routes import explained
from toolkit.core.command import quoted
from toolkit.core.finding import Finding
from toolkit.protocol.large_messages import PIECES
from toolkit.protocol.looks import Tried


def _open(scene: Scene) -> Iterator[Finding]:
    known = list(pairs(scene))
    failed = {(pair.source, pair.target): pair for pair in known if pair.faults}
    # Links and routes have checks of their own, and no firewall is to blame for them.
    clear = sorted({tuple(sorted(key)) for key in failed if explained(scene, *key)})
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
    failed: dict[tuple[str, str], Pair], scene: Scene
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


def _how(pair: Pair, scene: Scene) -> str:
    by_word: dict[str, dict[str, str]] = {}
    for kind, word in pair.faults.items():
        by_word.setdefault(word, {})[kind] = word
    return "; ".join(f"{ports_text(scene, kinds, pair.tried)} {w}" for w, kinds in by_word.items())


def _let_in(scene: Scene, pair: Pair) -> str:
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
