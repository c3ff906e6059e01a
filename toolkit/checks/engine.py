"""Checks of the docker engine: there, allowed, new enough, and set up so that containers can be trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from toolkit.checks.model import Check, Probe, Scene, Seen, error, unchecked, warning
from toolkit.core.finding import Finding
from toolkit.core.names import LABEL_CLUSTER, LABEL_OWNER

# The oldest engine that the practice cluster tries; `--gpus` came with 19.03, cgroup v2 with 20.10.
OLDEST_ENGINE = (20, 10)

INFO = Probe("docker")
# Drivers that copy whole layers or loop-mount files: an image of 10 GB takes hours or fails.
_SLOW_DRIVERS = ("vfs", "devicemapper", "aufs")


def engine_info(seen: Seen) -> dict[str, Any]:
    """Return what the engine says about itself, empty when it cannot be asked."""
    for line in seen.answer(INFO).splitlines():
        if line.startswith("{"):
            info: dict[str, Any] = json.loads(line)
            return info if info.get("ServerVersion") else {}
    return {}


def _usable(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if seen.error is not None:
        yield error(seen.error.what, seen.error.fix)


def _new_enough(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    version = seen.facts.docker
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        yield unchecked(
            f"the engine gives its version as {version!r}" if version else "docker cannot be used"
        )
    elif (int(found[1]), int(found[2])) < OLDEST_ENGINE:
        oldest = ".".join(map(str, OLDEST_ENGINE))
        yield error(
            f"docker engine {version} is older than {oldest}",
            "install a newer one: https://docs.docker.com/engine/install/",
        )


def _driver(seen: Seen, scene: Scene) -> Iterator[Finding]:
    driver = str(engine_info(seen).get("Driver", ""))
    if not driver:
        yield unchecked("docker cannot be used")
    elif driver in _SLOW_DRIVERS:
        what = f"docker stores images with {driver}, which copies or loop-mounts every layer"
        yield warning(what, 'put {"storage-driver": "overlay2"} into /etc/docker/daemon.json, restart docker')


def _remapped(seen: Seen, scene: Scene) -> Iterator[Finding]:
    info = engine_info(seen)
    options = " ".join(map(str, info.get("SecurityOptions") or ()))
    if not info:
        yield unchecked("docker cannot be used")
    elif "name=userns" in options:
        what = "docker maps user ids (userns-remap), so ranks could not read the keys nor write as you"
        yield error(what, "remove userns-remap from /etc/docker/daemon.json, restart docker")
    elif "name=rootless" in options:
        what = "docker runs rootless, which nothing here has been tried with"
        yield warning(what, "use the machine's own engine: docker context use default")


def _foreign(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    for container in seen.facts.containers:
        owner = container.labels.get(LABEL_OWNER, seen.facts.user)
        if container.labels.get(LABEL_CLUSTER) == scene.inventory.cluster and owner != seen.facts.user:
            what = f"a cluster named {scene.inventory.cluster} of user {owner} is there already"
            yield error(
                what, "give this one another name: cluster: in the hosts file", subject=container.name
            )


CHECKS = (
    Check("docker", "docker can be used", host=_usable),
    Check("docker-version", "the engine is new enough", host=_new_enough),
    Check("docker-storage", "images are stored in layers", host=_driver),
    Check("docker-users", "user ids are the host's own", host=_remapped),
    Check("cluster-name", "no other user's cluster has this name", host=_foreign),
)
