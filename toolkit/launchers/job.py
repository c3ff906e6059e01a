"""Values of a job: the job, its hosts, and the processes that a launcher starts for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from toolkit.protocol.names import DEFAULT_LOG_BYTES, JOBS, program
from toolkit.protocol.transport import SSH

# See ``Launch``; launch.py on the host replaces it.
INTERFACE = "{interface}"


@dataclass(frozen=True)
class JobHost:
    """A host that takes part in a job.

    Args:
        address: its data address.
        slots: the number of ranks that run there.
        taken: the numbers of these slots on the host, from 0.
        gpus: UUIDs of the GPUs that belong to these slots.
        visible: CUDA_VISIBLE_DEVICES for the ranks; empty if the job has all GPUs of the container. With MIG
            devices, one UUID per rank: a CUDA process cannot use more than one MIG device.
    """

    name: str
    address: str
    slots: int
    taken: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    visible: str = ""


@dataclass(frozen=True)
class Job:
    """One training run.

    Args:
        command: the command that each rank executes.
        hosts: in rank order; ranks are numbered host by host.
        main: the host on which the launcher runs; it takes no rank unless it is among ``hosts``.
        networks: data networks of the hosts in CIDR form.
        env: the cluster's variables for every rank, its secrets among them.
        host_env: the variables of single hosts, which win over ``env``.
        override: variables that win over all others. All three can hold secrets, so they are in no
            ``repr`` and no job file: only the start of a supervisor carries them, see ``StartJob``.
        tuned: variables that all others win over, see ``toolkit.network.tuning``.
        rules: Open MPI's file of rules that goes with them; the same on every rank, because ranks that use
            different algorithms hang.
        timeout: seconds after which the job is stopped, None for no limit.
        grace: seconds between SIGTERM and SIGKILL when the job is stopped.
        share: oversubscribe slots and GPUs that are already taken.
        log_bytes: the most that the merged log and each rank's log take on a disk.
        spares: hosts that replace failed hosts at a restart.
        max_restarts: the most automatic restarts after a failure.
        min_hosts: the fewest hosts to restart with; 0 for as many as at the start.
        stall_after: seconds without a line from any rank after which evidence is collected, None for never.
        elastic: the launcher restarts ranks itself, with another world size if necessary.
        local_rank_word: the option by which the script receives its local rank; empty for none.
        transport: how ranks are started on hosts other than main, see ``toolkit.protocol.transport``.
        token: authenticates a launcher's daemons to each other; a secret of this job alone, which
            is sent with the variables.
        secret_names: names of the variables under ``secrets:`` of the hosts file, for redaction.
    """

    id: str
    cluster: str
    owner: str
    launcher: str
    command: tuple[str, ...]
    hosts: tuple[JobHost, ...]
    main: str
    master_port: int
    networks: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    host_env: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = field(default=(), repr=False)
    override: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tuned: tuple[tuple[str, str], ...] = ()
    rules: str = ""
    timeout: float | None = None
    grace: float = 10.0
    share: bool = False
    log_bytes: int = DEFAULT_LOG_BYTES
    spares: tuple[JobHost, ...] = ()
    max_restarts: int = 0
    min_hosts: int = 0
    stall_after: float | None = None
    elastic: bool = False
    local_rank_word: str = ""
    transport: str = SSH
    token: str = field(default="", repr=False)
    secret_names: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        return sum(host.slots for host in self.hosts)

    @property
    def has_variables(self) -> bool:
        """True if the supervisor needs variables that the job file leaves out."""
        return bool(self.env or self.host_env or self.override or self.token)

    @property
    def reserve(self) -> tuple[JobHost, ...]:
        """The spares that an elastic launcher can use."""
        own = {host.name for host in self.hosts}
        return tuple(host for host in self.spares if host.name not in own) if self.elastic else ()

    @property
    def least_hosts(self) -> int:
        return self.min_hosts or len(self.hosts)

    @property
    def world_sizes(self) -> tuple[int, int]:
        """The smallest and the largest world size; equal if the job is not elastic."""
        if not self.elastic:
            return self.world_size, self.world_size
        slots = sorted(host.slots for host in (*self.hosts, *self.reserve))
        return sum(slots[: self.least_hosts]), sum(slots[-len(self.hosts) :])

    @property
    def folder(self) -> str:
        """The job's folder inside every container."""
        return str(JOBS / self.id)

    @property
    def workdir(self) -> str:
        """The folder of the job's code snapshot, in which its ranks run."""
        return str(JOBS / self.id / "code")

    @property
    def rank_argv(self) -> tuple[str, ...]:
        """The program that a launcher starts once per rank, and that starts ``command``."""
        return (*program("job.rank"), self.id)


def job_of(about: Mapping[str, Any]) -> Job:
    """Return the job from a job file's content; ignore keys that are no field of a job."""
    names = {each.name for each in fields(Job)}
    made = {name: value for name, value in about.items() if name in names}
    for name in ("hosts", "spares"):
        made[name] = tuple(_host_of(host) for host in about[name])
    for name in ("command", "networks"):
        made[name] = tuple(about[name])
    made["secret_names"] = tuple(about.get("secret_names", ()))  # job files of earlier toolkits have none
    return Job(**made | {"tuned": tuple(about["tuned"].items())})


def _host_of(about: Mapping[str, Any]) -> JobHost:
    return JobHost(**{**about, "taken": tuple(about["taken"]), "gpus": tuple(about["gpus"])})


@dataclass(frozen=True)
class Launch:
    """One process that the supervisor starts, on main or over the cluster's SSH on a worker.

    A word of ``argv`` that is INTERFACE is replaced by the host's data interface.

    Args:
        serves: it serves the other processes: it is stopped after they have exited, and must not exit before.
        name: the name in messages; empty for the name of the program.
    """

    host: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    serves: bool = False
    name: str = ""
