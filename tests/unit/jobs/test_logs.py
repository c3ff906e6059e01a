"""Logs that cannot be followed to their end, and logs of ranks that move to other hosts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.core.command import Command, Result
from toolkit.core.runner import Sink, run_here
from toolkit.errors import NotReady, ToolkitError, Unreachable
from toolkit.jobs import logs
from toolkit.jobs.logs import Excerpt, raise_if_failed, show_log
from toolkit.jobs.status import JobStatus

JOB = "the-job"


@pytest.mark.parametrize(
    ("stderr", "words"),
    [("[toolkit] there is no such log\n", "there is no such log"), ("", "probably with its container")],
)
def test_the_reason_is_never_empty(stderr: str, words: str) -> None:
    with pytest.raises(ToolkitError, match=words) as told:
        raise_if_failed(Result(137, "", stderr, 0.1), JOB, "gpu1")
    assert told.value.host == "gpu1" and told.value.fix


def job(host: str, state: str = "running") -> JobStatus:
    return JobStatus(JOB, state, None, 0.0, None, "", hosts=(("main", (0,)), (host, (0,))))


def follow_rank(
    monkeypatch: pytest.MonkeyPatch,
    states: list[JobStatus],
    outputs: dict[str, bytes | ToolkitError],
    starts: dict[str, Callable[[], Result]] | None = None,
) -> tuple[str, list[str], Exception | None]:
    """Follow rank 1; return the output, the words of each log reader, and the error.

    Args:
        states: the answers to questions about the job; the first question is that of the command itself.
        outputs: by host; the last piece of a log, or an error.
        starts: by host, of an elastic job; answer to the question about the last start of the rank.
    """
    asked, output, answers = list[str](), bytearray(), iter(states)

    def stream(host: str, ask: Command, sink: Sink) -> Result:
        asked.append(" ".join((host, *map(str, ask.argv[3:]))))
        said = outputs[host]
        if isinstance(said, ToolkitError):
            raise said
        sink(said)
        return Result(0)

    session: Any = SimpleNamespace(
        inventory=SimpleNamespace(main="main", in_parts=False),
        container=lambda host: SimpleNamespace(
            name=host,
            stream=lambda ask, sink: stream(host, ask, sink),
            run=lambda ask, seconds: (starts or {})[host](),
        ),
    )
    monkeypatch.setattr(logs, "job_status", lambda *_: next(answers))
    monkeypatch.setattr(logs, "_POLL_S", 0.0)
    error = None
    try:
        show_log(session, next(answers), output.extend, Excerpt(rank=1, tail=5), True)
    except ToolkitError as raised:
        error = raised
    assert not list(answers)
    return output.decode(), asked, error


MOVED = "[toolkit] rank 1 has moved to gpu2 in a restart\n"


def test_the_log_of_a_rank_is_followed_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [job("gpu1"), job("gpu1", "restarting"), job("gpu2"), job("gpu2", "succeeded")]
    output, asked, error = follow_rank(monkeypatch, states, {"gpu1": b"one\n", "gpu2": b"two\n"})
    assert (output, error) == (f"one\n{MOVED}two\n", None)
    assert [words.split(JOB)[1] for words in asked] == [" --rank 1 --tail 5", " --rank 1"]


def test_the_log_of_a_rank_on_a_lost_host_is_followed_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Unreachable("the connection was lost", "again", "gpu1")
    states = [job("gpu1"), job("gpu1"), job("gpu1", "restarting"), job("gpu2"), job("gpu2", "succeeded")]
    output, _, error = follow_rank(monkeypatch, states, {"gpu1": lost, "gpu2": b"two\n"})
    assert (output, error) == (f"{MOVED}two\n", None)


def test_the_log_of_a_rank_of_an_elastic_job_is_that_of_its_last_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The c10d rendezvous sorts hosts by the text of their addresses: 10.0.0.10 is before 10.0.0.9."""
    hosts = (("gpu1", (0,)), ("gpu2", (0,)), ("gpu3", (0,)), ("gpu4", (0,)))
    elastic = JobStatus(JOB, "succeeded", 0, 0.0, 1.0, "", hosts=hosts, elastic=True)
    # gpu1 has an older group's rank 0, gpu2 the newest, gpu3 none, and gpu4 does not answer.
    starts = {"gpu1": [time.time() - 90], "gpu2": [time.time() - 180, time.time() - 7]}
    for host, times in starts.items():
        (tmp_path / host).write_text(json.dumps({"rank": 0, "starts": times}))
    asked = list[str]()

    def run(host: str, ask: Command) -> Result:
        assert str(ask.argv[-1]) == f"/run/toolkit/jobs/{JOB}/logs/rank-0.run"
        return run_here([sys.executable, *map(str, ask.argv[1:-1]), str(tmp_path / host)])

    def container(host: str) -> Any:
        if host == "gpu4":
            raise Unreachable("the host does not answer", "toolkit check", host)
        return SimpleNamespace(name=host, run=lambda ask, seconds: run(host, ask))

    session: Any = SimpleNamespace(
        inventory=SimpleNamespace(main="gpu1", in_parts=False), container=container
    )
    monkeypatch.setattr(logs, "copy", lambda runner, *_: asked.append(runner.name))
    show_log(session, elastic, print, Excerpt(rank=0), False)
    show_log(session, replace(elastic, elastic=False), print, Excerpt(rank=0), False)
    for host in starts:
        (tmp_path / host).unlink()  # no rank has started yet
    show_log(session, elastic, print, Excerpt(rank=0), False)
    assert asked == ["gpu2", "gpu1", "gpu1"]


