"""Checks of InfiniBand, RoCE and EFA: all hosts have the same devices, and their ports are active."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks.model import Check, Scene, Seen, error, unchecked, warning
from toolkit.core.finding import Finding
from toolkit.network.fabric import Fabric, choose_fabric

_LOOK = "ls /sys/class/infiniband; cat /sys/class/infiniband/*/ports/*/state"


def _fabric(scene: Scene) -> Fabric:
    return choose_fabric(scene.inventory.network, scene.facts)


def _common(scene: Scene) -> Iterator[Finding]:
    fabric = _fabric(scene)
    if fabric.required and fabric.lacking:
        what = "EFA device" if fabric.kind == "efa" else "active InfiniBand or RoCE port that all hosts share"
        for name in fabric.lacking:
            fix = f"on {name}: {_LOOK}  # or in hosts.yaml: network: auto"
            yield error(
                f"hosts.yaml requires network: {scene.inventory.network}, but the host has no {what}",
                fix,
                name,
            )
    elif fabric.kind == "tcp only" and scene.inventory.network == "auto":
        who = ", ".join(fabric.lacking) or "the hosts together"
        fix = f"on {fabric.lacking[0]}: {_LOOK}" if fabric.lacking else "in hosts.yaml: set network:"
        yield warning(f"{fabric.reason}, so all hosts use TCP", fix, "", who)


def _ports(scene: Scene) -> Iterator[Finding]:
    active = {p.name for facts in scene.facts.values() for p in facts.rdma if p.active}
    for name, facts in scene.facts.items():
        for port in facts.rdma:
            if port.state == "INIT":
                what = (
                    f"{port.name} has the state INIT: a cable is connected, but no subnet manager responded"
                )
                fix = f"on {name}: sudo opensm -B  # or start a subnet manager in the switch"
                yield warning(what, fix, name, port.name)
            elif not port.active and port.name in active:
                what = f"{port.name} has the state {port.state or 'unknown'}, but is ACTIVE on other hosts"
                yield warning(what, f"on {name}: {_LOOK}  # then check the cable", name, port.name)


def _rates(scene: Scene) -> Iterator[Finding]:
    ports = _fabric(scene).ports
    rates = {name: f"{len(own)} × {own[0].rate:g} Gb/s" for name, own in ports.items() if own}
    if len(set(rates.values())) > 1:
        rows = ", ".join(f"{name} {text}" for name, text in rates.items())
        what = f"NCCL can fail or use the slowest port, because RDMA ports differ between hosts: {rows}"
        yield warning(what, "in hosts.yaml: set NCCL_IB_HCA under hosts/NAME/env to ports that match")


def _devices(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    nodes = [node for node in seen.facts.infiniband if "/uverbs" in node]
    if not seen.facts.rdma:
        return
    if not nodes:
        what = f"the host has {seen.facts.rdma[0].device}, but no /dev/infiniband/uverbs* for containers"
        yield error(what, f"on {seen.host}: sudo modprobe -a ib_uverbs rdma_ucm")
    elif not any(port.active for port in seen.facts.rdma):
        yield unchecked("no port of the host's RDMA devices is active")


CHECKS = (
    Check("rdma", "hosts have the same fabric", whole=_common),
    Check("rdma-ports", "RDMA ports are active", whole=_ports),
    Check("rdma-rates", "RDMA ports have the same speed", whole=_rates),
    Check("rdma-devices", "containers can use the RDMA devices", host=_devices),
)
