"""Outcomes of a job: its states in status.json with their order, and exit codes of programs in containers."""

from __future__ import annotations

from enum import Enum


class JobState(str, Enum):
    """State of a job; its value is what status.json and `--json` contain."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    TIMEOUT = "timeout"


FINAL_STATES = (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.TIMEOUT)
_NEXT = {
    JobState.STARTING: (JobState.RUNNING, *FINAL_STATES),
    JobState.RUNNING: (JobState.RESTARTING, *FINAL_STATES),
    JobState.RESTARTING: (JobState.RUNNING, *FINAL_STATES),
}


def next_state(state: str, then: str) -> str:
    """Return the state that a job enters, as status.json contains it.

    Raises:
        ValueError: a job in the first state cannot enter the second one, or one of them is not a state.
    """
    before, after = JobState(state), JobState(then)
    if after not in _NEXT.get(before, ()):
        raise ValueError(f"the state of a job cannot change from {before.value} to {after.value}")
    return after.value


# Exit codes of programs in containers.
EXIT_USAGE = 64  # the numbers of sysexits.h: a wrong call or a wrong world size
EXIT_STARTED = 65  # this job has been started before
EXIT_NO_INPUT = 66  # there is no such job on this host
EXIT_LOST = 69  # a host of the job is gone
EXIT_BROKEN = 70  # toolkit failed, not the job
EXIT_NO_LOG = 73  # a log or another file of the job cannot be written
