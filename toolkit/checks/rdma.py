"""Checks of InfiniBand, RoCE and EFA: all hosts have the same devices, and their ports are active."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks.model import Check, Scene, Seen, error, unchecked, warning
from toolkit.core.command import quoted
from toolkit.core.finding import Finding
from toolkit.network.candidates import is_link_local
from toolkit.protocol.host_list import host_list

# Bytes. A RoCE packet of 4096 bytes has up to 96 bytes of headers (iboe_get_mtu in include/rdma/ib_addr.h);
# NVIDIA's article "MTU Considerations for RoCE based Applications" rounds the sum to 4200.
_ROCE_MTU = 4200
_TO_TCP = (
    "toolkit network explain  # lists the RDMA ports; to use TCP without this warning, "
    "set network: ethernet in hosts.yaml"
)
_LOOK = "ls /sys/class/infiniband; cat /sys/class/infiniband/*/ports/*/state"


def _common(scene: Scene) -> Iterator[Finding]:
    fabric = scene.fabric
    if fabric.required and fabric.lacking:
        for name in fabric.lacking:
            if fabric.kind == "efa":
                why = "the host has no EFA device"
            elif not fabric.ports.get(name):
                why = "the host has no usable InfiniBand or RoCE port"
            else:
                why = "some hosts have only InfiniBand, and others only RoCE"
            fix = f"on {name}: {_LOOK}  # or in hosts.yaml: set network: auto"
            yield error(f"hosts.yaml sets network: {scene.inventory.network}, but {why}", fix, name)
    elif fabric.kind == "tcp only" and scene.inventory.network == "auto":
        who = host_list(fabric.lacking)
        fix = f"on {fabric.lacking[0]}: {_LOOK}" if fabric.lacking else _TO_TCP
        yield warning(f"{fabric.reason}, so all hosts use TCP", fix, "", who)


def _ports(scene: Scene) -> Iterator[Finding]:
    active = {p.name for facts in scene.facts.values() for p in facts.rdma if p.active}
    for name, facts in scene.facts.items():
        for port in facts.rdma:
            if port.state == "INIT":
                what = (
                    f"{port.name} has the state INIT: a cable is connected, but no subnet manager responded"
                )
                fix = f"on {name}: sudo opensm -B  # or start a subnet manager on the switch"
                yield warning(what, fix, name, port.name)
            elif not port.active and port.name in active:
                state = f"{port.name} has the state {port.state or 'unknown'}"
                what = f"{state}, but a port of this name is ACTIVE on another host"
                yield warning(what, f"on {name}: {_LOOK}  # then check the cable", name, port.name)


def _rates(scene: Scene) -> Iterator[Finding]:
    ports = scene.fabric.ports
    rates = {name: f"{len(own)} × {own[0].rate:g} Gb/s" for name, own in ports.items() if own}
    if len(set(rates.values())) > 1:
        rows = ", ".join(f"{name} {text}" for name, text in rates.items())
        effect = "NCCL can fail or run at the speed of the slowest port"
        what = f"{effect}, because RDMA ports differ between hosts: {rows}"
        yield warning(
            what,
            "in hosts.yaml: set NCCL_IB_HCA in hosts/NAME/env of each host, so that all hosts use the same "
            "number of ports with the same speed",
        )


def _mtu(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    ports = scene.fabric.ports.get(seen.host, ()) if scene.fabric.kind == "roce" else ()
    for name in sorted({name for port in ports for name in port.interfaces}):
        link = seen.facts.link(name)
        if link and 0 < link.mtu < _ROCE_MTU:
            what = f"{name} has MTU {link.mtu}, but RoCE packets of 4096 bytes need MTU {_ROCE_MTU} or more"
            line = f"sudo ip link set {quoted(name)} mtu 9000"
            yield warning(
                what, f"on {seen.host}: {line}  # set this MTU on all hosts and on the switch", subject=name
            )


def _unused(scene: Scene) -> Iterator[Finding]:
    ports = scene.fabric.ports if scene.fabric.kind == "roce" else {}
    shared = {one.network for one in scene.choice.shared}
    for host, used in ports.items():
        facts = scene.facts[host]
        # The address of a port below a bond or a bridge belongs to the bond or the bridge.
        below = {name for link in facts.links if not link.vlan for name in link.lower}
        for port in facts.rdma:
            as_fast = port.active and port.rate == used[0].rate and not below.intersection(port.interfaces)
            if not as_fast or port in used:
                continue
            addressed = port.addressed(facts)
            own = [i for i in facts.interfaces if i.name in addressed]
            what = f"ranks do not use the RDMA port {port.name}"
            if all(is_link_local(i.address) for i in own):
                # A VLAN above the port is meant to have the address.
                vlans = sorted(addressed.difference(port.interfaces))
                name = next(iter((*(i.name for i in own), *vlans, *port.interfaces)), "INTERFACE")
                has = f"has only the link-local address {own[0].address}" if own else "has no IPv4 address"
                line = f"sudo ip addr add ADDRESS/PREFIX dev {quoted(name)}"
                fix = f"on {host}: {line}  # on all hosts, set addresses in one network for this port"
                yield warning(f"{what} ({port.rate:g} Gb/s): {name} {has}", fix, host, port.name)
            elif shared.intersection(i.network for i in own):
                fix = (
                    f"on {host}: ip -4 addr  # then use RDMA ports of the same speed on all hosts, the first "
                    "ports in one network, and the second ports in another network"
                )
                yield warning(
                    f"{what}, because NCCL would connect ports in different networks", fix, host, port.name
                )


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
    Check("rdma", "all hosts use the same network fabric", whole=_common),
    Check("rdma-ports", "no RDMA port is active on one host and down on another host", whole=_ports),
    Check("rdma-rates", "the RDMA ports that ranks use have the same speed", whole=_rates),
    Check("rdma-unused", "ranks use the fast RoCE ports", whole=_unused),
    Check("rdma-mtu", f"the RoCE ports that ranks use have MTU {_ROCE_MTU} or more", host=_mtu),
    Check(
        "rdma-devices", "hosts with RDMA devices have /dev/infiniband/uverbs* for containers", host=_devices
    ),
)
