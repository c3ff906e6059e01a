"""Ports on a host: free ones for jobs and for sshd of worker containers, and the holder of a port."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from toolkit.cluster.ownership import with_processes
from toolkit.core.facts import Facts
from toolkit.core.printable import printable_line
from toolkit.errors import NotReady
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import DataPath
from toolkit.protocol.decode import whole
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_OWNER, LABEL_PORT, WORKER, container_name

_ANY = ("0.0.0.0", "::")
# Below Linux' ephemeral range (32768 and up), so that no outgoing connection takes it by chance.
FIRST_MASTER_PORT = 29500
# A job starts its search at one of this number of ports above the first.
MASTER_PORTS = 2048
# The search after a lost race: the number of ports of a cluster's own, and the range that contains them.
_OWN_PORTS, _OWN_RANGE = 64, 4096


def free_port(first: int, facts: Facts, address: str) -> int:
    """Return the first port from ``first`` up without a listener at this address."""
    taken = {port for a, port in facts.listening if a in (*_ANY, address)}
    return next((port for port in range(first, 65536) if port not in taken), first)


def master_port(job: str, facts: Facts, address: str) -> int:
    """Return a job's MASTER_PORT on its first host: free, and unlikely that of another new job.

    The search starts at a number made from the job's id, so that two jobs that start in the same second,
    and see the same free ports, take different ones.
    """
    return free_port(FIRST_MASTER_PORT + _number(job) % MASTER_PORTS, facts, address)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def worker_port(
    inventory: Inventory,
    facts: Mapping[str, Facts],
    paths: Mapping[str, DataPath],
    lost: Collection[int] = (),
) -> int:
    """Return the port for sshd in worker containers, the same on all hosts; 0 without sshd.

    Args:
        facts: of the hosts that answered.
        paths: at least of these hosts.
        lost: ports that were free in the probe, but taken when sshd started.

    Raises:
        NotReady: the file's port is taken on a worker, or no port is free on all of them.
    """
    if inventory.in_parts:
        return 0
    workers = [facts[name] for name in inventory.workers if name in facts]
    present = Counter(port for f in workers if (port := _held_port(inventory.cluster, f)))
    if inventory.worker_port_fixed:
        for f in workers:
            if who := port_holder(inventory, f, paths[f.host].address, inventory.worker_port):
                what = f"port {inventory.worker_port} on {paths[f.host].address} is held by {who}"
                raise NotReady(
                    what, f"in hosts.yaml: remove worker_port  # or free the port on {f.host}", f.host
                )
        return inventory.worker_port
    # The port of most hosts, so that a returning host joins the others, and no single host moves the others.
    held = sorted(present, key=lambda port: (-present[port], port))
    first = _after_a_race(inventory, facts) if lost else held
    candidates: list[int] = [*first, *range(inventory.worker_port, 65536)]
    for port in candidates:
        if port not in lost and not any(
            port_holder(inventory, f, paths[f.host].address, port) for f in workers
        ):
            return port
    raise NotReady(
        f"no port from {inventory.worker_port} to 65535 is free on every worker host",
        "in hosts.yaml: set worker_port: to a lower port that is free on all worker hosts",
    )


def _after_a_race(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[int]:
    """Yield ports in an order made from owner and cluster, so that two clusters rarely collide again."""
    owner = next((f.user for f in facts.values()), "")
    for number in range(_OWN_PORTS):
        own = _number(f"{owner}/{inventory.cluster}/{number}")
        yield inventory.worker_port + 1 + own % min(_OWN_RANGE, 65535 - inventory.worker_port)


def port_holder(inventory: Inventory, facts: Facts, address: str, port: int) -> str:
    """Return the program that listens on a worker's address and port; empty if none, or the own sshd."""
    if _held_port(inventory.cluster, facts) == port:
        return ""
    if not any(p == port and a in (*_ANY, address) for a, p in facts.listening):
        return ""
    for c in facts.containers:
        if c.state == "running" and c.labels.get(LABEL_PORT) == str(port):
            whose = f"cluster {c.labels.get(LABEL_CLUSTER, '?')} of user {c.labels.get(LABEL_OWNER, '?')}"
            return printable_line(f"{whose} (container {c.name})")
    return f"another program (to list the program, on {facts.host}: sudo ss -ltnp 'sport = :{port}')"


def _held_port(cluster: str, facts: Facts) -> int:
    # The sshd of a paused container keeps its port.
    name = container_name(cluster, WORKER)
    container = next((c for c in with_processes(cluster, facts) if c.name == name), None)
    return (whole(container.labels.get(LABEL_PORT, ""), 65535) or 0) if container else 0
