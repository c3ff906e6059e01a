"""Answers of hosts as values, on which the cases of every check are built."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tests.unit.checks import recorded
from tests.unit.checks.net_scenes import networked
from tests.unit.cluster_world import IMAGE, cluster_facts, gpu, inventory
from toolkit.checks.model import Scene, Seen
from toolkit.core.facts import Facts
from toolkit.core.finding import Verdict
from toolkit.hostsfile.inventory import Service

# As engine 26.1 of Debian 13 says it, shortened to what checks read.
INFO = {
    "ServerVersion": "26.1.5+dfsg1",
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    "LoggingDriver": "json-file",
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "OperatingSystem": "Debian GNU/Linux 13 (trixie)",
    "DockerRootDir": "/var/lib/docker",
    "Runtimes": {"io.containerd.runc.v2": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}},
    "DefaultRuntime": "runc",
}


@dataclass(frozen=True)
class Case:
    """A scene and the finding of a check: verdict, host, words of the sentence and of the fix."""

    check: str
    verdict: Verdict
    scene: Scene
    words: str = ""
    host: str = "gpu2"
    fix: str = ""


def healthy(host: str, facts: Facts, **answers: str) -> Seen:
    said = {"docker": info(host), **recorded.healthy(host)}
    said |= {name.replace("_", "-"): text for name, text in answers.items()}
    return Seen(host, said, facts, ahead=0.01, doubt=0.02)


@cache
def scene(host: str = "gpu2", **answers: str) -> Scene:
    """Three healthy hosts with two GPUs each; ``answers`` are what one of them said instead."""
    facts = {name: replace(f, gpus=(gpu(0), gpu(1))) for name, f in cluster_facts().items()}
    seen = {n: healthy(n, f, **(answers if n == host else {})) for n, f in facts.items()}
    told = replace(inventory(), hosts=tuple(replace(h, slots=None) for h in inventory().hosts))
    image = replace(IMAGE, arch="amd64")
    return networked(Scene(told, seen, image, {}, 12345, sendable=True))


def with_host(base: Scene, host: str, facts: dict[str, Any] | None = None, **changes: Any) -> Scene:
    """The scene with other facts or fields of one host."""
    seen = replace(base.seen[host], **changes)
    if facts:
        assert seen.facts is not None
        seen = replace(seen, facts=replace(seen.facts, **facts))
    return replace(base, seen={**base.seen, host: seen})


def with_file(base: Scene, host: str = "gpu2", **changes: Any) -> Scene:
    """The scene with other settings of one host in the hosts file."""
    hosts = tuple(replace(h, **changes) if h.name == host else h for h in base.inventory.hosts)
    return replace(base, inventory=replace(base.inventory, hosts=hosts))


def with_service(base: Scene, ids: tuple[str, ...], **changes: Any) -> Scene:
    """The scene with a service that has these GPUs of gpu2."""
    service = Service("serve", "gpu2", gpus=len(ids), gpu_ids=ids, **changes)
    return replace(base, inventory=replace(base.inventory, services=(service,)))


def with_image(base: Scene, **changes: Any) -> Scene:
    """The scene with another image that is meant."""
    assert base.image is not None
    return replace(base, image=replace(base.image, **changes))


def info(host: str = "gpu2", **changes: Any) -> str:
    """Return the JSON of `docker info` with other values."""
    return json.dumps({**INFO, "ID": f"ABCD:{host}", "Name": host, **changes})
