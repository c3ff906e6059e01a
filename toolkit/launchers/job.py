"""A job as a value, and what a launcher makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from toolkit.protocol.names import DEFAULT_LOG_BYTES, JOBS, program
from toolkit.protocol.transport import SSH

# See ``Launch``; launch.py on the host knows it.
INTERFACE = "{interface}"


@dataclass(frozen=True)
class JobHost:
    """A host that takes part.

    Args:
        address: its data address.
        slots: the number of ranks that run there.
        taken: which of the host's slots these are, counted from 0.
        gpus: UUIDs of the GPUs that belong to these slots.
        visible: CUDA_VISIBLE_DEVICES for the ranks; empty where the job has all of the container's GPUs.
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
        command: what each rank executes.
        hosts: in rank order; ranks are numbered host by host.
        main: the host on which the launcher runs; it takes no rank unless it is among ``hosts``.
        networks: data networks of the hosts in CIDR form.
        env: the cluster's variables for every rank, its secrets among them.
        host_env: the variables of single hosts, which win over ``env``.
        override: variables that win over all others. All three can hold secrets, so they are in no
            ``repr`` and no job file: only the start of a supervisor carries them, see ``StartJob``.
        tuned: variables that all others win over, see ``toolkit.network.tuning``.
        rules: Open MPI's file of rules that goes with them; the same on every rank, since ranks that use
            different algorithms hang.
        timeout: seconds after which the job is ended, None for never.
        grace: seconds between SIGTERM and SIGKILL when the job is ended.
        share: take slots and GPUs whoever has them.
        log_bytes: the most that the merged log and each rank's own may take on a disk.
        spares: hosts that take part in place of others when it is started again.
        max_restarts: how often it is started again by itself after a failure.
        min_hosts: with how many hosts at least; 0 for as many as at first.
        stall_after: seconds without a line from any rank after which evidence is collected, None for never.
        elastic: the launcher starts ranks again by itself, in a world of another size if need be.
        local_rank_word: the script is given ``--local_rank=N``, as DeepSpeed's launcher does.
        transport: how ranks are started on hosts other than main, see ``toolkit.protocol.transport``.
        token: what a launcher's own daemons know each other by; a secret of this job alone, which
            is sent with the variables.
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
    local_rank_word: bool = False
    transport: str = SSH
    token: str = field(default="", repr=False)

    @property
    def world_size(self) -> int:
        return sum(host.slots for host in self.hosts)

    @property
    def has_variables(self) -> bool:
        """Whether a supervisor needs what the job file leaves out."""
        return bool(self.env or self.host_env or self.override or self.token)

    @property
    def reserve(self) -> tuple[JobHost, ...]:
        """The spares that an elastic launcher may take in."""
        own = {host.name for host in self.hosts}
        return tuple(host for host in self.spares if host.name not in own) if self.elastic else ()

    @property
    def least_hosts(self) -> int:
        return self.min_hosts or len(self.hosts)

    @property
    def world_sizes(self) -> tuple[int, int]:
        """The least and the most ranks that there may be at once; the same where the job is not elastic."""
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
        """Where the job's snapshot of the code stands, and where its ranks run."""
        return str(JOBS / self.id / "code")

    @property
    def rank_argv(self) -> tuple[str, ...]:
        """The program that launchers start once per rank; it starts ``command``."""
        return (*program("job.rank"), self.id)


def job_of(about: Mapping[str, Any]) -> Job:
    """Return the job of a job file's content; what is not a job's own there is passed over."""
    names = {each.name for each in fields(Job)}
    made = {name: value for name, value in about.items() if name in names}
    for name in ("hosts", "spares"):
        made[name] = tuple(_host_of(host) for host in about[name])
    for name in ("command", "networks"):
        made[name] = tuple(about[name])
    return Job(**made | {"tuned": tuple(about["tuned"].items())})


def _host_of(about: Mapping[str, Any]) -> JobHost:
    return JobHost(**{**about, "taken": tuple(about["taken"]), "gpus": tuple(about["gpus"])})


@dataclass(frozen=True)
class Launch:
    """One process that the supervisor starts: on main itself, or through the cluster's ssh on a worker.

    A word of ``argv`` that is INTERFACE stands for that host's data interface.

    Args:
        serves: it is there for the others: it is ended when they have ended, and is not to end before.
        name: what a person calls it; empty for the program's own name.
    """

    host: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    serves: bool = False
    name: str = ""
