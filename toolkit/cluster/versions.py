"""Versions of the programs of a cluster, their comparison, and refusal of actions across versions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from toolkit import __version__
from toolkit.cluster.containers import cluster_container
from toolkit.cluster.layout import Layout, Place
from toolkit.cluster.ownership import ours, with_processes
from toolkit.cluster.state_folders import lost_mounts
from toolkit.core.facts import ContainerFacts, Facts
from toolkit.errors import NotReady
from toolkit.protocol.names import LABEL_VERSION


def is_newer(version: str, than: str) -> bool:
    """Return whether the first is a later release than the second, by their first three numbers.

    What is no version at all, such as the empty text of a cluster from before versions were written down,
    is newer than nothing.

    >>> is_newer("0.10.0", "0.9.3"), is_newer("", "0.1.0"), is_newer("0.1.0rc1", "0.1.0")
    (True, False, False)
    """
    return _numbers(version) > _numbers(than)


def latest(versions: Iterable[str]) -> str:
    """Return the latest of the versions; empty if there is none."""
    return max(versions, key=_numbers, default="")


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", version)
    return tuple(map(int, found.groups())) if found else ()


def programs_of(inside: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return name and sha256 of each container program, as in ``Facts.programs``."""
    return tuple((name, hashlib.sha256(inside[name].encode()).hexdigest()) for name in sorted(inside))


def made_by(cluster: str, facts: Facts) -> str:
    """Return the latest version that created a part of the cluster on the host; empty if none is known.

    Files and containers can be from different versions: `up` recreates a container only if necessary.
    """
    return latest((facts.version, *(c.labels.get(LABEL_VERSION, "") for c in ours(cluster, facts))))


def version_note(cluster: str, facts: Facts, inside: Mapping[str, str]) -> tuple[str, str]:
    """Return a note about the version of a host's programs, and the fix; empty for this version or none."""
    if not ours(cluster, facts) and not facts.programs:
        return "", ""
    by = made_by(cluster, facts)
    if is_newer(by, __version__):
        return (
            f"toolkit {by} set up this host, but your version {__version__} is older",
            f"use toolkit {by} or later",
        )
    note = ""
    if not facts.version:
        # `up` writes the version after all other files.
        note = "toolkit up did not complete on this host"
    elif facts.version != __version__:
        note = f"toolkit {facts.version} set up this host, but your version is {__version__}"
    elif other_programs((facts,), inside):
        note = f"the toolkit programs on the host differ from those of version {__version__}"
    return note, "toolkit up" if note else ""


def newer_hosts(cluster: str, facts: Iterable[Facts]) -> dict[str, str]:
    """Return the hosts on which a later toolkit than this one was used, with its version."""
    versions = {f.host: made_by(cluster, f) for f in facts}
    return {host: version for host, version in versions.items() if is_newer(version, __version__)}


def refuse_newer(cluster: str, facts: Iterable[Facts]) -> None:
    """Refuse to change a cluster of a later toolkit, whose settings and files this one does not know.

    Raises:
        NotReady: names the hosts and the version.
    """
    if found := newer_hosts(cluster, facts):
        version = latest(found.values())
        what = (
            f"toolkit {version} created the cluster on {', '.join(found)}, but your version is {__version__}"
        )
        undo = "toolkit up --force  # undoes changes of the newer version, and can stop a running job"
        fix = f"use toolkit {version} or later; or: {undo}"
        raise NotReady(what, fix)


def other_programs(facts: Iterable[Facts], inside: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts whose container programs are not those of this toolkit; other files are ignored."""
    wanted = set(programs_of(inside))
    return tuple(f.host for f in facts if not wanted <= set(f.programs))


def require_programs(cluster: str, facts: Iterable[Facts], inside: Mapping[str, str]) -> None:
    """Refuse to start a job with programs that can read its files differently than this toolkit writes them.

    Raises:
        NotReady: names the hosts.
    """
    hosts = list(facts)
    refuse_newer(cluster, hosts)
    if others := other_programs(hosts, inside):
        what = f"the toolkit programs on {', '.join(others)} differ from those of version {__version__}"
        raise NotReady(what, "toolkit up  # keeps containers whose settings are unchanged")


def removed_containers(layout: Layout, prepare: bool = False) -> tuple[str, ...]:
    """Return the hosts on which `up` would remove a container that has processes.

    Args:
        prepare: `up` starts no containers. It still removes those of another role and those with lost mounts.
    """

    def removes(place: Place, found: ContainerFacts) -> bool:
        wanted = cluster_container(layout, place)
        if found.name != wanted.name or lost_mounts(wanted, place.facts):
            return True
        return not prepare and (found.state == "paused" or found.digest != wanted.digest())

    cluster = layout.inventory.cluster
    names = (p.name for p in layout.places for c in with_processes(cluster, p.facts) if removes(p, c))
    return tuple(dict.fromkeys(names))


def disturbed_jobs(layout: Layout, inside: Mapping[str, str], prepare: bool = False) -> tuple[str, ...]:
    """Return descriptions of the changes in `up` that would disturb a running job; empty if none.

    Args:
        prepare: `up` starts no containers.
    """
    removed = removed_containers(layout, prepare)
    # A host without programs is new to the cluster, and no job runs on it.
    programs = other_programs((p.facts for p in layout.places if p.facts.programs), inside)
    verb = "remove" if prepare else "recreate"
    changes = (f"`toolkit up` would {verb} the containers on {', '.join(removed)}",) if removed else ()
    return (
        (*changes, f"`toolkit up` would replace the toolkit programs on {', '.join(programs)}")
        if programs
        else changes
    )
