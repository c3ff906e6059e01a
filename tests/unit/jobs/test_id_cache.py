"""Ids of jobs for the shell's TAB: remembered by cluster, newest first, few, and never an error."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import toolkit.cli.jobs
import toolkit.jobs.records
from tests.unit import cluster_world as world
from tests.unit.conftest import Run
from toolkit.cluster.session import Session
from toolkit.core.report import Outcome, Report
from toolkit.errors import ToolkitError
from toolkit.jobs import control as jobs
from toolkit.jobs.id_cache import (
    MOST_CLUSTERS,
    MOST_JOBS,
    cache_folder,
    knows_jobs,
    recall_jobs,
    remember_job,
    remember_jobs,
)
from toolkit.plan.execute import Stopwatch
from toolkit.plan.steps import Phase, Plan, StartJob


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "toolkit" / "jobs"


def test_jobs_of_a_cluster_newest_first(folder: Path) -> None:
    assert recall_jobs("demo") == [] and not knows_jobs()
    remember_job("demo", "20260101-a")
    remember_job("demo", "20260102-b")
    remember_job("other", "20260103-c")
    assert cache_folder() == folder and knows_jobs()
    assert recall_jobs("demo") == ["20260102-b", "20260101-a"]
    remember_job("demo", "20260101-a")
    assert recall_jobs("demo") == ["20260101-a", "20260102-b"]
    # What a cluster says of its jobs is all of them.
    remember_jobs("demo", ["20260109-z", "20260102-b"])
    assert recall_jobs("demo") == ["20260109-z", "20260102-b"]
    remember_jobs("demo", ())
    assert (recall_jobs("demo"), recall_jobs("other")) == ([], ["20260103-c"])


def test_it_stays_small(folder: Path) -> None:
    remember_jobs("demo", [f"job-{number}" for number in range(1000)])
    remember_job("demo", "newest")
    assert recall_jobs("demo") == ["newest", *(f"job-{number}" for number in range(MOST_JOBS - 1))]
    for number in range(MOST_CLUSTERS + 5):
        remember_job(f"c{number}", "job")
        os.utime(folder / f"c{number}", (number, number))
    assert len(list(folder.iterdir())) == MOST_CLUSTERS
    assert recall_jobs(f"c{MOST_CLUSTERS + 4}") == ["job"]


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\n", b"../x\n-v\n a b\n\x1b[1m\n$(id)\n", b"x" * 10**6, b"\n" * 10**6]
)
def test_a_spoilt_file_is_as_good_as_none(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    (folder / "demo").write_bytes(content)
    assert recall_jobs("demo") == []
    remember_job("demo", "job")
    assert recall_jobs("demo") == ["job"]


@pytest.mark.parametrize("name", ["", "../demo", "/etc/passwd", ".demo", "a/b", "a\0b", "x" * 300])
def test_no_name_leads_out_of_the_folder(folder: Path, name: str) -> None:
    remember_job(name, "job")
    assert recall_jobs(name) == [] and not folder.exists()


def test_a_cache_that_cannot_be_used_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file in the folder's place")
    remember_job("demo", "job")
    assert recall_jobs("demo") == [] and not knows_jobs()
    folder.unlink()
    (folder / "demo").mkdir(parents=True)
    remember_job("demo", "job")
    assert recall_jobs("demo") == []
    (folder / "demo").rmdir()
    os.mkfifo(folder / "demo")
    assert recall_jobs("demo") == []
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    remember_job("demo", "job")
    assert recall_jobs("demo") == [] and not knows_jobs()


def session(*statuses: str) -> Any:
    """A session whose steps end with these results, in order."""
    ends = iter(statuses)

    def execute(plan: Plan, listen: object) -> Report:
        phase = plan.phases[0].title
        return Report("run", (Outcome(phase, "step", "gpu1", next(ends)),))

    return SimpleNamespace(
        inventory=SimpleNamespace(cluster="demo", main="gpu1", in_parts=False),
        container_sessions=SimpleNamespace(leave=lambda but: None, notify=lambda host, message: None),
        stopwatch=Stopwatch(),
        execute=execute,
    )


PLAN = Plan("run", (Phase("code", ()), Phase("start", (StartJob("gpu1", "start", "main", "job-1"),))))


def test_a_job_that_was_started_is_remembered() -> None:
    jobs.start(session("ok", "ok"), PLAN, lambda event: None)
    assert recall_jobs("demo") == ["job-1"]


@pytest.mark.parametrize("statuses", [("failed",), ("ok", "failed")])
def test_a_job_that_was_not_is_not(statuses: tuple[str, ...]) -> None:
    with pytest.raises(ToolkitError):
        jobs.start(session(*statuses), PLAN, lambda event: None)
    assert recall_jobs("demo") == []


@pytest.mark.parametrize("phase", ["code", "start"])
def test_the_error_has_the_reason_and_the_fix_of_each_host(phase: str) -> None:
    """The lines of the steps that failed have neither."""

    def execute(plan: Plan, listen: object) -> Report:
        status: Any = "failed" if plan.phases[0].title == phase else "ok"
        ends = [
            Outcome(plan.phases[0].title, "step", f"gpu{n}", status, detail=f"why {n}", fix=f"do {n}")
            for n in (1, 2)
        ]
        return Report("run", tuple(ends))

    here = session()
    here.execute = execute
    with pytest.raises(ToolkitError) as raised:
        jobs.start(here, PLAN, lambda event: None)
    assert str(raised.value).endswith(":\n  gpu1: why 1\n  gpu2: why 2\n  fix: do 1\n  fix: do 2")


def test_toolkit_jobs_caches_the_listed_ids(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yaml").write_text("cluster: demo\nimage: toolkit:cpu\nhosts: [gpu1]\n")
    listed = [SimpleNamespace(id=name, final=True) for name in ("old", "new")]
    here = nullcontext(SimpleNamespace(require_some=lambda: None))
    monkeypatch.setattr(toolkit.cli.jobs, "connect", lambda *_: here)
    monkeypatch.setattr(toolkit.cli.jobs, "known_jobs", lambda _: listed)
    monkeypatch.setattr("toolkit.cli.jobs.job_json", lambda job: job.id)
    assert run("jobs", "--json")[0] == 0
    assert recall_jobs("demo") == ["new", "old"]


@pytest.mark.parametrize(
    ("words", "report", "left"),
    [
        ((), Report("down", ()), []),
        (("--dry-run",), Report("down", ()), ["job"]),
        ((), session("failed").execute(PLAN, None), ["job"]),
    ],
)
def test_after_down_there_are_none(
    words: tuple[str, ...],
    report: Report,
    left: list[str],
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "hosts.yaml").write_text(world.HOSTS)
    here = Session(world.inventory())
    here.facts = world.facts_when_up()
    here.execute = lambda *_: report  # type: ignore[assignment]
    monkeypatch.setattr(Session, "open", lambda *_: here)
    monkeypatch.setattr("toolkit.cluster.session.local_image", lambda *_: None)
    monkeypatch.setattr(jobs, "running_jobs", lambda session: [])
    monkeypatch.setattr("toolkit.api.down.running_jobs", lambda session: [])
    remember_job("demo", "job")
    run("down", *words)
    assert recall_jobs("demo") == left
