"""What `smoke` does first: nvidia-smi in a fresh container on every host that has or declares GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.core.command import command
from toolkit.core.names import INSIDE
from toolkit.core.report import Report
from toolkit.errors import Problem
from toolkit.plan.containers import container_gpus
from toolkit.plan.layout import Layout, Place
from toolkit.plan.probe import parse_gpus
from toolkit.plan.steps import Phase, Plan, Run
from toolkit.render.docker import gpu_args

# One tensor of every rank's number plus one, summed over all ranks, checked on each of them.
ALLREDUCE = ("python3", str(INSIDE / "allreduce.py"))
_QUERY = "index,uuid,name,driver_version,memory.total"


@dataclass(frozen=True)
class GpuRow:
    """One GPU as a container sees it; memory in MiB."""

    host: str
    index: int
    name: str
    driver: str
    memory_mib: int


def plan_gpu_smoke(layout: Layout) -> Plan:
    """Return the plan; without steps on a cluster where no host has or declares a GPU."""
    steps = tuple(_smi_step(layout, place) for place in layout.places if place.gpus)
    return Plan(f"smoke {layout.inventory.cluster}", (Phase("gpus", steps),) if steps else ())


def _smi_step(layout: Layout, place: Place) -> Run:
    facts = place.facts
    smi = command(
        *("docker", "run", "--rm", "--network", "none", "--cap-drop", "ALL"),
        *gpu_args(container_gpus(place)),
        *("--user", f"{facts.uid}:{facts.gid}", layout.reference),
        *("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"),
    )
    return Run(
        place.name,
        "nvidia-smi in a fresh container",
        command("true"),
        reads=smi,
        saves="gpus",
        fix=f"on {place.name}: install the NVIDIA container toolkit, then sudo nvidia-ctk runtime configure"
        " --runtime=docker and restart docker",
    )


def judge_gpus(layout: Layout, report: Report) -> tuple[tuple[GpuRow, ...], tuple[Problem, ...]]:
    """Return the GPUs that containers see, and where their number is not the declared one."""
    rows: list[GpuRow] = []
    problems: list[Problem] = []
    for outcome in report.outcomes:
        place = layout.place(outcome.host)
        if outcome.status == "failed" or place is None:
            continue
        seen = parse_gpus(outcome.output)
        rows += [GpuRow(outcome.host, g.index, g.name, g.driver, g.memory_mib) for g in seen]
        if len(seen) != place.gpus:
            what = f"a container sees {len(seen)} GPUs, not the {place.gpus} that it is given"
            problems.append(Problem(outcome.host, what))
    return tuple(rows), tuple(problems)


def allreduce_line(lines: Sequence[str]) -> str:
    """Return the result line of the all-reduce from a job's output, empty when there is none."""
    return next((line.partition("] ")[2] for line in lines if "all-reduce" in line), "")
