"""A job as a value for Slurm and Kubernetes, which schedule by themselves: no address of ours, no run id."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolkit.core.container import Mount, Ulimit
from toolkit.core.templates import render_template
from toolkit.network.settings import EFA, usual_variables, variables

# Where ranks run there, and where the code is to be seen.
CODE = "/workspace"
# Where a script of ours keeps what it makes for one job.
FOLDER = "/run/toolkit"


@dataclass(frozen=True)
class BatchNode:
    """A host of the hosts file, as far as a scheduler has something to do with it.

    Args:
        data_address: IPv4 address where ranks talk to each other; empty means what its name resolves to.
        slots: the number of ranks that run there.
        gpus: how many of them it gives; 0 for none.
        env: variables for the ranks on this host alone.
    """

    name: str
    slots: int
    gpus: int = 0
    data_address: str = ""
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class BatchJob:
    """One training run that another system starts.

    Args:
        name: lower-case letters, digits and hyphens, 40 at most.
        pull: as in hosts.yaml.
        launcher: one of ``toolkit.launchers.LAUNCHERS``.
        command: what each rank executes.
        nodes: in rank order.
        env: variables for every rank; they stand in what is rendered.
        passed: names of variables whose values are given where the job is submitted.
        labels: more labels for its containers.
        network: auto, ethernet, infiniband or efa.
        timeout: seconds after which the job is ended, None for never.
        grace: seconds between SIGTERM and SIGKILL when it is ended.
    """

    name: str
    cluster: str
    image: str
    pull: str
    launcher: str
    command: tuple[str, ...]
    nodes: tuple[BatchNode, ...]
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    passed: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    ulimits: tuple[Ulimit, ...] = ()
    shm_bytes: int = 0
    network: str = "auto"
    timeout: float | None = None
    grace: int = 10

    @property
    def world_size(self) -> int:
        return sum(node.slots for node in self.nodes)

    @property
    def slots(self) -> int:
        """The ranks of each node; 0 where nodes differ."""
        return self._same({node.slots for node in self.nodes})

    @property
    def gpus(self) -> int:
        """The GPUs of each node, the most where nodes differ."""
        return max(node.gpus for node in self.nodes)

    @staticmethod
    def _same(numbers: set[int]) -> int:
        return next(iter(numbers)) if len(numbers) == 1 else 0


# Of the launchers, those whose ranks Open MPI starts.
BY_MPI = ("horovodrun", "mpirun")


def network_lines(job: BatchJob) -> list[str]:
    """Return NAME=VALUE for the ranks of a node, whose shell has ``$device`` and ``$network`` as its own."""
    settings = {**usual_variables(), **(variables(EFA) if job.network == "efa" else {})}
    if job.network == "ethernet":
        settings["NCCL_IB_DISABLE"] = "1"
    lines = [f"{name}={value}" for name, value in sorted(settings.items())]
    return [each.replace("INTERFACE", "$device").replace("NETWORK", "$network") for each in lines]


def rank_text(job: BatchJob, by_srun: bool = False) -> str:
    """Return the shell's lines that every rank begins with: who it is, and whether the world is whole.

    Args:
        by_srun: srun starts it.
    """
    return render_template("scripts/rank.sh.j2", job=job, by_srun=by_srun).rstrip("\n")
