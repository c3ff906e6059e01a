"""A job as a value for Slurm and Kubernetes, without host addresses and a job id of toolkit."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolkit.core.container import Mount, Ulimit
from toolkit.core.templates import render_template
from toolkit.network.settings import usual_variables

# Working directory of the ranks, which contains the code.
CODE = "/workspace"
# Folder in which a rendered script stores files of one job.
FOLDER = "/run/toolkit"


@dataclass(frozen=True)
class BatchNode:
    """The properties of a host that concern a scheduler.

    Args:
        data_address: IPv4 address for training traffic; empty for the address of the host's name.
        slots: number of ranks on the host.
        gpus: number of GPUs that the host provides.
        env: variables for the ranks on this host only.
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
        name: at most 40 lower-case letters, digits and hyphens.
        pull: pull policy as in hosts.yaml.
        launcher: one of ``toolkit.launchers.LAUNCHERS``.
        command: command of each rank.
        nodes: nodes in rank order.
        env: variables for every rank; the rendered text contains their values.
        passed: names of variables whose values are set at submission.
        labels: additional labels for the containers.
        network: auto, ethernet, infiniband or efa.
        timeout: seconds after which the job is stopped, None for no limit.
        grace: seconds between SIGTERM and SIGKILL at a stop.
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
        """Ranks of each node; 0 if nodes differ."""
        return self._same({node.slots for node in self.nodes})

    @property
    def gpus(self) -> int:
        """GPUs of each node; the maximum if nodes differ."""
        return max(node.gpus for node in self.nodes)

    @staticmethod
    def _same(numbers: set[int]) -> int:
        return next(iter(numbers)) if len(numbers) == 1 else 0


# Launchers whose ranks Open MPI starts.
BY_MPI = ("horovodrun", "mpirun")


def rank_variables(job: BatchJob) -> dict[str, str]:
    """Return the variables of every rank that the rendered text contains; those of the user have priority."""
    cpu = {} if job.gpus else {"ACCELERATE_USE_CPU": "true"}
    variables = {**cpu, "PYTHONUNBUFFERED": "1", **dict(job.env)}
    return {name: value for name, value in variables.items() if name not in job.passed}


def network_lines(job: BatchJob) -> list[str]:
    """Return NAME=VALUE for the ranks of a node; the node's shell sets ``$device`` and ``$network``.

    Variables that the user sets for all ranks are not among them: these lines would override the values.
    """
    given = {*dict(job.env), *job.passed}
    settings = sorted(usual_variables(job.network).items())
    lines = [f"{name}={value}" for name, value in settings if name not in given]
    return [each.replace("INTERFACE", "$device").replace("NETWORK", "$network") for each in lines]


def rank_text(job: BatchJob, by_srun: bool = False) -> str:
    """Return the shell lines at the start of every rank: they set its rank and check the world size.

    Args:
        by_srun: srun starts the rank.
    """
    return render_template("scripts/rank.sh.j2", job=job, by_srun=by_srun).rstrip("\n")
