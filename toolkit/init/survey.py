"""Facts about hosts that no file names yet, and the problems that keep a cluster from using them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from toolkit.checks import image
from toolkit.checks.engine import engine_info
from toolkit.checks.machine import memory, processors
from toolkit.checks.model import Probe, Scene, Seen
from toolkit.core.engines import DOCKER, PODMAN
from toolkit.core.finding import Finding
from toolkit.errors import ToolkitError, Unreachable, UnreachableCause

# Run only if docker cannot be used: the first Podman command creates folders in the user's home.
PODMAN_INFO = Probe(
    "podman",
    """
[ -n "$root" ] || ! command -v podman >/dev/null || timeout -k 2 20 podman info --format '{{json .}}'
""",
)

# Problems that exclude a host whatever the file contains; others can be fixed later.
_SHUT = frozenset(("docker", "docker-here", "docker-users", "docker-version", "programs", "same-machine"))
# Checks of the file and of the image, neither of which exists yet.
_NOT_YET = frozenset(("cluster-name", *(check.id for check in image.CHECKS)))


@dataclass(frozen=True)
class SurveyedHost:
    """The result for one host.

    Args:
        what, fix: why it cannot be used, and what to do; empty when it can.
        engine: its name and version, empty when none can be used.
        gpus: names as nvidia-smi gives them.
        split: whether Multi-Instance GPU has split one of them.
        processors: 0 when not known; memory: bytes, 0 when not known.
        faults: what else would stop a job there.
    """

    host: str
    what: str = ""
    fix: str = ""
    engine: str = ""
    gpus: tuple[str, ...] = ()
    split: bool = False
    processors: int = 0
    memory: int = 0
    arch: str = ""
    faults: tuple[Finding, ...] = ()

    @property
    def usable(self) -> bool:
        return not self.what

    def as_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "usable": self.usable,
            "what": self.what,
            "fix": self.fix,
            "engine": self.engine,
            "gpus": list(self.gpus),
            "processors": self.processors,
            "memory_bytes": self.memory,
            "arch": self.arch,
            "faults": [{"check": f.check, "what": f.what, "fix": f.fix} for f in self.faults],
        }


def engine_of(scene: Scene) -> str:
    """Return the engine of most hosts, docker if both are equal; a cluster has one engine."""
    found = Counter(_engine(seen) for seen in scene.seen.values())
    return PODMAN if found[PODMAN] > found[DOCKER] else DOCKER


def _engine(seen: Seen) -> str:
    if seen.facts is None:
        return ""
    if seen.error is None:
        return seen.facts.engine
    return PODMAN if engine_info(seen, PODMAN_INFO).version else ""


def summarize(scene: Scene, findings: Iterable[Finding]) -> dict[str, SurveyedHost]:
    """Return the result for every host of the scene.

    Args:
        findings: of all checks that need only answers of hosts.
    """
    errors: dict[str, list[Finding]] = {name: [] for name in scene.seen}
    for finding in findings:
        if finding.verdict == "error" and finding.host in errors and finding.check not in _NOT_YET:
            errors[finding.host].append(finding)
    return {name: _surveyed(seen, scene, errors[name]) for name, seen in scene.seen.items()}


def _surveyed(seen: Seen, scene: Scene, errors: list[Finding]) -> SurveyedHost:
    facts = seen.facts
    if facts is None:
        error = without_file(seen.error or ToolkitError("the host reported nothing"), scene)
        return SurveyedHost(seen.host, error.what, error.fix)
    surveyed = SurveyedHost(
        host=seen.host,
        engine=f"{facts.engine} {facts.docker}" if facts.docker else "",
        gpus=tuple(gpu.name for gpu in facts.gpus),
        split=any(gpu.migs for gpu in facts.gpus),
        processors=processors(seen),
        memory=memory(seen).get("MemTotal", 0),
        arch=facts.arch,
    )
    if seen.error is not None:
        other = _engine(seen)
        if other and other != scene.inventory.engine:
            rule = "all hosts of a cluster must use the same container engine"
            what = f"{seen.error.what}; the host has {other}, but {rule}"
            return replace(surveyed, what=what, fix=seen.error.fix)
        return replace(surveyed, what=seen.error.what, fix=seen.error.fix)
    shut = next((finding for finding in errors if finding.check in _SHUT), None)
    if shut is not None:
        return replace(surveyed, what=shut.what, fix=shut.fix)
    return replace(surveyed, faults=tuple(dict.fromkeys(errors)))


def without_file(error: ToolkitError, scene: Scene) -> ToolkitError:
    """Return the error with a fix for a user who has no hosts file yet."""
    host = error.host.partition(" ")[0]
    address = next((h.address for h in scene.inventory.hosts if h.name == host), host)
    known_as = shlex.quote((error.known_as if isinstance(error, Unreachable) else "") or address)
    fixes = {
        UnreachableCause.UNKNOWN_KEY: f"ssh {address}  # compare the fingerprint, then confirm; "
        "or run toolkit init in a terminal",
        UnreachableCause.CHANGED_KEY: f"ssh-keygen -R {known_as}  # only if the host was reinstalled; "
        "otherwise ask the administrator of the host",
        UnreachableCause.UNKNOWN_NAME: "correct the host name in the command, or HostName in ~/.ssh/config",
    }
    cause = error.cause if isinstance(error, Unreachable) else UnreachableCause.OTHER
    return ToolkitError(error.what, fixes.get(cause, error.fix), error.host)
