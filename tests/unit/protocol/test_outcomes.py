"""The states of a job: which one can follow which."""

from __future__ import annotations

import itertools

import pytest

from toolkit.protocol.outcomes import FINAL_STATES, JobState, next_state

FINAL = {"succeeded", "failed", "stopped", "timeout"}
NEXT = {
    "starting": {"running", *FINAL},
    "running": {"restarting", *FINAL},
    "restarting": {"running", *FINAL},
}


def test_the_table_of_transitions() -> None:
    assert set(FINAL_STATES) == FINAL and {*NEXT, *FINAL} == {state.value for state in JobState}
    for state, then in itertools.product(JobState, JobState):
        if then.value in NEXT.get(state.value, ()):
            assert next_state(state.value, then.value) == then.value
        else:
            with pytest.raises(ValueError, match=f"cannot change from {state.value} to {then.value}"):
                next_state(state.value, then.value)


def test_a_word_that_is_no_state_is_refused() -> None:
    with pytest.raises(ValueError, match="lost"):
        next_state("running", "lost")
