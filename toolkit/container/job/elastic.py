"""The hosts of an elastic attempt: its launcher starts ranks again by itself; here is said on which hosts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from toolkit.container.files import write_text
from toolkit.container.job_file import Host, Job
from toolkit.container.paths import job_folder
from toolkit.protocol.exit_codes import EXIT_LOST

# In a job's folder on main: what Horovod's discovery is answered, `box1:2` a line.
DISCOVERED = "discovered"


class Members(NamedTuple):
    """Who takes part.

    Args:
        hosts: in the order in which they came.
        reserve: those that may come in place of others.
        least: how many hosts there must be.
        fixed: the host with which the launcher's own meeting point goes; empty where there is none.
    """

    hosts: tuple[Host, ...]
    reserve: tuple[Host, ...]
    least: int
    fixed: str

    def without(self, name: str, there: Collection[str]) -> Members | None:
        """Those who go on when a host is gone, a spare that answers in its place; None when nobody can."""
        spare = next((host for host in self.reserve if host["name"] in there), None)
        left = tuple(host for host in self.hosts if host["name"] != name)
        hosts = (*left, spare) if spare else left
        if name == self.fixed or len(hosts) < self.least:
            return None
        reserve = tuple(host for host in self.reserve if host is not spare)
        return Members(hosts, reserve, self.least, self.fixed)

    @property
    def names(self) -> list[str]:
        return [host["name"] for host in self.hosts]


def members_of(job: Job) -> Members:
    """Those of an attempt at its beginning."""
    # torchrun's store stands on the first host; horovodrun's driver on main, without which nobody is.
    fixed = job["hosts"][0]["name"] if job["launcher"] == "torchrun" else ""
    least = job["min_hosts"] or len(job["hosts"])
    return Members(tuple(job["hosts"]), tuple(reserve_of(job)), least, fixed)


def reserve_of(job: Job) -> list[Host]:
    """The spares that an elastic launcher may take in; none where ranks are not started again in place."""
    own = {host["name"] for host in job["hosts"]}
    return [host for host in job["spares"] if host["name"] not in own] if job["elastic"] else []


def hosts_of(job: Job) -> list[Host]:
    """All hosts on which ranks of an attempt may run."""
    return [*job["hosts"], *reserve_of(job)]


def say_who_is_there(job: Job, hosts: Sequence[Host]) -> None:
    """Answer the launcher's discovery from now on with these hosts."""
    lines = [f"{host['name']}:{host['slots']}\n" for host in hosts]
    write_text(job_folder(job["id"]) / DISCOVERED, "".join(lines))


def host_that_goes(job: Job, end_host: str, lost: bool) -> str:
    """The host that takes no further part when a rank there has died, or it is lost; empty for none.

    Horovod starts no rank again on a host on which one has died.
    """
    return end_host if lost or job["launcher"] == "horovodrun" else ""


def launcher_goes_on(job: Job, code: int) -> bool:
    """Whether a launch that ended so takes its host away and no more; else the job has failed.

    A torchrun that is killed, or whose connection is, takes its own host's ranks along. One that ends by
    itself has given up, and horovodrun is the whole job.
    """
    return job["launcher"] == "torchrun" and (code > 128 or code == EXIT_LOST)
