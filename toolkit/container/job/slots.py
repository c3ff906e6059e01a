"""Slots that running jobs of this cluster have taken, and a lock for taking slots."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from toolkit.container.job_file import Host, Job, read_job
from toolkit.container.job_list import read_status
from toolkit.container.paths import root
from toolkit.container.tags import SUPERVISOR_TAG, is_tagged
from toolkit.protocol.outcomes import FINAL_STATES


def taken(hosts: Sequence[Host]) -> dict[str, list[int]]:
    return {host["name"]: host["taken"] for host in hosts}


@contextmanager
def slot_lock() -> Iterator[None]:
    """Hold a lock, so that only one job at a time takes slots and later ones see them."""
    with (root() / "jobs" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def taken_by_another(job: Job) -> str:
    """Describe a requested slot or GPU that another running job has taken; empty if there is none."""
    for path in (root() / "jobs").glob("*/status.json"):
        other = path.parent.name
        status = read_status(other)
        if status is None or other == job["id"] or status["state"] in FINAL_STATES:
            continue
        if not is_tagged(status["pid"], SUPERVISOR_TAG, other):
            continue
        theirs = status["hosts"]
        with suppress(OSError, ValueError, RecursionError):  # a damaged record must end no other job
            theirs = taken(read_job(other)["hosts"])
        for host in job["hosts"]:
            both = sorted(set(host["taken"]) & set(theirs.get(host["name"], ())))
            if both:
                return f"slot {both[0]} of {host['name']} was reserved by job {other} after the check"
    return ""
