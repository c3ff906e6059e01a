"""Which toolkit a cluster's programs are from, and what may not be done across versions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from toolkit import __version__
from toolkit.cluster.containers import cluster_container
from toolkit.cluster.layout import Layout
from toolkit.cluster.ownership import ours
from toolkit.core.facts import Facts
from toolkit.core.text import is_newer, latest
from toolkit.errors import NotReady
from toolkit.protocol.names import LABEL_VERSION


def programs_of(inside: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return name and sha256 of each inside program, as ``Facts.programs`` has them."""
    return tuple((name, hashlib.sha256(inside[name].encode()).hexdigest()) for name in sorted(inside))


def made_by(cluster: str, facts: Facts) -> str:
    """Return the latest version that has left something of the cluster on the host; empty when none is known.

    Files and containers may be from different ones: `up` makes no container anew without need.
    """
    return latest((facts.version, *(c.labels.get(LABEL_VERSION, "") for c in ours(cluster, facts))))


def version_note(cluster: str, facts: Facts, inside: Mapping[str, str]) -> tuple[str, str]:
    """Say from which toolkit a host's programs are, and the fix; empty when this one's, or when none."""
    if not ours(cluster, facts) and not facts.programs:
        return "", ""
    by = made_by(cluster, facts)
    if is_newer(by, __version__):
        return f"made by toolkit {by}, newer than this one ({__version__})", f"use toolkit {by} or later"
    note = ""
    if not facts.version:
        note = "made by a toolkit from before versions were written down"
    elif facts.version != __version__:
        note = f"made by toolkit {facts.version}, this is {__version__}"
    elif other_programs((facts,), inside):
        note = f"its programs differ from those of this toolkit ({__version__})"
    return note, "toolkit up" if note else ""


def newer_hosts(cluster: str, facts: Iterable[Facts]) -> dict[str, str]:
    """Return the hosts on which a later toolkit than this one was at work, with its version."""
    versions = {f.host: made_by(cluster, f) for f in facts}
    return {host: version for host, version in versions.items() if is_newer(version, __version__)}


def refuse_newer(cluster: str, facts: Iterable[Facts]) -> None:
    """Refuse to change what a later toolkit has made: this one knows neither its settings nor its files.

    Raises:
        NotReady: names the hosts and the version.
    """
    if found := newer_hosts(cluster, facts):
        version = latest(found.values())
        what = f"the cluster was made by toolkit {version} on {', '.join(found)}, this one is {__version__}"
        fix = f"use toolkit {version} or later; to make it this one's in spite of that: toolkit up --force"
        raise NotReady(what, fix)


def other_programs(facts: Iterable[Facts], inside: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts whose inside programs are not this toolkit's; what else lies there is no matter."""
    wanted = set(programs_of(inside))
    return tuple(f.host for f in facts if not wanted <= set(f.programs))


def require_programs(cluster: str, facts: Iterable[Facts], inside: Mapping[str, str]) -> None:
    """Refuse to start a job with programs that may read its files otherwise than this toolkit writes them.

    Raises:
        NotReady: names the hosts.
    """
    hosts = list(facts)
    refuse_newer(cluster, hosts)
    if others := other_programs(hosts, inside):
        what = f"the programs on {', '.join(others)} are not those of this toolkit ({__version__})"
        raise NotReady(what, "toolkit up; containers stay unless their settings have changed")


def taken_from_jobs(layout: Layout, inside: Mapping[str, str], prepare: bool = False) -> tuple[str, ...]:
    """Return what `up` would pull from under a job that runs now, in words; empty when nothing.

    Args:
        prepare: containers are left alone.
    """
    cluster = layout.inventory.cluster
    anew = [
        place.name
        for place in layout.places
        for c in ours(cluster, place.facts)
        if c.state == "running" and c.digest != cluster_container(layout, place).digest()
    ]
    # A host without any is new to the cluster, and no job is on it.
    programs = other_programs((p.facts for p in layout.places if p.facts.programs), inside)
    said = () if prepare or not anew else (f"the containers on {', '.join(anew)} would be made anew",)
    return (*said, f"its programs on {', '.join(programs)} would be replaced") if programs else said
