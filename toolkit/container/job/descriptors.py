"""Descriptors (open files) of the supervisor: the number that a job needs, and the limits on it."""

from __future__ import annotations

import os
import resource
from collections.abc import MutableMapping

from toolkit.container.job_file import Job

# The supervisor's original soft limit, for the launches: many programs pass descriptors to select(2),
# which rejects any above 1,023, so they must start with the limit of the container.
SOFT = "TOOLKIT_OPEN_FILES"

# Three standard streams of a lease; standard input and output of a launch; at the end, the output of an
# ssh for each host whose lease does not answer, with both ends of its pipes during its start.
PER_LEASE, PER_LAUNCH, PER_SWEEP = 3, 2, 5
OTHERS = 64  # the interpreter, logs, selectors, locks, the collector of stacks


def raise_limit() -> int:
    """Raise the soft limit of this process to the hard limit; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.environ.setdefault(SOFT, str(soft))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # the kernel now allows fewer (fs.nr_open)
        return soft
    return hard


def restore_limit(env: MutableMapping[str, str]) -> None:
    """Set the soft limit of this process to the supervisor's original one, if `env` has it."""
    soft = env.pop(SOFT, "")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if soft and 0 <= int(soft) <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), hard))


def needed(job: Job) -> int:
    """Return the maximum number of descriptors that the supervisor of a job needs at once."""
    hosts = {job["main"], *(host["name"] for host in (*job["hosts"], *job["spares"]))}
    return OTHERS + (PER_LEASE + PER_SWEEP) * len(hosts) + PER_LAUNCH * len(job["launches"])


def too_few(job: Job, hard: int) -> str:
    """Return the reason why a job cannot run with a hard limit, empty if it can."""
    need = needed(job)
    if need <= hard:
        return ""
    hosts = len(job["hosts"]) + len(job["spares"])
    return (
        f"the supervisor on {job['main']} needs {need:,} open files for {hosts} hosts, but the hard limit of "
        f"its container is {hard:,}; set `ulimits: {{nofile: {need}}}` in hosts.yaml, then run `toolkit up`"
    )
