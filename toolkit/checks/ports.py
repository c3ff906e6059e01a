"""Checks of the ports that jobs use, on each host separately."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks.model import Check, Probe, Scene, Seen, error, unchecked, warning
from toolkit.cluster.ports import FIRST_MASTER_PORT, MASTER_PORTS, port_holder
from toolkit.core.command import quoted
from toolkit.core.finding import Finding
from toolkit.protocol.decode import whole
from toolkit.protocol.frames import lines_of

KERNEL = Probe(
    "network-settings",
    # Not the shell's read: the kernel gives a second read of such a file nothing, and shells read each byte.
    r"""
cd /proc/sys/net/ipv4 && grep -sH '' ip_local_port_range ip_local_reserved_ports conf/*/rp_filter
PATH="$PATH:/usr/sbin:/sbin"
for name in firewall-cmd ufw iptables; do command -v "$name"; done
""",
)


def kernel_settings(seen: Seen) -> dict[str, str]:
    """Return the kernel's settings below net.ipv4, such as ``conf/eth0/rp_filter``; empty when unknown."""
    rows = (line.partition(":") for line in lines_of(seen.answer(KERNEL)) if ":" in line)
    return {name: value.strip() for name, _, value in rows}


def firewall_program(seen: Seen | None) -> str:
    """Return the command that configures a host's firewall; iptables if none was found."""
    names = [line.rpartition("/")[2] for line in lines_of(seen.answer(KERNEL))] if seen else []
    return next((name for name in ("firewall-cmd", "ufw") if name in names), "iptables")


def _taken(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    path, inventory = scene.paths.get(seen.host), scene.inventory
    if path is None:
        yield unchecked("the data address is not known")
        return
    # If the file names no port, toolkit uses another one automatically.
    fixed = inventory.worker_port_fixed and seen.host != inventory.main
    if fixed and (holder := port_holder(inventory, seen.facts, path.address, inventory.worker_port)):
        what = f"{holder} uses port {inventory.worker_port}, the worker_port in hosts.yaml"
        fix = f"in hosts.yaml: remove worker_port  # or free the port on {seen.host}"
        yield error(what, fix, subject=str(inventory.worker_port))


def _given_out(seen: Seen, scene: Scene) -> Iterator[Finding]:
    settings = kernel_settings(seen)
    words = settings.get("ip_local_port_range", "").split()
    low, high = (whole(word, 65535) for word in words) if len(words) == 2 else (None, None)
    if low is None or high is None:
        yield unchecked("toolkit cannot read the kernel's ephemeral port range")
        return
    before = settings.get("ip_local_reserved_ports", "")
    reserved = _ranges(before)
    used = {(FIRST_MASTER_PORT, FIRST_MASTER_PORT + MASTER_PORTS - 1): "MASTER_PORT of jobs"}
    if not scene.inventory.in_parts:
        used = {(scene.port, scene.port): "sshd of the worker containers", **used}
    names = {span: str(span[0]) if span[0] == span[1] else f"{span[0]}-{span[1]}" for span in used}
    for (first, last), use in used.items():
        given_out = range(max(first, low), min(last, high) + 1)
        if any(not any(begin <= port <= end for begin, end in reserved) for port in given_out):
            name = names[first, last]
            ports = "port" if first == last else "ports"
            what = (
                f"other programs can use {ports} {name} ({use}), "
                f"because the kernel's ephemeral port range is {low} to {high}"
            )
            keep = ",".join((*filter(None, (before,)), *names.values()))
            fix = f"on {seen.host}: sudo sysctl -w {quoted(f'net.ipv4.ip_local_reserved_ports={keep}')}"
            yield warning(what, fix, subject=name)


def _ranges(text: str) -> list[tuple[int, int]]:
    pieces = re.findall(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", text)
    return [(int(first), int(last or first)) for first, last in pieces]


CHECKS = (
    Check("net-worker-port", "no program blocks the port of the worker containers", host=_taken),
    Check(
        "net-port-range",
        "the kernel does not assign ports of the cluster to other programs",
        host=_given_out,
        probes=(KERNEL,),
    ),
)
