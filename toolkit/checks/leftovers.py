"""Checks for containers, processes and state directories that earlier clusters and jobs left on the hosts."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from toolkit import __version__
from toolkit.checks.model import Check, Probe, Scene, Seen, unchecked, warning
from toolkit.cluster.applied import down_with_copy
from toolkit.cluster.container_status import fix_of, lacks_sshd
from toolkit.cluster.ownership import OWN_PROCESSES, ours, services_of
from toolkit.cluster.versions import is_newer, made_by
from toolkit.core.command import quoted
from toolkit.core.facts import ContainerFacts
from toolkit.core.finding import Finding
from toolkit.hostsfile.inventory import Inventory
from toolkit.protocol.decode import whole
from toolkit.protocol.frames import ROW, rows
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_HOST, LABEL_OWNER

# Print the data address in a state directory, $1; `up` has written it.
ADDRESS_IN = r"""
address_in() {
  line=
  read -r line 2>/dev/null <"$1/conf/host.json"
  case $line in *'"address": "'*) line=${line#*'"address": "'}; line=${line%%'"'*} ;; *) line= ;; esac
  case $line in *[!0-9.]*) ;; *) printf %s "$line" ;; esac
}
"""
# Every process of a job has these variables in its environment. One grep reads thousands of processes.
MARKS = Probe(
    "marks",
    OWN_PROCESSES
    + ROW
    + ADDRESS_IN
    + r"""
tags='^TOOLKIT_\(CLUSTER\|JOB\|SUPERVISOR\)='
tagged=$(in_processes environ -alsz "$tags")
[ -z "$tagged" ] ||
  of_this_user <<end | xargs -r grep -asHz "$tags" | tr '\0\n' '\n '
