"""Owners of containers and processes on a host; shell text that finds and ends processes of this user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from toolkit.core.facts import ContainerFacts, Facts
from toolkit.core.printable import printable_line
from toolkit.errors import NotReady
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_OWNER, MAIN, container_name, service_container

# Functions of shell. ``in_processes FILE OPTIONS PATTERN`` runs grep on a file of every process in /proc.
# xargs divides more paths than fit on the smallest command line of Linux (128 KiB, man 2 execve). The status
# of grep cannot show this case: it is 2 in dash before 0.5.11, as for an unreadable file. ``with_variable``
# prints the path of the environment of each process of this user that has the variable NAME=VALUE.
# ``of_this_user`` reduces such paths on standard input to those of this user: root can read the environment
# of every process, so the owner decides. All four user ids must be this user's, because a setuid program has
# the variables of its caller.
OWN_PROCESSES = r"""
in_processes() {
  options=$2 pattern=$3
  set -- /proc/[0-9]*/"$1"
  if [ $# -gt 3000 ]; then
    printf '%s\n' "$@" | xargs grep "$options" -e "$pattern"
  else
    grep "$options" -e "$pattern" "$@"
  fi 2>/dev/null
}
with_variable() { in_processes environ -lszFx "$1" | of_this_user; }
of_this_user() {
  while read -r name _ own _; do [ "$name" != Uid: ] || break; done </proc/self/status
  while IFS= read -r path; do
    name=
    while read -r name real effective saved fs; do
      [ "$name" != Uid: ] || break
    done 2>/dev/null <"${path%environ}status"
    [ "$name $real $effective $saved $fs" != "Uid: $own $own $own $own" ] || printf '%s\n' "$path"
  done
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
[ -z "$(left)" ] || { echo "processes still run after SIGKILL:" $(left_pids) >&2; exit 1; }
"""


def ours(cluster: str, facts: Facts) -> tuple[ContainerFacts, ...]:
    """Return the host's containers of this cluster in which ranks run; its services are not among them."""
    return tuple(c for c in _all(cluster, facts) if not _is_service(cluster, c))


def with_processes(cluster: str, facts: Facts) -> tuple[ContainerFacts, ...]:
    """Return those of ``ours`` in which processes, such as those of a job, exist."""
    return tuple(c for c in ours(cluster, facts) if c.state in ("running", "paused"))


def services_of(cluster: str, facts: Facts) -> tuple[ContainerFacts, ...]:
    """Return the containers of this cluster's services on a host."""
    return tuple(c for c in _all(cluster, facts) if _is_service(cluster, c))


def _is_service(cluster: str, container: ContainerFacts) -> bool:
    # An image can bring the label of a service, but no name.
    return container.name.startswith(service_container(cluster, ""))


def _all(cluster: str, facts: Facts) -> Iterator[ContainerFacts]:
    return (c for c in facts.containers if c.labels.get(LABEL_CLUSTER) == cluster)


def running(cluster: str, role: str, facts: Facts) -> ContainerFacts | None:
    """Return the host's container of this cluster and role, None when it is not running."""
    name = container_name(cluster, role)
    return next((c for c in ours(cluster, facts) if c.name == name and c.state == "running"), None)


def main_host(cluster: str, facts: Mapping[str, Facts]) -> str:
    """Return the host on which the main container runs, independent of hosts.yaml; empty without one."""
    return next((host for host in facts if running(cluster, MAIN, facts[host])), "")


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
