"""Decision about the restart of a failed job: if, when and on which hosts."""

from __future__ import annotations

import fcntl
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from toolkit.container.conventions import SUPERVISOR_TAG, is_tagged, root
from toolkit.container.job.lease_client import Leases
from toolkit.container.job.rank_records import End
from toolkit.container.job.variables import AllVariables
from toolkit.container.job_file import Host, Job, read_job
from toolkit.container.job_list import read_status
from toolkit.protocol.host_list import host_list
from toolkit.protocol.outcomes import FINAL_STATES

ACQUIRE_S = 8.0  # wait for hosts to answer; then continue with those that have answered
DOUBTFUL_S = 2.0  # wait for hosts that were lost recently
FIRST_WAIT_S, MOST_WAIT_S = 1.0, 60.0
# After an attempt of at least this duration, the backoff starts again at its first value.
CALM_S = 600.0
# A host with this number of failed attempts is replaced by one without failures.
SUSPECT = 2
_OWN = (
    "attempt",
    "hosts",
    "world_size",
    "launches",
    "master_address",
    "master_port",
    "tuned",
    "rules",
    "world_sizes",
)


class Restarts:
    """Failures so far, and the resulting decisions."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.wanted = len(job["hosts"])
        self._failed: Counter[str] = Counter()  # by host
        self._wait = FIRST_WAIT_S
        self.done: list[dict[str, Any]] = []

    def may_follow(self, end: End) -> bool:
        """Return whether another attempt is allowed after this end."""
        return end.state == "failed" and len(self.done) < self._job["max_restarts"]

    def why_not(self, end: End) -> str:
        """Return a note for users about an end without a restart; empty if there is none."""
        most = self._job["max_restarts"]
        if end.state != "failed" or not most:
            return ""
        return f"; toolkit gave up after {count(most, 'restart')}"

    def note(self, end: End, hosts: Sequence[str], lasted: float) -> float:
        """Record a failure on these hosts; return the seconds to wait (backoff)."""
        self._failed[end.host] += 1
        self.done.append({"at": time.time(), "reason": end.reason, "host": end.host, "hosts": list(hosts)})
        if lasted > CALM_S:
            self._wait = FIRST_WAIT_S
        wait, self._wait = self._wait, min(2 * self._wait, MOST_WAIT_S)
        return wait

    def candidates(self) -> list[Host]:
        """Return all possible hosts, the preferred ones first."""
        every = (*self._job["hosts"], *self._job["spares"])
        return sorted(every, key=lambda host: self._failed[host["name"]] >= SUSPECT)

    def idle(self, hosts: Sequence[Host], unswept: Collection[str]) -> list[Host]:
        """Return reachable hosts with the job's file that took no part in its last attempt."""
        last = {host["name"] for host in hosts}
        every = (*self._job["hosts"], *self._job["spares"])
        return [host for host in every if host["name"] not in last and host["name"] not in unswept]


def acquire_leases(
    job: Job,
    variables: AllVariables | None,
    candidates: Sequence[Host],
    number: int,
    lost: Sequence[str],
    stop: Callable[[], bool],
) -> Leases:
    """Acquire leases on all candidates; return when each has answered or is lost, or after a time limit.

    Args:
        number: number of the next attempt.
        lost: recently lost hosts: not waited for if enough others answer.
    """
    leases = Leases({**job, "hosts": list(candidates), "attempt": number}, variables)
    begun = time.monotonic()
    others = {host["name"] for host in candidates} - set(lost)
    enough = job["min_hosts"] or len(job["hosts"])
    while not leases.all_answered() and not stop() and time.monotonic() < begun + ACQUIRE_S:
        waited = time.monotonic() > begun + DOUBTFUL_S and leases.all_answered(others)
        if waited and len(others.intersection(leases.there())) >= enough:
            break
        time.sleep(0.05)
    return leases


def next_job(job: Job, hosts: Sequence[Host], number: int, port: int) -> Job:
    """Return the job on other hosts: new ranks, launches, address and port."""
    # `up` installs it next to this package.
    from toolkit.launchers import about_job
    from toolkit.launchers.job import job_of

    changes: dict[str, Any] = {"hosts": list(hosts), "master_port": port}
    if [host["name"] for host in hosts] != [host["name"] for host in job["hosts"]]:
        changes |= {"tuned": {}, "rules": ""}  # measured on exactly the previous hosts
    made = about_job(job_of({**job, **changes}))
    return cast(Job, {**job, **made, "attempt": number})


def part_of_attempt(job: Job) -> dict[str, Any]:
    """Return the fields of a job that differ in another attempt; the rest is in job.json."""
    return {name: value for name, value in job.items() if name in _OWN}


def taken(hosts: Sequence[Host]) -> dict[str, list[int]]:
    return {host["name"]: host["taken"] for host in hosts}


@contextmanager
def slot_lock() -> Iterator[None]:
    """Hold a lock, so that only one job at a time takes slots and later ones see them."""
    with (root() / "jobs" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def taken_by_another(job: Job, hosts: Sequence[Host]) -> dict[str, str]:
    """Describe, for each of these hosts, a slot of the job that another running job has taken.

    Empty if all slots are free, or if the job shares its slots.
    """
    found: dict[str, str] = {}
    for path in () if job["share"] else (root() / "jobs").glob("*/status.json"):
        other = path.parent.name
        status = read_status(other)
        if status is None or other == job["id"] or status["state"] in FINAL_STATES:
            continue
        if not is_tagged(status["pid"], SUPERVISOR_TAG, other):
            continue
        theirs = status["hosts"]
        if not theirs:  # status.json is damaged
            with suppress(OSError, ValueError, RecursionError):  # a damaged record must end no other job
                theirs = taken(read_job(other)["hosts"])
        for host in hosts:
            if both := sorted(set(host["taken"]) & set(theirs.get(host["name"], ()))):
                found[host["name"]] = (
                    f"slot {both[0]} of {host['name']} was reserved by job {other} after the "
                    "check of free slots"
                )
    return found


def too_few(there: Sequence[Host], least: int) -> str:
    """Describe why a job cannot start on too few hosts."""
    names = host_list(host["name"] for host in there)
    who = f"only {names} {'answer' if len(there) > 1 else 'answers'}" if there else "no host answers"
    return f"{who}, but the job requires {count(least, 'host')} (--min-hosts)"


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
