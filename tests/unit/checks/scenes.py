"""What hosts answered, as values: the ground on which every check's cases stand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.unit.checks.net_scenes import networked
from tests.unit.cluster_world import IMAGE, cluster_facts, inventory
from toolkit.checks.model import Scene, Seen
from toolkit.core.facts import Facts

# As engine 26.1 of Debian 13 says it, shortened to what checks read.
INFO = {
    "ServerVersion": "26.1.5+dfsg1",
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "DockerRootDir": "/var/lib/docker",
    "Runtimes": {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}},
}


def healthy(host: str, facts: Facts, **answers: str) -> Seen:
    said = {"docker": json.dumps(INFO)} | answers
    return Seen(host, said, facts, ahead=0.01, doubt=0.02)


def scene(host: str = "gpu2", **answers: str) -> Scene:
    """Three healthy hosts; ``answers`` are what one of them said instead."""
    facts = cluster_facts()
    seen = {n: healthy(n, f, **(answers if n == host else {})) for n, f in facts.items()}
    return networked(Scene(inventory(), seen, IMAGE, {}, 12345))


def with_host(base: Scene, host: str, facts: dict[str, Any] | None = None, **changes: Any) -> Scene:
    """The scene with other facts or fields of one host."""
    seen = replace(base.seen[host], **changes)
    if facts:
        assert seen.facts is not None
        seen = replace(seen, facts=replace(seen.facts, **facts))
    return replace(base, seen={**base.seen, host: seen})


def info(**changes: Any) -> str:
    """What `docker info` prints as JSON, with other values."""
    return json.dumps(INFO | changes)