def test_the_log_of_a_rank_of_an_elastic_job_is_followed_to_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = [replace(job("gpu2", state), elastic=True) for state in ("running", "running", "succeeded")]
    ages = iter(("0.5", "9.5", "9.6"))  # of rank 1 on main, which starts on gpu2 after the first query
    starts = iter((Result(1), Result(0, "3.0"), Result(0, "3.1")))
    found = {"main": lambda: Result(0, next(ages)), "gpu2": lambda: next(starts)}
    output, _, error = follow_rank(monkeypatch, states, {"main": b"one\n", "gpu2": b"two\n"}, found)
    assert (output, error) == (f"one\n{MOVED}two\n", None)


def test_a_rank_of_an_elastic_job_has_not_moved_to_a_host_that_has_not_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 1 runs on gpu2, which is lost; by the order of hosts.yaml, it would run on main."""
    planned = (("gpu2", (0,)), ("main", (0,)))
    states = [
        replace(job("gpu2", state), hosts=planned, elastic=True) for state in ("running", "running", "failed")
    ]
    lost = Unreachable("the host does not answer", "", "gpu2")
    starts = iter([Result(0, "5.0")])

    def of_gpu2() -> Result:
        for start in starts:
            return start
        raise lost

    found = {"main": lambda: Result(1), "gpu2": of_gpu2}
    output, _, error = follow_rank(monkeypatch, states, {"gpu2": lost, "main": b"no rank"}, found)
    assert (output, error) == ("", lost)


def test_the_output_of_a_host_that_the_job_has_left_can_be_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = replace(job("gpu9"), former_hosts=("gpu2",))
    inventory = SimpleNamespace(main="main", in_parts=False)
    session: Any = SimpleNamespace(inventory=inventory, container=lambda host: host)
    asked = list[object]()
    monkeypatch.setattr(logs, "copy", lambda *words: asked.append(words[3]))
    show_log(session, replaced, print, Excerpt(host="gpu2"), False)
    assert asked == [Excerpt(host="gpu2")]
    with pytest.raises(NotReady, match="has had no ranks on gpu3; hosts that had ranks: main, gpu9, gpu2"):
        show_log(session, replaced, print, Excerpt(host="gpu3"), False)


@pytest.mark.parametrize("final", [False, True])
def test_the_log_of_a_rank_that_does_not_move_ends_as_before(
    monkeypatch: pytest.MonkeyPatch, final: bool
) -> None:
    states = [job("gpu1"), job("gpu1", "failed" if final else "running")]
    assert follow_rank(monkeypatch, states, {"gpu1": b"one\n"})[::2] == ("one\n", None)
    failed = ToolkitError("there is no such log", "toolkit jobs", "gpu1")
    assert follow_rank(monkeypatch, states, {"gpu1": failed})[::2] == ("", failed)
