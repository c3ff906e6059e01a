"""Owners of containers, processes and ports on a host: this cluster and user, or others; and free ports."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from toolkit.core.facts import ContainerFacts, Facts
from toolkit.core.printable import printable_line
from toolkit.errors import NotReady
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.choose import DataPath
from toolkit.protocol.decode import whole
from toolkit.protocol.names import (
    LABEL_CLUSTER,
    LABEL_OWNER,
    LABEL_PORT,
    LABEL_SERVICE,
    WORKER,
    container_name,
)

# Functions of shell. ``with_variable`` prints the path of the environment of each process of this user that
# has the variable NAME=VALUE. ``of_this_user`` reduces such paths on standard input to those of this user.
# Root can read the environment of every process, so the owner decides which processes count. All four user
# ids must be this user's, because a setuid program has the variables of its caller. xargs, because the paths
# of all processes do not always fit on one command line.
OWN_PROCESSES = r"""
with_variable() { printf '%s\n' /proc/[0-9]*/environ | xargs grep -lszFx -e "$1" | of_this_user; }
of_this_user() {
  while read -r name _ uid _; do [ "$name" != Uid: ] || break; done </proc/self/status
  ids=$(printf 'Uid:\t%s\t%s\t%s\t%s' "$uid" "$uid" "$uid" "$uid")
  sed 's/environ$/status/' | xargs -r grep -lsxF -e "$ids" | sed 's/status$/environ/'
}
"""

# Shell that ends processes: TERM, 4 s of patience, KILL. A function ``left`` has to print the paths of their
# environments in /proc. It is called before each signal, because the kernel can reuse a process id.
END_LEFT = r"""
left_pids() { left | sed 's:^/proc/::; s:/environ$::'; }
for signal in TERM 0 0 0 0 KILL KILL; do
  for pid in $(left_pids); do kill -$signal "$pid" 2>/dev/null; done
  [ -n "$(left)" ] || exit 0
  sleep 1
done
[ -z "$(left)" ] || { echo "still alive:" $(left_pids) >&2; exit 1; }
"""


def ours(cluster: str, facts: Facts) -> tuple[ContainerFacts, ...]:
    """Return the host's containers of this cluster in which ranks run; its services are not among them."""
    return tuple(c for c in _all(cluster, facts) if LABEL_SERVICE not in c.labels)


def services_of(cluster: str, facts: Facts) -> tuple[ContainerFacts, ...]:
    """Return the containers of this cluster's services on a host."""
    return tuple(c for c in _all(cluster, facts) if LABEL_SERVICE in c.labels)


def _all(cluster: str, facts: Facts) -> Iterator[ContainerFacts]:
    return (c for c in facts.containers if c.labels.get(LABEL_CLUSTER) == cluster)


def running(cluster: str, role: str, facts: Facts) -> ContainerFacts | None:
    """Return the host's container of this cluster and role, None when it does not run."""
    name = container_name(cluster, role)
    return next((c for c in ours(cluster, facts) if c.name == name and c.state == "running"), None)


def foreign(cluster: str, facts: Facts) -> Iterator[tuple[ContainerFacts, str, str]]:
    """Yield each container of another user's cluster of this name, with an error and its fix."""
    for container in _all(cluster, facts):
        owner = container.labels.get(LABEL_OWNER, facts.user)
        if owner != facts.user:
            what = f"a cluster named {cluster} of user {printable_line(owner)} already exists on the host"
            yield container, what, "in hosts.yaml: set cluster: to another name"


def refuse_foreign(cluster: str, facts: Facts) -> None:
    """Refuse a cluster name that another user of the host already uses.

    Raises:
        NotReady: names that user.
    """
    for _, what, fix in foreign(cluster, facts):
        raise NotReady(what, fix, facts.host)


_ANY = ("0.0.0.0", "::")
# Below Linux' ephemeral range (32768 and up), so that no outgoing connection takes it by chance.
FIRST_MASTER_PORT = 29500
# A job starts its search at one of this number of ports above the first.
_MASTER_PORTS = 2048
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
    return free_port(FIRST_MASTER_PORT + _number(job) % _MASTER_PORTS, facts, address)


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
                raise NotReady(what, "in hosts.yaml: remove worker_port, or free the port", f.host)
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
        "no port is free on all hosts", "in hosts.yaml: set worker_port: to a port that is free on all hosts"
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
    return f"another program (on {facts.host}: ss -ltnp 'sport = :{port}')"


def _held_port(cluster: str, facts: Facts) -> int:
    container = running(cluster, WORKER, facts)
    return (whole(container.labels.get(LABEL_PORT, ""), 65535) or 0) if container else 0
