"""The fault matrix as values: cases by seed and number, verdicts, history, figures."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import agent
from tests.faults.__main__ import BEGIN, END, KEPT, listing, told, with_runs, with_table
from tests.faults.catalogue import FAULTS, PHASE, PHASES, RUN
from tests.faults.census import Census
from tests.faults.history import (
    UNKNOWN,
    Outcome,
    broken_table,
    figures,
    longest,
    longest_table,
    next_index,
    not_in,
    outcome_of,
    parse_history,
    table,
)
from tests.faults.model import HOSTS, Answer, Case, Shell, case_at, combinations
from tests.faults.verdict import Seen, broken, root_cause
from tests.unit.each import for_each

ROOT = Path(__file__).resolve().parents[2]
# The broken runs by tested commit that were once replaced in the kept history.
BROKEN = {"05c6d61": 1, "2752451": 4, "ecb9fe6": 3, "5d3590d": 1}
CASE = Case(1, 7, "rank-kill", "step", "box2", "mpirun", 0.5, False)
CRASH = Answer(r"[1-9]\d*", ("failed",), r"\brank {rank} on {host}\b", notice=3, end=3, gone=3)
GOOD = Seen(
    injected=True,
    noticed=0.6,
    ended=0.9,
    exit=137,
    state="failed",
    cause="rank 1 on box2 was killed by SIGKILL",
    gone=dict.fromkeys(HOSTS, 0.5),
)


def test_a_case_is_told_by_its_seed_and_number() -> None:
    first = [case_at(FAULTS, 3, index) for index in range(50)]
    assert first == [case_at(FAULTS, 3, index) for index in range(50)]
    assert first != [replace(case_at(FAULTS, 4, index), seed=3) for index in range(50)]


def test_each_round_has_every_combination_once() -> None:
    every = Counter(combinations(FAULTS))
    assert set(every.values()) == {1}
    size = len(every)
    for start in (0, size):
        cases = [case_at(FAULTS, 1, index) for index in range(start, start + size)]
        assert Counter((case.fault, case.phase) for case in cases) == every


def test_cases_alternate_launchers_and_take_hosts_that_the_fault_may_strike() -> None:
    by_name = {fault.name: fault for fault in FAULTS}
    cases = [case_at(FAULTS, 1, index) for index in range(300)]
    assert all(case.host in by_name[case.fault].hosts for case in cases)
    assert {case.launcher for case in cases} == {"mpirun", "torchrun"}
    assert all(case.down for case in cases if by_name[case.fault].settle)
    assert {case.host for case in cases if case.fault == "rank-kill"} <= set(HOSTS)


@pytest.mark.parametrize(
    ("only", "faults", "phases"),
    [
        ("rank-kill", {"rank-kill"}, {"step", "checkpoint"}),
        ("rank-kill/step", {"rank-kill"}, {"step"}),
        ("/send", set(), {"send"}),
    ],
)
def test_some_alone(only: str, faults: set[str], phases: set[str]) -> None:
    found = combinations(FAULTS, only)
    assert {phase for _, phase in found} == phases
    assert not faults or {name for name, _ in found} == faults


def test_a_fault_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="no fault is called nothing"):
        case_at(FAULTS, 1, 0, "nothing")


def test_the_catalogue_holds_together() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {phase for fault in FAULTS for phase in fault.answers} == set(PHASE)
    for fault in FAULTS:
        for phase, answer in fault.answers.items():
            re.compile(answer.cause.format(host="box1", rank=0))
            re.compile(answer.exit)
            if answer.goes_on:
                assert PHASE[phase].verb == "run", fault.name
            # Without a job there is nothing that could have ended in a state.
            assert not answer.states or phase in (*RUN, "launch-before"), fault.name
        if isinstance(fault.effect, Shell):
            for text in (fault.effect.make, fault.effect.mend):
                done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, check=False)
                assert done.returncode == 0, (fault.name, done.stderr)


def test_the_list_names_everything() -> None:
    text = listing()
    assert all(each.name in text for each in FAULTS)
    assert all(each.name in text for each in PHASES)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("job a-1: failed after 3.1 s, exit code 9: rank 1 on box2 ended\n", "rank 1 on box2 ended"),
        ("job a-1: 3 ranks (box1 x 1), mpirun\njob a-1: succeeded after 3.1 s, exit code 0\n", ""),
        ("up: failed on 1 of 3 hosts\n  box1: ok (3 changes)\n  box2: FAILED at y", "box2: FAILED at y"),
        (" FAILED  box2: y  1.0 s\nup: failed on 1 of 1 host\n  box2: FAILED at y", "box2: FAILED at y"),
        (" FAILED  box2: start it  1.0 s\n          no such image\n", "box2: start it  1.0 s: no such image"),
        (
            "toolkit: 2 hosts are not ready\n  box2: a\n    fix: b\n",
            "2 hosts are not ready | box2: a | fix: b",
        ),
        ("nothing\n", ""),
    ],
)  # fmt: skip
def test_the_line_that_says_why(text: str, cause: str) -> None:
    assert root_cause(text) == cause


@for_each(
    ("change", "kinds"),
    [
        ({}, []),
        ({"exit": 0}, ["exit code"]),
        ({"state": "lost"}, ["state"]),
        ({"cause": "rank 2 on box3 was killed"}, ["cause"]),
        ({"cause": ""}, ["cause"]),
        ({"noticed": None}, ["late"]),
        ({"noticed": 3.5, "ended": 3.6}, ["late", "late"]),
        ({"gone": {"box1": None, "box2": 1.0}}, ["late"]),
        ({"left": ["box2: process 1@2 sleep"]}, ["left"]),
        ({"harmed": ["box2: the stranger's process is gone"]}, ["harmed"]),
        ({"checkpoint": "ckpt-3 is not whole"}, ["checkpoint"]),
        ({"slow": ["toolkit down took 90 s, not 60"]}, ["limit"]),
        ({"trouble": ["a traceback"]}, ["afterwards"]),
        (
            {"injected": False, "exit": 0, "slow": ["toolkit run took 90 s"], "left": ["box2: mount /a"]},
            ["left"],
        ),
        ({"lab": "box2 does not answer", "left": ["what nobody can say"]}, ["lab"]),
    ],
)
def test_what_is_broken(change: dict[str, object], kinds: list[str]) -> None:
    seen = replace(GOOD, **change)  # type: ignore[arg-type]
    assert [line.partition(":")[0] for line in broken(CASE, CRASH, seen)] == kinds


@pytest.mark.parametrize(("exit_", "fine"), [(143, True), (-15, True), (-2, False), (130, False)])
def test_a_code_is_as_a_shell_tells_it(exit_: int, fine: bool) -> None:
    found = broken(CASE, replace(CRASH, exit="143|0"), replace(GOOD, exit=exit_))
    assert any(line.startswith("exit code") for line in found) != fine


def test_the_struck_host_has_a_limit_of_its_own() -> None:
    answer = replace(CRASH, gone=8, own=15)
    assert broken(CASE, answer, replace(GOOD, gone={"box1": 7.0, "box2": 14.0, "box3": 2.0})) == []
    assert broken(CASE, answer, replace(GOOD, gone={"box1": 14.0, "box2": 14.0})) == [
        "late: box1 clean after 14.0 s, not 8"
    ]


def row(index: int = 7, **change: object) -> Outcome:
    outcome = outcome_of(replace(CASE, index=index), CRASH, GOOD, "abc", 4.0)
    return replace(outcome, **change)  # type: ignore[arg-type]


def test_a_history_goes_on_after_its_last_line() -> None:
    rows = [row(0), row(1), row(0, seed=2), row(40, only="rank-kill")]
    text = "".join(f"{each.line()}\n" for each in rows) + '{"seed": 1, "index": 2, "fau'
    assert parse_history(text) == rows
    assert [next_index(rows, 1), next_index(rows, 2), next_index(rows, 3)] == [2, 1, 0]
    assert next_index(rows, 1, "rank-kill") == 41


def test_a_history_of_another_version_can_be_read() -> None:
    line = row(0).line().replace('"index": 0', '"index": 0, "newer": 1')
    assert parse_history(line) == [row(0)]


def test_a_fix_is_recorded_in_the_line_of_the_run_that_needed_it() -> None:
    mended = row(0, broken=("left: x",), fixed="def")
    assert '"fixed": "def"' in mended.line() and "fixed" not in row(0).line()
    assert parse_history(f"{mended.line()}\n{row(0).line()}\n") == [mended, row(0)]


def test_a_run_never_replaces_another_one_of_its_case() -> None:
    first, again = row(0, broken=("left: x",), fixed="def"), row(0, commit="def")
    kept = f"{first.line()}\n{row(1).line()}\n"
    # Another history has the same runs, the first without its fix, and two more runs of that case.
    other = [replace(first, fixed=""), row(1), again, again]
    assert not_in(parse_history(kept), other) == [again, again]
    longer = with_runs(kept, other)
    assert longer == f"{kept}{again.line()}\n{again.line()}\n" and with_runs(longer, other) == longer


def test_figures() -> None:
    rows = [
        row(0),
        row(1, notice_s=4.5, end_s=9.0, broken=("late: end", "left: x", "left: y"), fixed="def"),
        row(1),
        row(2, broken=("harmed: x", "cause: none said")),
        row(3, injected=False, notice_s=50.0),
        row(4, broken=("late: end",), fixed=UNKNOWN),
        row(5, broken=("lab: box2 does not answer",)),
    ]
    found = figures(rows)
    assert (found.runs, found.cases, found.injected) == (7, 6, 6)
    assert (found.orphans, found.harmed, found.wrong_cause) == (1, 1, 1)
    assert (found.broken, found.fixed, found.unknown, found.unfixed, found.lab) == (3, 1, 1, 2, 1)
    assert found.lines()[3].endswith("Runs with a known fix: 1, with an unknown fix: 1, without a fix: 1.")
    assert len(found.lines()) == 5 and len(figures(rows[:1]).lines()) == 4


def test_the_longest_times_are_those_of_every_run_of_a_verb() -> None:
    rows = [
        row(0, notice_s=2.0, end_s=3.0),
        row(1, exit=None, state="running", notice_s=None, end_s=60.0, broken=("late: notice never",)),
        row(2, exit=0, state="succeeded", notice_s=None, end_s=70.0),
        row(3, injected=False, notice_s=80.0, end_s=90.0),
        row(4, phase="start", state="", notice_s=31.0, end_s=32.0),
        row(5, phase="send", exit=0, state="", notice_s=None, end_s=0.0),
    ]
    assert longest_table(rows)[2:] == [
        "| `up` | 1 | 31.0 s (4) | 32.0 s (4) |  |",
        "| `image send` | 1 |  |  | 0.0 s (5) |",
        "| `run` | 3 | 2.0 s (0) | 60.0 s (1) | 70.0 s (2) |",
        "| `stop` | 0 |  |  |  |",
        "| `down` | 0 |  |  |  |",
    ]
    assert [each.verb for each in longest([])] == ["up", "send", "run", "stop", "down"]


def test_every_broken_run_is_listed_with_its_fix() -> None:
    rows = [
        row(5, broken=("lab: x",)),
        row(1, broken=("late: end", "late: y", "left: x"), fixed="def"),
        row(2),
    ]
    assert broken_table(rows)[2:] == [
        "| 1 (seed 1) | abc | `rank-kill` in step | late, left | def |",
        "| 5 (seed 1) | abc | `rank-kill` in step | none: broken practice cluster | not fixed |",
    ]


def test_the_table_and_the_page() -> None:
    rows = [row(0), row(1, notice_s=2.0, broken=("left: x",)), row(2, exit=0, notice_s=None, end_s=50.0)]
    lines = table(FAULTS, rows)
    assert len(lines) == len(FAULTS) + 2 and len({line.count("|") for line in lines}) == 1
    own = next(line for line in lines if line.startswith("| `rank-kill` "))
    assert own.endswith("| 3 | 2.0/2.0 | 0.9/0.9 |")
    page = with_table(f"# Faults\n\n{BEGIN}\nearlier rows\n{END}\n\nmore\n", rows)
    assert (
        "earlier rows" not in page
        and page.endswith("\n\nmore\n")
        and "Seeds: 1. Tested commits, with the number of runs: abc (3)." in page
    )
    assert all(line in page for line in (*longest_table(rows), *broken_table(rows)))
    assert with_table(page, rows) == page
    assert "not reached" in told(row(injected=False)) and "        left: x" in told(rows[1])


def test_the_kept_history_is_whole_and_the_page_is_written_from_it() -> None:
    text = (ROOT / KEPT).read_text(encoding="utf-8")
    rows = parse_history(text)
    assert len(rows) == len(text.splitlines()) and not_in([], rows) == rows
    assert not [line for line in text.splitlines() if "/work/" in line or "/home/" in line]
    # Runs on these commits broke an invariant. Runs of their cases on later commits did not.
    broken = Counter(each.commit for each in rows if each.broken)
    assert all(broken[name] >= many for name, many in BROKEN.items())
    assert [each.line() for each in rows if each.broken and not each.fixed] == []
    page = (ROOT / "docs" / "internals" / "faults.md").read_text(encoding="utf-8")
    assert with_table(page, rows) == page


def test_the_page_has_a_place_for_the_table() -> None:
    page = (ROOT / "docs" / "internals" / "faults.md").read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert all(f"`{fault.name}`" in page for fault in FAULTS)


# The census and the agent


def test_what_is_there_beyond_an_earlier_census() -> None:
    before = Census({"box1": frozenset({"process\t1@5 dockerd", "port\t0100007F:8000", "mount\t/a"})})
    after = Census({"box1": frozenset({"process\t9@7 dockerd", "port\t0100007F:9000", "mount\t/b"})})
    assert after.beyond(before) == ["box1: mount /b", "box1: port 0100007F:9000", "box1: process 9@7 dockerd"]
    assert after.beyond(before, renewed=["box1"]) == ["box1: mount /b"]
    assert after.beyond(before, renewed=["box1"], allowed="mount /b") == []


def test_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    assert agent.checkpoint(str(tmp_path)) == {"step": None, "wrong": ""}
    body = b"step 9 "
    whole = hashlib.sha256(body).hexdigest().encode() + body
    (tmp_path / "ckpt-9").write_bytes(whole)
    (tmp_path / "half-12").write_bytes(whole[:70])
    assert agent.checkpoint(str(tmp_path)) == {"step": 9, "wrong": ""}
    (tmp_path / "ckpt-12").write_bytes(whole[:-1])
    assert agent.checkpoint(str(tmp_path)) == {"step": 12, "wrong": "ckpt-12 is not whole"}


def test_the_agent_sees_new_files_only(tmp_path: Path) -> None:
    (tmp_path / "step-1").touch()
    pattern = f"{tmp_path}/step-[1-3]"
    before = {"files": agent.files(pattern), "logins": 0}
    assert not agent.met({"glob": pattern}, before, "tried")
    (tmp_path / "step-2").touch()
    assert agent.met({"glob": pattern}, before, "tried")
