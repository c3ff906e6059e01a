"""Which ports a cluster takes on its hosts, and who holds them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from toolkit.cluster.ownership import running
from toolkit.core.facts import Facts
from toolkit.core.printable import printable_line
from toolkit.errors import NotReady
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import DataPath
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_OWNER, LABEL_PORT, WORKER
from toolkit.protocol.numbers import whole

_ANY = ("0.0.0.0", "::")
# Below Linux' ephemeral range (32768 and up), so that no outgoing connection takes it by chance.
FIRST_MASTER_PORT = 29500
# Jobs begin to look at one of so many ports from there on.
_MASTER_PORTS = 2048
# Where a cluster looks on after it has lost a race: how many places of its own, in how many ports.
_OWN_PORTS, _OWN_RANGE = 64, 4096


def free_port(first: int, facts: Facts, address: str) -> int:
    """Return the first port from ``first`` up on which nobody listens at this address."""
    taken = {port for a, port in facts.listening if a in (*_ANY, address)}
    return next((port for port in range(first, 65536) if port not in taken), first)


def master_port(job: str, facts: Facts, address: str) -> int:
    """Return a job's MASTER_PORT on its first host: free, and hardly another new job's.

    Where a job begins to look is made of its id, so that two that start at the same second, and see the
    same ports free, take different ones.
    """
    return free_port(FIRST_MASTER_PORT + _number(job) % _MASTER_PORTS, facts, address)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def worker_port(
    inventory: Inventory,
    facts: Mapping[str, Facts],
    paths: Mapping[str, DataPath],
    lost: Collection[int] = (),
) -> int:
    """Return where the workers' sshd is to listen, on all hosts alike; 0 where there is none.

    Args:
        facts: of the hosts that answered.
        paths: of these hosts at least.
        lost: ports that were free when the hosts were asked, and taken when sshd came to them.

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
                raise NotReady(what, "free it, or leave worker_port out of the hosts file", f.host)
        return inventory.worker_port
    # The port that most of the cluster has, so that a host that comes back joins the others there, and that
    # no single host moves the others.
    held = sorted(present, key=lambda port: (-present[port], port))
    first = _after_a_race(inventory, facts) if lost else held
    candidates: list[int] = [*first, *range(inventory.worker_port, 65536)]
    for port in candidates:
        if port not in lost and not any(
            port_holder(inventory, f, paths[f.host].address, port) for f in workers
        ):
            return port
    raise NotReady("no port is free on all hosts", "set worker_port: in the hosts file")


def _after_a_race(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[int]:
    """Yield ports in an order that no other cluster has, so that two do not meet again and again."""
    owner = next((f.user for f in facts.values()), "")
    for number in range(_OWN_PORTS):
        own = _number(f"{owner}/{inventory.cluster}/{number}")
        yield inventory.worker_port + 1 + own % min(_OWN_RANGE, 65535 - inventory.worker_port)


def port_holder(inventory: Inventory, facts: Facts, address: str, port: int) -> str:
    """Say who listens at a worker's address and port, empty when nobody does or when it is our own sshd."""
    if _held_port(inventory.cluster, facts) == port:
        return ""
    if not any(p == port and a in (*_ANY, address) for a, p in facts.listening):
        return ""
    for c in facts.containers:
        if c.state == "running" and c.labels.get(LABEL_PORT) == str(port):
            whose = f"cluster {c.labels.get(LABEL_CLUSTER, '?')} of user {c.labels.get(LABEL_OWNER, '?')}"
            return printable_line(f"{whose} (container {c.name})")
    return f"another program (on {facts.host}: ss -ltnp 'sport = :{port}')"


def _held_port(cluster: str, facts: Facts) -> int:
    container = running(cluster, WORKER, facts)
    return (whole(container.labels.get(LABEL_PORT, ""), 65535) or 0) if container else 0
