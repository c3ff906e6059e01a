"""The states of an attempt: the table of their transitions."""

from __future__ import annotations

import itertools

import pytest

from toolkit.container.job.attempt import Progress, State, next_state

RUNS = Progress(under_way=True)
GONE = Progress(under_way=False)
ENDS = RUNS._replace(ends=True)
TRANSITIONS = [
    (State.RUNNING, RUNS, State.RUNNING),
    (State.RUNNING, GONE, State.OVER),
    (State.RUNNING, ENDS, State.ENDING_RANKS),
    (State.RUNNING, ENDS._replace(at_once=True), State.KILLING),
    # A launch that failed has ended without a request: its ranks receive the signal anyway.
    (State.RUNNING, ENDS._replace(under_way=False), State.ENDING_RANKS),
    (State.ENDING_RANKS, ENDS, State.ENDING_RANKS),
    (State.ENDING_RANKS, ENDS._replace(ranks_ended=True), State.STOPPING),
    (State.ENDING_RANKS, ENDS._replace(at_once=True), State.KILLING),
    (State.ENDING_RANKS, ENDS._replace(under_way=False), State.OVER),
    (State.STOPPING, ENDS, State.STOPPING),
    (State.STOPPING, ENDS._replace(at_once=True), State.KILLING),
    (State.STOPPING, ENDS._replace(under_way=False), State.OVER),
    (State.KILLING, ENDS._replace(at_once=True), State.KILLING),
    (State.KILLING, ENDS._replace(under_way=False, at_once=True), State.OVER),
    (State.OVER, ENDS._replace(under_way=False, at_once=True, ranks_ended=True), State.OVER),
]
ORDER = list(State)


@pytest.mark.parametrize(("state", "seen", "then"), TRANSITIONS)
def test_the_table_of_transitions(state: State, seen: Progress, then: State) -> None:
    assert next_state(state, seen) is then


def test_no_transition_leads_back_and_each_attempt_without_launches_gets_to_its_end() -> None:
    for flags in itertools.product((False, True), repeat=4):
        seen = Progress(*flags)
        for state in State:
            if state is State.OVER and seen.under_way:
                continue  # launches do not start again
            passed = [state]
            while (then := next_state(passed[-1], seen)) is not passed[-1]:
                assert ORDER.index(then) > ORDER.index(passed[-1])
                passed.append(then)
            assert seen.under_way or passed[-1] is State.OVER
