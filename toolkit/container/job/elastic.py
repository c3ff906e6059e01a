"""Hosts of an elastic attempt: its launcher restarts ranks; this module determines the hosts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from toolkit.container.conventions import job_folder
from toolkit.container.files import write_text
from toolkit.container.job_file import Host, Job
from toolkit.protocol.outcomes import EXIT_LOST

# In a job's folder on main: the answer to Horovod's discovery, a line `box1:2` per host.
DISCOVERED = "discovered"


class Members(NamedTuple):
    """Hosts of an elastic attempt.

    Args:
        hosts: in the order in which they joined.
        reserve: hosts that can replace others.
        least: minimum number of hosts.
        fixed: the host of the launcher's rendezvous, which cannot be replaced; empty if there is none.
    """

    hosts: tuple[Host, ...]
    reserve: tuple[Host, ...]
    least: int
    fixed: str

    def without(self, name: str, there: Collection[str]) -> Members | None:
        """Return the members without a lost host, with a spare in its place; None if too few are left."""
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
    """Return the members at the start of an attempt."""
    # torchrun's store is on the first host; horovodrun's driver is on main, which is always required.
    fixed = job["hosts"][0]["name"] if job["launcher"] == "torchrun" else ""
    least = job["min_hosts"] or len(job["hosts"])
    return Members(tuple(job["hosts"]), tuple(reserve_of(job)), least, fixed)


def reserve_of(job: Job) -> list[Host]:
    """Return the spare hosts for an elastic launcher; none if it does not restart ranks in place."""
    own = {host["name"] for host in job["hosts"]}
    return [host for host in job["spares"] if host["name"] not in own] if job["elastic"] else []


def hosts_of(job: Job) -> list[Host]:
    """Return all hosts on which ranks of an attempt can run."""
    return [*job["hosts"], *reserve_of(job)]


def say_who_is_there(job: Job, hosts: Sequence[Host]) -> str:
    """Set the hosts that horovodrun's discovery returns; return the error, empty on success."""
    if job["launcher"] != "horovodrun":
        return ""
    path = job_folder(job["id"]) / DISCOVERED
    try:
        write_text(path, "".join(f"{host['name']}:{host['slots']}\n" for host in hosts))
    except OSError as error:
        return f"{job['main']} cannot write {path}: {error.strerror}"
    return ""


def host_that_goes(job: Job, end_host: str, lost: bool) -> str:
    """Return the host that leaves the attempt after a rank died there or it was lost; empty for none.

    Horovod does not restart ranks on a host where a rank has died.
    """
    return end_host if lost or job["launcher"] == "horovodrun" else ""


def launcher_goes_on(job: Job, code: int) -> bool:
    """Return whether this end of a launch costs only its host; otherwise the job has failed.

    A torchrun that is killed, or whose connection is lost, ends the ranks of its own host. A torchrun that
    exits has given up, and horovodrun is the complete job.
    """
    return job["launcher"] == "torchrun" and (code > 128 or code == EXIT_LOST)
