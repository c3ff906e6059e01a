"""Checks of the routes between hosts: by which interface a kernel sends, and what it drops for that."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks.model import Check, Scene, Seen, error, unchecked, warning
from toolkit.checks.pairs import pairs
from toolkit.checks.ports import KERNEL, kernel_settings
from toolkit.core.command import quoted
from toolkit.core.facts import rate_text
from toolkit.core.finding import Finding
from toolkit.network.candidates import link_rate


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
    path, strict = scene.paths.get(seen.host), strict_filter(seen, scene)
    if path is None or strict is None:
        yield unchecked("whether its kernel drops packets by their way back is not known")
        return
    if not strict:
        return
    others = [p for p in scene.paths.values() if p.host != seen.host and p.host in scene.facts]
    for other in others:
        by = scene.evidence.egress(seen.facts, other.address)
        if by and by != path.interface:
            come = next((p for p in pairs(scene) if (p.source, p.target) == (other.host, seen.host)), None)
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


def strict_filter(seen: Seen, scene: Scene) -> bool | None:
    """Tell whether a host drops what comes in by its data interface and would be answered by another one."""
    path, settings = scene.paths.get(seen.host), kernel_settings(seen)
    modes = [settings.get(f"conf/{name}/rp_filter", "") for name in ("all", path.interface if path else "")]
    # The stricter of the two counts, and 2 (loose) is the larger number: ip-sysctl.rst of Linux.
    return None if "" in modes else max(modes) == "1"


def explained(scene: Scene, one: str, other: str) -> bool:
    """Tell whether links and routes, which other checks judge, make connections between two hosts fail."""
    return _cut_off(scene, one, other) or _cut_off(scene, other, one)


def _cut_off(scene: Scene, host: str, other: str) -> bool:
    link, path = scene.link(host), scene.paths[host]
    by = scene.evidence.egress(scene.facts[host], scene.paths[other].address)
    astray = by not in (None, "", "lo", path.interface)
    filtered = astray and bool(strict_filter(scene.seen[host], scene))
    return bool(link and link.down) or by in ("", "lo") or filtered


CHECKS = (
    Check("pair-route", "hosts send to each other by their data interfaces", whole=_route, stage="pairs"),
    Check(
        "pair-filter", "kernels drop nothing for its way back", host=_filter, probes=(KERNEL,), stage="pairs"
    ),
)