$tagged
end
mine="${XDG_STATE_HOME:-$HOME/.local/state}/toolkit"
for d in "$mine"/*/*; do
  [ -d "$d" ] || continue
  cluster=${d%/*}
  row state "$(address_in "$d")" "${cluster##*/}" "${d##*/}"
done
echo looked
""",
)


@dataclass(frozen=True)
class Marked:
    """One process with a job tag: cluster and job from its environment; ``supervisor`` if it is one."""

    pid: int
    cluster: str = ""
    job: str = ""
    supervisor: str = ""


@dataclass(frozen=True)
class Stray:
    """Processes on one host of a job that has ended.

    Args:
        main: the host with the list of running jobs; empty if the cluster has no container on this host.
    """

    host: str
    job: str
    pids: tuple[int, ...]
    main: str = ""
    cluster: str = ""


def marked(seen: Seen) -> tuple[Marked, ...]:
    """Return the host's processes that have a job tag."""
    marks: dict[str, dict[str, str]] = {}
    for line in seen.answer(MARKS).split("\n"):
        place, _, mark = line.partition("/environ:")
        name, _, value = mark.partition("=")
        if place.startswith("/proc/"):
            marks.setdefault(place[6:], {})[name] = value
    return tuple(
        Marked(
            number,
            own.get("TOOLKIT_CLUSTER", ""),
            own.get("TOOLKIT_JOB", ""),
            own.get("TOOLKIT_SUPERVISOR", ""),
        )
        for pid, own in marks.items()
        if (number := whole(pid)) is not None
    )


def state_folders(seen: Seen) -> dict[tuple[str, str], str]:
    """Return the state directories of this user's clusters by cluster and host.

    A home folder that hosts share contains the folders of other hosts too.
    """
    return {(name, host): path for _, name, host, path in _state_rows(seen)}


def _state_rows(seen: Seen) -> Iterator[tuple[str, str, str, str]]:
    """Yield data address, cluster, host and path of each state directory."""
    base = state_base(seen)
    for word, cells in rows(seen.answer(MARKS)):
        if word == "state" and len(cells) == 3 and all(map(is_name, cells[1:])):
            address, name, host = cells
            yield address, name, host, f"{base}/{name}/{host}"


def is_elsewhere(seen: Seen, address: str) -> bool:
    """Return True if a state directory with this data address is that of another host.

    Two clusters can use one name for different hosts, and these hosts can share a home folder.
    """
    own = {interface.address for interface in seen.facts.interfaces} if seen.facts else set()
    return bool(address and own) and address not in own


def former_states(seen: Seen, inventory: Inventory) -> Iterator[tuple[str, str, str]]:
    """Yield former name, state directory and fix for each name of a host before a change of hosts.yaml.

    The data address in the directory shows that the directory is not of another host with the same home.
    """
    if (facts := seen.facts) is None:
        return
    cluster = inventory.cluster
    own = {interface.address for interface in facts.interfaces}
    named = {c.labels.get(LABEL_HOST) for c in facts.containers if c.labels.get(LABEL_CLUSTER) == cluster}
    there = state_folders(seen)
    for address, of, name, folder in _state_rows(seen):
        if of != cluster or address not in own or name in inventory.names:
            continue
        fix = (
            f"{down_with_copy(f'this host, with the name {name}')}. The command downloads the job records, "
            "then removes the cluster's state directory and containers from this host"
        )
        if name in named:
            fix = (
                "toolkit up  # recreates the container under the present name; then toolkit check prints the "
                "next fix"
            )
        elif (cluster, seen.host) in there:
            old, new = quoted(f"{folder}/jobs"), quoted(f"{facts.state_dir}/jobs")
            fix = (
                f"on {seen.host}: mv {old}/* {new}/  # moves the job records to the present directory; then, "
                f"to remove the SSH keys: rm -rf {quoted(folder)}"
            )
        yield name, folder, fix


def state_base(seen: Seen) -> str:
    """Return the folder of all clusters of this user on a host, two levels above a host's own folder."""
    return seen.facts.state_dir.rsplit("/", 2)[0] if seen.facts else ""


def is_name(name: str) -> bool:
    """Return True if the name can belong to a folder entry that toolkit created."""
    return bool(name) and name.isprintable() and "/" not in name and name not in (".", "..")


def strays(scene: Scene) -> tuple[Stray, ...]:
    """Return the processes of jobs whose supervisor has ended, by host and job.

    A job's supervisor outlives all its other processes, so a job without one has ended. Supervisors run on
    the main host, or on each host: the result is empty while one of these hosts does not answer.
    """
    cluster, main = scene.inventory.cluster, scene.inventory.main
    if _silent(scene):
        return ()
    alive = supervised(scene)
    found: dict[tuple[str, str], list[int]] = {}
    for name, seen in scene.seen.items():
        for one in marked(seen):
            if one.cluster == cluster and one.job and one.job not in alive:
                found.setdefault((name, one.job), []).append(one.pid)
    of_parts = scene.inventory.in_parts
    return tuple(
        Stray(host, job, tuple(pids), host if of_parts else main, cluster)
        for (host, job), pids in found.items()
    )


def _silent(scene: Scene) -> tuple[str, ...]:
    """Return the hosts with supervisors of running jobs that did not report these jobs."""
    names = scene.inventory.answering
    return tuple(name for name in names if "looked" not in scene.seen.get(name, Seen(name)).answer(MARKS))


def supervised(scene: Scene) -> frozenset[str]:
    """Return the jobs whose supervisor was seen alive on some host."""
    return frozenset(one.supervisor for seen in scene.seen.values() for one in marked(seen))


def abandoned(seen: Seen) -> tuple[ContainerFacts, ...]:
    """Return stopped containers of this user whose state directory is gone, so no `up` can start them."""
    if seen.facts is None or "looked" not in seen.answer(MARKS):
        return ()
    kept = state_folders(seen)
    return tuple(
        c
        for c in seen.facts.containers
        if c.state in ("exited", "dead", "created")
        and c.labels.get(LABEL_OWNER) == seen.facts.user
        and (c.labels.get(LABEL_CLUSTER), c.labels.get(LABEL_HOST)) not in kept
        and not _has_other_state_dir(c, state_base(seen))
    )


def _has_other_state_dir(container: ContainerFacts, base: str) -> bool:
    """Return True for a container of a hosts.yaml with another ``state_dir``, which MARKS does not list."""
    own = f"{container.labels.get(LABEL_CLUSTER)}/{container.labels.get(LABEL_HOST)}/"
    mounts = (path for path in container.mounts if f"/toolkit/{own}" in path)
    # Engines normalize the paths of mounts, but a home folder can have a slash at its end.
    return any(not path.startswith(f"{posixpath.normpath(base)}/{own}") for path in mounts)


def own_containers(seen: Seen, scene: Scene) -> tuple[ContainerFacts, ...]:
    """Return this user's containers of this cluster; another check covers clusters of other users."""
    assert seen.facts is not None
    user = seen.facts.user
    cluster = scene.inventory.cluster
    found = (*ours(cluster, seen.facts), *services_of(cluster, seen.facts))
    return tuple(c for c in found if c.labels.get(LABEL_OWNER, user) == user)


def _containers(seen: Seen, scene: Scene) -> Iterator[Finding]:
    gone = abandoned(seen)
    for container in gone:
        what = f"container {container.name} belongs to a removed cluster: the state directory is missing"
        yield warning(what, "toolkit gc  # removes the container", subject=container.name)
    for container in own_containers(seen, scene):
        if container.state != "running" and container not in gone:
            state = f"{container.state}, exit code {container.exit_code}"
            what = f"container {container.name} is not running ({state})"
            again = "toolkit up  # recreates the container; to remove the cluster, run toolkit down"
            fix = fix_of(container, scene.inventory.image) if lacks_sshd(container) else again
            yield warning(what, fix, subject=container.name)


def _processes(scene: Scene) -> Iterator[Finding]:
    for name in _silent(scene):
        yield unchecked(f"toolkit cannot list running jobs: {name} did not report them")
    for stray in strays(scene):
        many = "1 process" if len(stray.pids) == 1 else f"{len(stray.pids)} processes"
        pids = ", ".join(map(str, stray.pids[:5])) + (", …" if len(stray.pids) > 5 else "")
        verb = "runs" if len(stray.pids) == 1 else "run"
        what = f"{many} of job {stray.job} still {verb} after the job's end (pid {pids})"
        yield warning(what, "toolkit gc  # stops these processes", stray.host, stray.job)


def _state(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    if "looked" not in seen.answer(MARKS) or not seen.facts.docker:
        yield unchecked("toolkit cannot list the clusters on the host")
        return
    # The containers of a cluster with another engine are not listed, but their processes are.
    alive = {c.labels.get(LABEL_CLUSTER) for c in seen.facts.containers}
    alive |= {one.cluster for one in marked(seen)}
    for address, cluster, host, folder in _state_rows(seen):
        here = host == seen.host and not is_elsewhere(seen, address)
        if here and cluster != scene.inventory.cluster and cluster not in alive:
            what = f"the host has a state directory of cluster {cluster}, but no container of this cluster"
            fix = (
                f"rm -rf {quoted(folder)}  # or run `toolkit down` with the hosts.yaml of the removed cluster"
            )
            yield warning(what, f"on {seen.host}: {fix}", subject=folder)
    for name, folder, fix in former_states(seen, scene.inventory):
        what = (
            f"the host still has a state directory for its former name {name}, but toolkit finds job records "
            f"only under the name {seen.host}"
        )
        yield warning(what, fix, subject=folder)


def _version(seen: Seen, scene: Scene) -> Iterator[Finding]:
    facts = seen.facts
    if facts is None or not own_containers(seen, scene):
        return
    latest = made_by(scene.inventory.cluster, facts)
    if is_newer(latest, __version__):
        what = f"toolkit {latest} created the cluster on this host, but you run toolkit {__version__}"
        yield warning(what, f"use toolkit {latest} or later")
    elif facts.version and facts.version != __version__:
        # Containers keep the label of the version that created them if `up` did not have to recreate them.
        what = (
            f"toolkit {facts.version} installed its programs on this host, but you run toolkit {__version__}"
        )
        yield warning(what, "toolkit up")


CHECKS = (
    Check("left-containers", "no container of the cluster has stopped", host=_containers, probes=(MARKS,)),
    Check("left-processes", "no process of an ended job still runs", whole=_processes, probes=(MARKS,)),
    Check(
        "left-state",
        "no state directory of a removed cluster or of a former host name remains",
        host=_state,
        probes=(MARKS,),
    ),
    Check("cluster-version", "the cluster needs neither an update nor a newer toolkit", host=_version),
)
