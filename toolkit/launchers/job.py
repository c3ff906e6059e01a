"""A job as a value, and what a launcher makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from toolkit.core.names import INSIDE, JOBS


@dataclass(frozen=True)
class JobHost:
    """A host that takes part, with the number of ranks that run there; ``address`` is its data address."""

    name: str
    address: str
    slots: int


@dataclass(frozen=True)
class Job:
    """One training run.

    Args:
        command: what each rank executes.
        hosts: in rank order; ranks are numbered host by host.
        main: the host on which the launcher runs; it takes no rank unless it is among ``hosts``.
        networks: data networks of the hosts in CIDR form.
        env: the cluster's variables for every rank, its secrets among them; a host's own win over them.
        override: variables that win over all others. Both may hold secrets, so they travel in the job
            file alone and stand in no ``repr``.
        tuned: variables that all others win over, see ``toolkit.network.tuning``.
        rules: Open MPI's file of rules that goes with them; the same on every rank, since ranks that use
            different algorithms hang.
        timeout: seconds after which the job is ended, None for never.
        grace: seconds between SIGTERM and SIGKILL when the job is ended.
        share: start although another job runs on the cluster.
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
    override: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tuned: tuple[tuple[str, str], ...] = ()
    rules: str = ""
    timeout: float | None = None
    grace: float = 10.0
    share: bool = False

    @property
    def world_size(self) -> int:
        return sum(host.slots for host in self.hosts)

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
        return ("python3", str(INSIDE / "rank.py"), self.id)


@dataclass(frozen=True)
class Launch:
    """One process that the supervisor starts: on main itself, or through the cluster's ssh on a worker."""

    host: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


def take_slots(hosts: Sequence[JobHost], ranks: int | None) -> tuple[JobHost, ...]:
    """Return the hosts with room for ``ranks`` ranks, filled in order; all slots when None.

    Raises:
        ValueError: there are fewer slots than ranks, or no rank at all is asked for.
    """
    total = sum(host.slots for host in hosts)
    wanted = total if ranks is None else ranks
    if wanted < 1:
        raise ValueError("a job needs at least one rank")
    if wanted > total:
        raise ValueError(f"{wanted} ranks asked for, but the hosts have {total} slots")
    taken = []
    for host in hosts:
        count = min(host.slots, wanted)
        wanted -= count
        if count:
            taken.append(JobHost(host.name, host.address, count))
    return tuple(taken)
