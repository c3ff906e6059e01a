"""Networks on paper: links, routes, what hosts tried, what containers said; healthy, or with one fault."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from toolkit.checks.model import Scene
from toolkit.cluster.probe_containers import Looked
from toolkit.core.facts import Facts, Gid, Interface, Link, RdmaPort, Route
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import Answer, Evidence, choose
from toolkit.protocol.decode import decode
from toolkit.protocol.probes import LookReport

# As /proc/sys and the PATH of a Debian 13 host give it.
KERNEL = """\
ip_local_port_range:32768\t60999
ip_local_reserved_ports:
conf/all/rp_filter:0
conf/{0}/rp_filter:2
/usr/sbin/iptables
"""


def link(name: str, **changes: Any) -> Link:
    about: dict[str, Any] = {"state": "up", "carrier": True, "speed": 10000, "duplex": "full", "mtu": 1500}
    return Link(name, **{**about, "card": True, "packets": 10**6, **changes})


def with_links(facts: Facts) -> Facts:
    """The host as its kernel shows it: loopback, docker0 without containers, its card."""
    card = facts.interfaces[-1]
    links = (
        Link("lo", "loopback", "unknown", True, mtu=65536),
        Link("docker0", "bridge", "down", False, mtu=1500),
        link(card.name),
    )
    routes = (Route(card.name, "0.0.0.0/0", "10.77.0.1"), Route(card.name, card.network))
    return replace(facts, links=links, routes=routes)


def networked(base: Scene) -> Scene:
    """The scene of healthy hosts that share one network, with the image on all and the cluster up."""
    seen = {}
    for name, one in base.seen.items():
        assert one.facts is not None
        facts = with_links(one.facts)
        settings = KERNEL.format(facts.interfaces[-1].name)
        seen[name] = replace(one, facts=facts, answers={"network-settings": settings, **one.answers})
    return looked_at(replace(base, seen=seen))


def looked_at(scene: Scene, evidence: Evidence | None = None) -> Scene:
    """The scene with its addresses chosen, and with healthy ways and containers."""
    facts, inventory = scene.facts, scene.inventory
    choice = choose(inventory, facts, evidence or Evidence())
    routes = {
        (a, path.address): choice.paths[a].interface
        for a in choice.paths
        for b, path in choice.paths.items()
        if a != b
    }
    chosen = replace(scene, paths=choice.paths, choice=choice, evidence=evidence or Evidence({}, routes))
    return replace(chosen, inside={n: Looked(report(chosen, n), "", 0.01, 0.02, True) for n in facts})


def report(scene: Scene, host: str) -> LookReport:
    """Return the report of a test container on a healthy host of a cluster that is up."""
    facts, paths = scene.facts, scene.paths
    seen = {"answer": "open", "seen": paths[host].address} if host in paths else {}
    pair = {"master": seen, "any": {**seen, "sent": 4}}
    main = scene.inventory.main
    gpus = [f"GPU {g.index}: {g.name}" for g in facts[host].gpus]
    found = {
        "shm": 4 * 1024**3,
        "limits": {"memlock": -1, "nofile": 1048576},
        "versions": {"python": "3.11.2", "torch": "2.13.0", "libmpi": "40.30.4"},
        "names": {name: [path.address] for name, path in paths.items()},
        "gpus": gpus or None,
        "lacks": [],
        "pairs": {name: pair | {"worker": seen} for name in facts if name != host},
        "shared": {"/out": [host]},
        "mounts": {},
        "faults": {},
        "logins": {n: {"memlock": -1, "nofile": 1048576} for n in facts if n != main} if host == main else {},
    }
    return _decoded(json.dumps(found))


@functools.cache
def _decoded(text: str) -> LookReport:
    """Decode a report; most scenes have the same ones."""
    return decode(LookReport, json.loads(text))


def with_facts(scene: Scene, host: str, **changes: Any) -> Scene:
    """Other facts of one host, and everything that follows from them."""
    one = scene.seen[host]
    assert one.facts is not None
    return looked_at(
        replace(scene, seen={**scene.seen, host: replace(one, facts=replace(one.facts, **changes))})
    )


def with_link(scene: Scene, host: str, **changes: Any) -> Scene:
    """Another state of one host's data link; the cluster's addresses were settled before."""
    return with_other_link(scene, host, scene.paths[host].interface, **changes)


def with_other_link(scene: Scene, host: str, name: str, **changes: Any) -> Scene:
    """Another state of one interface of a host; the cluster's addresses were settled before."""
    facts = scene.facts[host]
    links = tuple(replace(one, **changes) if one.name == name else one for one in facts.links)
    given = settle(scene.inventory, {n: p.address for n, p in scene.paths.items()})
    return with_facts(replace(scene, inventory=given), host, links=links)


def settle(inventory: Inventory, addresses: Mapping[str, str]) -> Inventory:
    hosts = tuple(replace(h, data_address=addresses.get(h.name, "")) for h in inventory.hosts)
    return replace(inventory, hosts=hosts)


