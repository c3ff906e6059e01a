"""States of a job as its supervisor writes them into status.json, and their order."""

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
        raise ValueError(f"a job that is {before.value} cannot become {after.value}")
    return after.value
