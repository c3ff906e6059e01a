"""Reports of several plans become one: no failure and no host is lost, however often that is done."""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import get_args

import pytest

import toolkit
from tests.unit import cluster_world as world
from toolkit.cluster.session import Session
from toolkit.core.report import FailureCause, Outcome, PlanFailed, Report, Status
from toolkit.errors import Unreachable
from toolkit.jobs.status import FAULTS, together
from toolkit.lifecycle.up import plan_up
from toolkit.plan.execute import PlanInterrupted, reported_after, step_key
from toolkit.plan.steps import Plan
from toolkit.protocol.jobs import Status as JobStatus

HOSTS = ("gpu1", "gpu2", "cpu3")
SEEDS = range(300)


def outcomes(rng: random.Random, count: int = 6) -> tuple[Outcome, ...]:
    """Few steps, so that two reports have many in common, and one may have the same step twice."""
    return tuple(
        Outcome(
            rng.choice(("image", "data")),
            rng.choice(("send", "look")),
            rng.choice(HOSTS),
            rng.choice(get_args(Status)),
            detail=str(rng.random()),
            id=rng.choice(("", "one")),
        )
        for _ in range(rng.randrange(count))
    )


def report(rng: random.Random) -> Report:
    return Report("up", outcomes(rng), rng.randrange(9))


def check_merge(merged: Report, *inputs: Report) -> None:
    """No host is lost, nor a failure that no later outcome of the very same step replaces."""
    for number, one in enumerate(inputs):
        later = [o for after in inputs[number + 1 :] for o in after.outcomes]
        ran = {o.key for o in later if o.status != "not run"}
        named = {o.key for other in inputs if other is not one for o in other.outcomes}
        assert set(one.hosts()) <= set(merged.hosts())
        for outcome in one.outcomes:
            assert outcome in merged.outcomes or outcome.key in named
            assert outcome in merged.failures or outcome.status != "failed" or outcome.key in ran
    assert merged.ok or not all(one.ok for one in inputs), "a merge makes no failure up"
    assert len(merged.outcomes) <= sum(len(one.outcomes) for one in inputs)
    last = inputs[-1]
    assert last.ok or not merged.ok, "what the last plan did not do is not done"


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_no_failure_and_no_host_is_lost_by_a_merge(number: int) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        inputs = [report(rng) for _ in range(number)]
        merged = reduce(lambda before, after: after.after(before), inputs)
        check_merge(merged, *inputs)
        assert merged.seconds == sum(one.seconds for one in inputs)
    assert report(random.Random(1)).after(None) == report(random.Random(1))


def test_an_outcome_is_replaced_by_that_of_the_very_same_step_alone() -> None:
    failed = Outcome("data", "send", "gpu1", "failed")
    for after, counts in (
        (replace(failed, status="ok"), "ok"),
        (replace(failed, status="skipped"), "skipped"),
        (replace(failed, status="not run"), "failed"),
    ):
        (merged,) = Report("p", (after,)).after(Report("p", (failed,))).outcomes
        assert merged.status == counts
    for other in (
        replace(failed, status="ok", host="gpu2"),
        replace(failed, status="ok", step="look"),
        replace(failed, status="ok", phase="image"),
    ):
        assert failed in Report("p", (other,)).after(Report("p", (failed,))).failures
    did, nothing = replace(failed, status="ok"), replace(failed, status="skipped")
    assert Report("p", (nothing,)).after(Report("p", (did,))).changes == 1


def test_a_session_adds_hosts_that_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        session = Session(world.inventory())
        session.errors = {h: Unreachable("no answer", "", h) for h in HOSTS if rng.random() < 0.3}
        session.facts = {h: f for h, f in world.cluster_facts().items() if h not in session.errors}
        session.runners = {h: object() for h in session.facts}  # type: ignore[misc]
        own, pressed = report(rng), rng.random() < 0.3

        def carry_out(*rest: object, own: Report = own, pressed: bool = pressed) -> Report:
            if pressed:
                raise PlanInterrupted(own)
            return own

        monkeypatch.setattr("toolkit.cluster.session.execute", carry_out)
        monkeypatch.setattr(Session, "probe_again", keep)
        silent = Report("connect", session.connect_outcomes())
        for act in (session.execute, session.pull):
            try:
                merged = act(Plan("p", ()))
            except (PlanInterrupted, PlanFailed) as error:
                merged = error.report
            check_merge(merged, silent, own)


def keep(session: Session, hosts: list[str]) -> None:
    session.facts = {name: session.facts[name] for name in hosts}


def test_an_interrupt_reports_what_ran_before_it() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        first, second = report(rng), report(rng)
        with pytest.raises(PlanInterrupted) as pressed, reported_after(first):
            raise PlanInterrupted(second)
        check_merge(pressed.value.report, first, second)


def test_an_interrupt_between_two_plans_reports_the_first() -> None:
    first = report(random.Random(7))
    with pytest.raises(PlanInterrupted) as pressed, reported_after(first):
        raise KeyboardInterrupt
    assert pressed.value.report == first
    for nothing in (None, Report("up", ())):
        with pytest.raises(KeyboardInterrupt), reported_after(nothing):
            raise KeyboardInterrupt


def test_a_plan_for_another_port_has_the_same_steps() -> None:
    def keys(more: str) -> list[tuple[str, str, str]]:
        text = world.HOSTS.replace("cluster: demo", f"cluster: demo\n{more}")
        plan = plan_up(world.layout(text), world.INSIDE)
        return [step_key(phase, step) for phase in plan.phases for step in phase.steps]

    assert keys("") == keys("worker_port: 12399") and len(set(keys(""))) == len(keys(""))


def test_the_state_of_a_job_is_that_of_its_worst_part() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        known = ("starting", "running", "succeeded", *FAULTS)
        states = [rng.choice(known) for _ in range(rng.randrange(1, 5))]
        parts = {
            f"h{n}": JobStatus(state, started=n, ended=None if "ing" in state else rng.random() * 9 + 1)
            for n, state in enumerate(states)
        }
        state = together(parts).state
        if {"starting", "running"} & set(states):
            assert state in ("starting", "running")
        else:
            assert state in (set(FAULTS) & set(states) or {"succeeded"})


# Modules that make a report of their own outcomes; wherever else two become one, it is by Report.after.
MAKERS = {
    "core/report.py",
    "plan/execute.py",
    "cluster/session.py",
    "bench/smoke.py",
    "lab/build.py",
    "lifecycle/port_retry.py",
}


def test_reports_are_merged_in_one_place() -> None:
    root = Path(toolkit.__file__).parent
    found = set()
    texts = {path: path.read_text() for path in root.rglob("*.py")}
    for path, text in texts.items():
        # What contains neither name need not be parsed.
        for node in ast.walk(ast.parse(text if "Report" in text or "outcomes" in text else "")):
            if not isinstance(node, ast.Call):
                continue
            made = isinstance(node.func, ast.Name) and node.func.id == "Report"
            if made or any(word.arg == "outcomes" for word in node.keywords):
                found.add(str(path.relative_to(root)))
    assert found == MAKERS


def test_a_cause_is_data_of_its_own() -> None:
    lost = Outcome("sshd", "listens", "gpu1", "failed", detail="x", cause=FailureCause.PORT_TAKEN)
    told = Report("p", (lost, replace(lost, cause=FailureCause.OTHER))).as_json()["outcomes"]
    assert told[0]["cause"] == "port taken" and "cause" not in told[1] and "id" not in told[0]