def with_address(scene: Scene, host: str, interface: str, address: str, prefix: int = 24) -> Scene:
    """One more interface with an address on a host, as good as the first."""
    facts = scene.facts[host]
    return with_facts(
        scene,
        host,
        interfaces=(*facts.interfaces, Interface(interface, address, prefix)),
        links=(*facts.links, link(interface)),
    )


def with_rdma(scene: Scene, *hosts: str, **changes: Any) -> Scene:
    """An active InfiniBand port on these hosts, or one that differs in ``changes``."""
    base = RdmaPort("mlx5_0", 1, "mlx5_core", "ACTIVE", "InfiniBand", 100.0, ("ib0",))
    for host in hosts:
        nodes = ("/dev/infiniband/uverbs0",)
        scene = with_facts(scene, host, rdma=(replace(base, **changes),), infiniband=nodes)
    return scene


def with_roce(scene: Scene, **changes: Any) -> Scene:
    """Two RoCE ports of one card on every host, in separate networks; ``changes`` are of the links."""
    facts = dict(scene.facts)
    for number, (name, one) in enumerate(facts.items(), 1):
        ports, own, links, routes = [], [], [], []
        for index in (0, 1):
            at, net = f"ens9f{index}", f"192.168.{index}"
            gid = Gid(3, "RoCE v2", f"{net}.{number}", at)
            ports.append(RdmaPort(f"roce{index}", 1, "mlx5_core", "ACTIVE", "Ethernet", 200.0, (at,), (gid,)))
            own.append(Interface(at, gid.address, 24))
            links.append(link(at, **{"speed": 200000, "mtu": 9000, **changes}))
            routes.append(Route(at, f"{net}.0/24"))
        facts[name] = replace(
            one,
            rdma=tuple(ports),
            infiniband=("/dev/infiniband/uverbs0",),
            interfaces=(*one.interfaces, *own),
            links=(*one.links, *links),
            routes=(*one.routes, *routes),
        )
    return looked_at(replace(scene, seen={n: replace(scene.seen[n], facts=facts[n]) for n in facts}))


def readdressed(scene: Scene, host: str, *addresses: tuple[str, str]) -> Scene:
    """Other addresses of the RoCE ports of one host, as (interface, address)."""
    kept = tuple(i for i in scene.facts[host].interfaces if not i.name.startswith("ens9"))
    given = (Interface(name, at, 16 if at.startswith("169.") else 24) for name, at in addresses)
    return with_facts(scene, host, interfaces=(*kept, *given))


def with_vlans(scene: Scene, host: str, *addresses: str, gids: bool = True) -> Scene:
    """The addresses of the RoCE ports of one host are those of a VLAN above each; no address, or these."""
    facts = scene.facts[host]
    names = {f"ens9f{index}": f"ens9f{index}.100" for index in (0, 1)}
    above = tuple(link(name, lower=(below,), vlan=True, card=False) for below, name in names.items())
    given = {name: address for name, address in zip(names.values(), addresses, strict=False) if address}
    ports = tuple(
        replace(
            port,
            gids=tuple(
                Gid(20, "RoCE v2", given[names[name]], names[name])
                for name in port.interfaces
                if gids and names[name] in given
            ),
        )
        for port in facts.rdma
    )
    scene = with_facts(scene, host, links=(*facts.links, *above), rdma=ports)
    return readdressed(scene, host, *given.items())


def plain(scene: Scene, bad: Mapping[tuple[str, str, int], Answer]) -> Scene:
    """Return a scene without the image: results of the hosts; ports without a listener are refused."""
    tries: dict[tuple[str, str, int], Answer] = {
        (a, path.address, port): bad.get((a, b, port), "refused")
        for a in scene.paths
        for b, path in scene.paths.items()
        if a != b
        for port in (12345, 29500, 45000)
    }
    evidence = Evidence(tries, scene.evidence.routes)
    absent = dict.fromkeys(scene.facts, "the host does not have the image")
    return replace(scene, evidence=evidence, inside={}, outside=absent)


def with_route(scene: Scene, host: str, to: str, interface: str) -> Scene:
    routes = {**scene.evidence.routes, (host, scene.paths[to].address): interface}
    return replace(scene, evidence=replace(scene.evidence, routes=routes))


def as_json(report: LookReport) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(asdict(report)))
    return found


def with_inside(scene: Scene, host: str, **changes: Any) -> Scene:
    """Something else in the report of one host's container."""
    looked = scene.inside[host]
    report = decode(LookReport, {**as_json(looked.report), **changes})
    return replace(scene, inside={**scene.inside, host: replace(looked, report=report)})


def with_pair(scene: Scene, source: str, target: str, **changes: Any) -> Scene:
    """Another result of one ordered pair, for these kinds of port."""
    pairs = as_json(scene.inside[source].report)["pairs"]
    pair = {kind: {**told, **changes.get(kind, {})} for kind, told in pairs[target].items()}
    return with_inside(scene, source, pairs={**pairs, target: pair})


def without_looks(scene: Scene, why: str = "--quick skips the test programs") -> Scene:
    return replace(scene, inside={}, outside=dict.fromkeys(scene.facts, why))


def with_looked(scene: Scene, host: str, looked: Looked) -> Scene:
    return replace(scene, inside={**scene.inside, host: looked})
