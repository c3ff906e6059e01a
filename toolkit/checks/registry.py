"""The registry of all checks, and the function that runs them on recorded answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from toolkit.checks import (
    containers,
    disk,
    engine,
    gpu,
    gpu_setup,
    image,
    leftovers,
    machine,
    mounts,
    network,
    ports,
    rdma,
    reach,
)
from toolkit.checks.model import STAGES, Check, Probe, Scene, Stage
from toolkit.core.finding import Finding

# In the order in which a user would search: connection, engine, disk space, speed.
CHECKS: tuple[Check, ...] = (
    *engine.CHECKS,
    *machine.CHECKS,
    *image.CHECKS,
    *disk.CHECKS,
    *mounts.CHECKS,
    *gpu_setup.CHECKS,
    *gpu.CHECKS,
    *network.CHECKS,
    *rdma.CHECKS,
    *ports.CHECKS,
    *reach.ROUTE_CHECKS,
    *leftovers.CHECKS,
    *reach.CHECKS,
    *containers.CHECKS,
)


def host_probes(checks: Iterable[Check] = CHECKS) -> tuple[Probe, ...]:
    """Return the probes of these checks, each once."""
    return tuple({probe.name: probe for check in checks for probe in check.probes if probe.text}.values())


def judge(scene: Scene, stages: Iterable[Stage], checks: Iterable[Check] = CHECKS) -> Iterator[Finding]:
    """Yield the findings of the checks of these stages, and one about the SSH connection of each host."""
    for seen in scene.seen.values():
        if seen.facts is None and seen.error is not None:
            yield Finding("reach", "error", seen.error.what, seen.error.fix, seen.host)
        elif seen.facts is not None:
            yield Finding("reach", "ok", "the SSH connection works", host=seen.host)
    wanted = set(stages)
    for check in checks:
        if check.stage in wanted:
            yield from check.judged(scene)


__all__ = ["CHECKS", "STAGES", "host_probes", "judge"]
