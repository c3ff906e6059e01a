"""First part of `smoke`: check that every container sees exactly the GPUs that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.cluster.containers import cluster_container
from toolkit.cluster.gpus import (
    SMI,
    clipped,
    explain,
    gpu_failures,
    is_absent,
    parse_smi,
    renewal,
    usable_uuids,
)
from toolkit.cluster.layout import Layout, Place
from toolkit.cluster.ownership import running
from toolkit.core.command import script
from toolkit.core.container import CONFINED, gpu_args
from toolkit.core.engines import ENGINE_FAILED
from toolkit.core.report import Outcome, Report
from toolkit.errors import Problem
from toolkit.plan.steps import Phase, Plan, Run
from toolkit.protocol.names import container_name, program

# Each rank contributes a tensor of its number plus one, and checks the sum over all ranks.
ALLREDUCE = program("bench.allreduce")

_FRESH, _OWN = "nvidia-smi in a fresh container", "nvidia-smi in the cluster's container"


@dataclass(frozen=True)
class GpuRow:
    """One GPU as a container sees it; memory in MiB."""

    host: str
    index: int
    name: str
    driver: str
    memory_mib: int
    uuid: str


def plan_gpu_smoke(layout: Layout) -> Plan:
    """Return the plan; without steps if no host of the cluster provides a GPU.

    A fresh container shows that the container engine can provide GPUs. The cluster's own container shows that
    it still has its GPUs: they can disappear from a running container.
    """
    steps = tuple(step for place in layout.places if place.gpus for step in _smi_steps(layout, place))
    return Plan(f"smoke {layout.inventory.cluster}", (Phase("gpus", steps),) if steps else ())


def _smi_steps(layout: Layout, place: Place) -> tuple[Run, ...]:
    facts, own = place.facts, cluster_container(layout, place)
    run = ("docker", "run", "--rm", "--network", "none", *CONFINED, *facts.as_user)
    security = (
        token for option in own.security if option not in CONFINED for token in ("--security-opt", option)
    )
    env = (
        token
        for name, value in own.env
        if name.startswith("NVIDIA_")
        for token in ("--env", f"{name}={value}")
    )
    asks = {_FRESH: script(SMI).within(*run, *security, *gpu_args(own.gpus, own.cdi), *env, layout.reference)}
    if running(layout.inventory.cluster, place.role, facts):
        asks[_OWN] = script(SMI).within("docker", "exec", own.name)
    return tuple(
        Run(
            place.name,
            title,
            ask,
            saves=title,
            again=ENGINE_FAILED,
            failures=gpu_failures(place.name),
            fix=renewal(facts),
        )
        for title, ask in asks.items()
    )


def judge_gpus(layout: Layout, report: Report) -> tuple[tuple[GpuRow, ...], tuple[Problem, ...]]:
    """Return the GPUs that containers see, and the differences from those that they were given."""
    rows: dict[str, list[GpuRow]] = {}
    problems = [_unused(layout, place) for place in layout.places]
    for outcome in report.outcomes:
        place = layout.place(outcome.host)
        if place is not None and outcome.step in (_FRESH, _OWN) and outcome.status == "ok":
            gpus, trouble = parse_smi(outcome.output)
            rows[place.name] = [
                GpuRow(place.name, g.index, g.name, g.driver, g.memory_mib, g.uuid) for g in gpus
            ]
            seen = frozenset(uuid for gpu in gpus for uuid in gpu.usable)
            problems.append(_judge(layout, place, outcome, seen, trouble))
    found = tuple(problem for problem in problems if problem)
    return tuple(row for own in rows.values() for row in own), found


def _judge(
    layout: Layout, place: Place, outcome: Outcome, seen: frozenset[str], trouble: str
) -> Problem | None:
    given = usable_uuids(place.gpus, place.facts)
    if seen == given:
        return None
    name = container_name(layout.inventory.cluster, place.role)
    who = f"container {name}" if outcome.step == _OWN else "a fresh container"
    number = "1 GPU" if len(given) == 1 else f"{len(given)} GPUs"
    what = f"{who} should have {number}, but nvidia-smi lists {len(seen & given)} of the expected GPUs"
    if lacks := given - seen:
        what += f"; missing: {', '.join(sorted(lacks))}"
    if more := seen - given:
        what += f"; unexpected: {', '.join(sorted(more))}"
    if outcome.step == _OWN:
        # `systemctl daemon-reload` on the host has this effect if the engine uses systemd for control groups.
        fix = f"on {place.name}: {place.facts.engine} rm -f {name}  # then toolkit up"
    elif trouble and not is_absent(trouble):
        cause, fix = explain(trouble, place.name)
        what += f": {cause}"
    else:
        what += f": {clipped(trouble)}" if trouble else ""
        fix = renewal(place.facts)
    return gpu_problem(place.name, what, fix)


def _unused(layout: Layout, place: Place) -> Problem | None:
    """Return the problem of a broken driver, which hides the GPUs of a host that declares no number."""
    trouble = place.facts.gpu_trouble
    declared = layout.inventory.host(place.name).gpus is not None
    if place.gpus or declared or not trouble or is_absent(trouble):
        return None
    cause, fix = explain(trouble, place.name)
    # The alternative is a comment, so that a paste of the fix does not run it.
    fix = f"{fix}  # or, to run ranks on the CPU, set hosts/{place.name}/gpus to 0 in hosts.yaml"
    return gpu_problem(place.name, f"the host uses no GPU: {cause}", fix)


def gpu_problem(host: str, what: str, fix: str) -> Problem:
    """Return a host's problem with its fix."""
    return Problem(host, f"{what}\n          fix: {fix}" if fix else what)


def allreduce_line(lines: Sequence[str]) -> str:
    """Return the result line of the all-reduce from a job's output; empty without one."""
    return next((line.partition("] ")[2] for line in lines if "all-reduce" in line), "")
