"""Jobs as main's records show them: read, shown, found by rank; moments as people write them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

import toolkit.cli.jobs
from tests.unit import cluster_world as world
from tests.unit.conftest import Run
from tests.unit.each import for_each
from toolkit.cli.logs import moment
from toolkit.cluster.session import Session
from toolkit.errors import NotReady
from toolkit.jobs.records import find_job, taken_slots
from toolkit.jobs.slots import Taken
from toolkit.jobs.status import JobStatus, exception_of, job_json, jobs_table, length, parse_status
from toolkit.protocol.decode import decode
from toolkit.protocol.jobs import Record, Status
from toolkit.protocol.names import job_word

RECORD = {
    "owner": "alice",
    "launcher": "mpirun",
    "command": ["python", "train.py", "--name", "a b"],
    "hosts": [{"name": "gpu1", "slots": 2, "taken": [0, 2]}, {"name": "gpu2", "slots": 1, "taken": [3]}],
}
RUNNING = {"state": "running", "exit_code": None, "started": 1000.0, "ended": None, "pid": 7, "reason": ""}


def job(alive: bool = True, **changes: object) -> JobStatus:
    return parse_status(world.JOB_ID, decode(Status, {**RUNNING, **changes}), alive, decode(Record, RECORD))


def test_a_job_is_read_from_its_records() -> None:
    found = job()
    assert (found.owner, found.ranks, found.final) == ("alice", 3, False)
    assert found.hosts == (("gpu1", (0, 2)), ("gpu2", (3,)))
    assert [found.host_of(rank) for rank in range(3)] == ["gpu1", "gpu1", "gpu2"]
    for rank in (-1, 3):
        with pytest.raises(NotReady, match=f"has no rank {rank}, because the world size is 3"):
            found.host_of(rank)
    elastic = parse_status("x", Status(), True, decode(Record, {**RECORD, "elastic": True}))
    assert (elastic.elastic, found.elastic) == (True, False)


def test_a_job_that_restarted_on_other_hosts_has_left_the_earlier_ones() -> None:
    restarts = [{"reason": "lost", "hosts": hosts} for hosts in (["gpu1", "gpu2"], ["gpu1", "gpu9"])]
    found = job(
        hosts={"gpu1": [0, 2], "gpu8": [0]}, restarts=[{"reason": "of an earlier toolkit"}, *restarts]
    )
    assert (found.former_hosts, dict(found.hosts).keys()) == (("gpu2", "gpu9"), {"gpu1", "gpu8"})
    assert job().former_hosts == ()


def test_a_job_whose_supervisor_is_gone_is_lost_unless_it_has_ended() -> None:
    assert job(alive=False).state == "lost" and job(alive=False).final
    assert job(alive=False, state="succeeded", exit_code=0).state == "succeeded"


def test_a_job_of_an_earlier_toolkit_has_no_slots_by_number() -> None:
    record = decode(Record, {"hosts": [{"name": "gpu1", "address": "10.77.0.2", "slots": 2}]})
    status = decode(Status, RUNNING)
    assert parse_status("x", status, True, record).hosts == (("gpu1", (0, 1)),)
    assert parse_status("x", status).ranks == 0


def test_only_jobs_that_run_hold_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.jobs.records.job_statuses", lambda session: [job(), job(alive=False)])
    session = Session(world.inventory())
    assert taken_slots(session) == (Taken(world.JOB_ID, "alice", {"gpu1": (0, 2), "gpu2": (3,)}),)


def test_the_cause_of_the_end_is_read_from_fields() -> None:
    failed = {"state": "failed", "cause": {"rank": 3, "exit_code": 7, "ended": 5.0}}
    found = parse_status("x", decode(Status, failed))
    assert (found.failed_rank, found.lost_host) == (3, "")
    found = parse_status("x", decode(Status, {"state": "failed", "cause": {}, "lost_host": "gpu2"}))
    assert (found.failed_rank, found.lost_host) == (None, "gpu2")
    assert {"failed_rank", "lost_host"}.isdisjoint(job_json(found))


def test_jobs_as_a_table_and_as_json() -> None:
    started = datetime(2026, 1, 2, 3, 4).timestamp()
    why = "rank 1 on gpu1 exited with code 7"
    ended = job(state="failed", exit_code=7, started=started, ended=started + 3725, reason=why)
    head, row = jobs_table([ended]).splitlines()
    columns = ["job", "owner", "state", "exit", "ranks", "hosts", "started", "took", "command", "reason"]
    assert head.split() == columns and row.endswith(why)
    assert row.split("  ")[0] == world.JOB_ID
    assert "failed  7     3      gpu1,gpu2  01-02 03:04  1 h 2 min  python train.py --name 'a b'" in row
    told = job_json(ended)
    assert (told["ranks"], told["hosts"]) == (3, {"gpu1": [0, 2], "gpu2": [3]})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 0 s"), (3725, "1 h 2 min"), (200000, "2 d 7 h")],
)
def test_lengths(seconds: float, text: str) -> None:
    assert length(seconds) == text


@pytest.mark.parametrize(
    ("text", "ago", "epoch"),
    [
        ("90s", 90.0, None),
        ("1h30m", 5400.0, None),
        ("1.5d", 129600.0, None),
        ("1970-01-02T00:00:00Z", None, 86400.0),
        ("1970-01-02T01:00:00+01:00", None, 86400.0),
    ],
)
def test_moments(text: str, ago: float | None, epoch: float | None) -> None:
    assert moment(text) == (ago, epoch)


@pytest.mark.parametrize("text", ["", "10", "yesterday", "5m ago", "-5m", "9" * 400 + "h", "2026-13-01"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match="should be a duration such as 90s"):
        moment(text)


@pytest.mark.parametrize("text", ["a1b2", world.JOB_ID])
def test_what_a_job_may_be_called_by(text: str) -> None:
    assert job_word(text) == text


@pytest.mark.parametrize("text", ["../x", "-", "a/b", "a b", "x" * 201])
def test_invalid_job_names(text: str) -> None:
    with pytest.raises(ValueError, match="`toolkit jobs` lists the job ids"):
        job_word(text)


def test_a_job_is_found_by_its_id_or_the_last_part_of_it() -> None:
    ids = ("20261101-101500-train-a1b2", "20261102-090000-eval-a1b2", "20261103-080000-train-c3d4", "a1b2")
    known = [replace(job(), id=one) for one in ids]
    assert find_job(known, "c3d4").id == ids[2] and find_job(known, ids[0]).id == ids[0]
    assert find_job(known, "eval-a1b2").id == ids[1]
    assert find_job(known, "a1b2").id == "a1b2", "a whole id comes first"
    with pytest.raises(NotReady, match="there is no job b2"):
        find_job(known, "b2")
    with pytest.raises(NotReady) as caught:
        find_job(known[:3], "a1b2")
    assert caught.value.what == f"2 job ids end in a1b2: {ids[0]} and {ids[1]}"
    assert "complete id" in caught.value.fix and "toolkit jobs" in caught.value.fix


def test_toolkit_jobs_lists_the_last_ones_and_all_that_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yaml").write_text(world.HOSTS)
    ended = job(state="succeeded", exit_code=0, ended=2000.0)
    known = [replace(ended, id=f"job-{number:02}") for number in range(25)]
    known[1] = replace(job(), id="job-01")
    here = nullcontext(SimpleNamespace(require_some=lambda: None))
    monkeypatch.setattr(toolkit.cli.jobs, "connect", lambda *_: here)
    monkeypatch.setattr(toolkit.cli.jobs, "known_jobs", lambda _: known)

    def listed(*words: str) -> tuple[list[str], str]:
        status, out, err = run("jobs", *words)
        assert status == 0
        return [line.split()[0] for line in out.splitlines()[1:]], err

    last = [each.id for each in known[-20:]]
    names, err = listed()
    assert names == ["job-01", *last]
    assert "not listed: 4 older jobs; to list all jobs: toolkit jobs --all" in err
    names, err = listed("--all")
    assert names == [each.id for each in known] and "older" not in err
    del known[:5]
    names, err = listed()
    assert names == last and "older" not in err


_FRAMES = ("Traceback (most recent call last):", '  File "train.py", line 9, in main', "    step(batch)")


@for_each(
    ("lines", "raised"),
    [
        ((*_FRAMES, "_queue.Empty"), "_queue.Empty"),
        (("[rank0]: ZeroDivisionError", *(f"[rank0]: {line}" for line in (*_FRAMES, "x.Stop"))), "x.Stop"),
        (
            (
                *_FRAMES,
                "    ^^^^",
                "torch._dynamo.exc.Unsupported: Attempted to call a skipped function",
                "  Explanation: a builtin",
                "from user code:",
                '   File "model.py", line 12, in forward',
                "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace.",
            ),
            "torch._dynamo.exc.Unsupported: Attempted to call a skipped function",
        ),
        (
            (
                "  + Exception Group Traceback (most recent call last):",
                '  |   File "train.py", line 9, in main',
                "  | ExceptionGroup: workers failed (2 sub-exceptions)",
                "  +-+---------------- 1 ----------------",
                "    | ValueError: bad batch",
                "    +---------------- 2 ----------------",
                "    | KeyError: 1",
                "    +------------------------------------",
            ),
            "ExceptionGroup: workers failed (2 sub-exceptions)",
        ),
        # The line of the group is not among the last lines.
        (("    | ValueError: bad batch", "    +-----------"), "ValueError: bad batch"),
        # A later exception, also without a traceback.
        ((*_FRAMES, "queue.Empty", "RuntimeError: the loader stopped"), "RuntimeError: the loader stopped"),
        (("loading data", "done: 3 files"), ""),
        (("  | accuracy: 0.5", "  | Done"), ""),
        ((*_FRAMES, "Killed by the scheduler"), ""),
        ((*_FRAMES, "train.main.<locals>.Stop: batch 17"), "train.main.<locals>.Stop: batch 17"),
        # After a stack without an exception, of faulthandler or of a logger.
        (("Thread 0x7f (most recent call first):", '  File "train.py", line 9 in main', "Epoch: 3"), ""),
        (("Stack (most recent call last):", *_FRAMES[1:], "INFO:root:step 3"), ""),
        (("Stack (most recent call last):", *_FRAMES[1:], "loss: 0.5"), ""),
    ],
)
def test_the_exception_in_the_last_lines(lines: tuple[str, ...], raised: str) -> None:
    assert exception_of(lines) == raised
