"""Download by `down` of the jobs on a host, with the real shell script and the real archive."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.unit.hosts_here import execute
from toolkit.api.executors import EXECUTORS
from toolkit.core import local_writer
from toolkit.core.command import Command, Result, command
from toolkit.core.local_writer import Destination, LocalWriter
from toolkit.core.runner import LocalRunner
from toolkit.errors import ToolkitError
from toolkit.plan import fetch_files as transfers
from toolkit.plan.context import Context
from toolkit.plan.fetch_files import _unpack
from toolkit.plan.steps import Fetch, Phase, Plan, Run, Step

JOB = "20261120-211300-digits-a1b2"


class Runner:
    """Runs a host's commands on this machine, or sends an archive of its own."""

    def __init__(self, archive: bytes | None = None, error: str = "") -> None:
        self.archive, self.error = archive, error
        self.name = "gpu1"

    def stream(self, command: Command, keep: Callable[[bytes], None], silence: float | None = None) -> Result:
        assert silence, "a host that sends nothing would keep `down` waiting"
        if self.error:
            return Result(1, "", self.error)
        if self.archive is None:
            done = subprocess.run([str(word) for word in command.argv], capture_output=True, check=False)
            keep(done.stdout)
            return Result(done.returncode, "", done.stderr.decode())
        keep(self.archive)
        return Result(0)


class Host(LocalRunner):
    """Runs commands on this machine, and sends an archive of its own."""

    def __init__(self, name: str, sent: bytes) -> None:
        self.name, self.sent = name, sent

    def stream(
        self,
        command: Command,
        sink: Callable[[bytes], None],
        source: Any = None,
        silence: float | None = None,
    ) -> Result:
        sink(self.sent)
        return Result(0)


def fetch(runner: Runner, into: Path) -> tuple[Any, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    step = Fetch(host="gpu1", title="save", inside=(), into=str(into))
    context = Context(runners={"gpu1": runner})  # type: ignore[dict-item]
    verdict = EXECUTORS[Fetch](step, context, lambda done, total: told.append((done, total)))
    return verdict, told


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def archive(*names: str) -> bytes:
    """An archive with these files; a name that ends with > is a symbolic link."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name.rstrip(">"))
            if name.endswith(">"):
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(member)
            else:
                member.size = 1
                tar.addfile(member, io.BytesIO(b"x"))
    return packed.getvalue()


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The jobs of a host: one that has run here, one of which only its folder is there."""
    folder = tmp_path / "jobs"
    monkeypatch.setattr(transfers, "JOBS", folder)
    job = folder / JOB
    for name in ("code/train.py", "code/__pycache__/train.pyc", "logs/rank-0.log", "job.json", "status.json"):
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text(name)
    (job / ".sent").touch()
    model = job / "code" / "model.pt"
    model.write_text("model")
    while model.stat().st_ctime_ns <= (job / ".sent").stat().st_ctime_ns:  # the kernel's clock is coarse
        model.write_text("model")
    (folder / "other" / "logs").mkdir(parents=True)
    (folder / "other" / "logs" / "rank-0.log").write_text("of a job that was never sent")
    return folder


def test_logs_records_and_what_the_job_wrote_come(jobs: Path, tmp_path: Path) -> None:
    into = tmp_path / "saved"
    verdict, told = fetch(Runner(), into)
    of_job = f"{JOB}/gpu1"
    assert files(into) == [f"{of_job}/code/model.pt", f"{of_job}/logs/rank-0.log", f"{of_job}/status.json"]
    assert (verdict.status, verdict.detail) == ("ok", f"3 files in {into}")
    assert (into / of_job / "code" / "model.pt").read_text() == "model"
    assert told and told[-1][0] > 0 and told[-1][1] == 0


def test_a_folder_that_is_named_like_an_option_is_no_option(jobs: Path, tmp_path: Path) -> None:
    for name in ("-delete", "-D", "-O3"):
        (jobs / name).mkdir()
        (jobs / name / ".sent").touch()
    words = transfers.script(transfers._COLLECT, str(jobs)).argv
    done = subprocess.run([str(word) for word in words], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"") and JOB.encode() in done.stdout


def test_two_names_of_one_file_both_come(jobs: Path, tmp_path: Path) -> None:
    logs = jobs / JOB / "logs"
    (logs / "same.log").hardlink_to(logs / "rank-0.log")
    fetch(Runner(), tmp_path / "saved")
    saved = tmp_path / "saved" / JOB / "gpu1" / "logs"
    assert [(saved / name).read_text() for name in ("rank-0.log", "same.log")] == ["logs/rank-0.log"] * 2


def test_a_host_without_jobs_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "JOBS", tmp_path / "jobs")
    (tmp_path / "jobs").mkdir()
    for runner in (Runner(), Runner(b""), Runner(archive())):
        verdict, _ = fetch(runner, tmp_path / "saved")
        assert (verdict.status, verdict.detail) == ("skipped", "no job records")
    assert files(tmp_path / "saved") == []


def test_one_file_is_not_several(tmp_path: Path) -> None:
    verdict, _ = fetch(Runner(archive("job/logs/rank-0.log")), tmp_path / "saved")
    assert verdict.detail == f"1 file in {tmp_path / 'saved'}"


@pytest.mark.parametrize("name", ["/etc/x", "../x", "job/../../x", "..", "alone", "job/logs/link>"])
def test_what_leads_out_of_the_jobs_folder_stays_out(name: str, tmp_path: Path) -> None:
    verdict, _ = fetch(Runner(archive(name)), tmp_path / "saved")
    assert verdict.status == "skipped"
    assert files(tmp_path) == []


def test_links_of_an_earlier_download_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside").mkdir()
    Path("runs/demo/job").mkdir(parents=True)
    Path("runs/demo/job/gpu1").symlink_to(tmp_path / "outside")
    with pytest.raises(ToolkitError, match="runs/demo/job/gpu1 is a symbolic link") as caught:
        fetch(Runner(archive("job/logs/x")), Path("runs/demo"))
    assert caught.value.host == "gpu1" and "toolkit down --no-save" in caught.value.fix
    Path("runs/demo").rename("runs/old")
    Path("runs/demo").symlink_to(tmp_path / "outside")
    with pytest.raises(ToolkitError, match="runs/demo is a symbolic link"):
        fetch(Runner(archive("job/logs/x")), Path("runs/demo"))
    assert files(tmp_path / "outside") == []


def test_a_file_replaces_a_link_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    logs = tmp_path / "saved" / "job" / "gpu1" / "logs"
    logs.mkdir(parents=True)
    (logs / "x").symlink_to(tmp_path / "precious")
    fetch(Runner(archive("job/logs/x")), tmp_path / "saved")
    assert (logs / "x").read_text() == "x" and (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["job/job.json", "job/code/.sent", "job/code/__pycache__/x", ".ssh/x"])
def test_only_what_was_requested_is_kept(name: str, tmp_path: Path) -> None:
    verdict, _ = fetch(Runner(archive(name, "job/x")), tmp_path / "saved")
    assert files(tmp_path) == ["saved/job/gpu1/x"]
    assert verdict.detail == f"1 file in {tmp_path / 'saved'}; skipped files with unexpected names: {name!a}"


def member(name: str, size: int = 1, **more: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.PAX_FORMAT) + b"x".ljust(512, b"\0")


END = b"\0" * 1024
GARBAGE = [
    b"no archive at all",
    b"x" * 5000,
    gzip.compress(archive("job/x")),
    member("job/x")[:700],
    member("job/x"),  # without an end
    member("job/x") + b"garbage".ljust(512, b"!") + member("job/y") + END,
    member("job/x", 10**6) + END,
    member("job/x", type=tarfile.GNUTYPE_SPARSE) + END,
    member("job/x", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}) + END,
    member("job/x", pax_headers={"comment": "x" * 100_000}) + END,
]


def test_a_member_of_negative_size_is_refused_or_left_out(tmp_path: Path) -> None:
    """For tarfile of Python 3.14, such a member is the end of an archive."""
    with suppress(ToolkitError):
        fetch(Runner(member("job/x", pax_headers={"size": "-5"}) + END), tmp_path / "saved")
    assert files(tmp_path) == []


@pytest.mark.parametrize("number", range(len(GARBAGE)))
def test_an_archive_that_is_not_valid_fails_on_its_host_alone(number: int, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        fetch(Runner(GARBAGE[number]), tmp_path / "saved")
    assert caught.value.host == "gpu1" and caught.value.fix.splitlines()[-1].startswith(
        "toolkit down --no-save"
    )
    assert set(files(tmp_path)) <= {"saved/job/gpu1/x"}
    assert not list((tmp_path / "saved").glob(".*"))


def test_a_host_whose_archive_is_garbage_keeps_its_cluster_and_the_others_continue(tmp_path: Path) -> None:
    steps: list[Step] = [
        Fetch(host=name, title="save", inside=(), into=str(tmp_path / "saved")) for name in ("gpu1", "gpu2")
    ]
    remove = [Run(name, "remove", command("touch", str(tmp_path / name))) for name in ("gpu1", "gpu2")]
    plan = Plan("down", (Phase("records", tuple(steps)), Phase("containers", tuple(remove))))
    runners = {"gpu1": Host("gpu1", b"x" * 5000), "gpu2": Host("gpu2", archive("job/x"))}
    report = execute(plan, runners)
    found = [(one.host, one.step, one.status) for one in report.outcomes]
    assert found == [
        ("gpu1", "save", "failed"),
        ("gpu2", "save", "ok"),
        ("gpu1", "remove", "not run"),
        ("gpu2", "remove", "ok"),
    ]
    assert "the archive of the job records cannot be read" in report.failures[0].detail
    assert files(tmp_path) == ["gpu2", "saved/job/gpu2/x"]


def test_records_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_writer, "_SHARE", 0)
    with pytest.raises(ToolkitError, match="fit into") as caught:
        fetch(Runner(archive("job/x")), tmp_path / "saved")
    assert caught.value.host == "gpu1" and files(tmp_path) == []


def test_a_host_that_fails_is_named_with_a_way_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        fetch(Runner(error="tar: short of memory"), tmp_path / "saved")
    assert caught.value.host == "gpu1"
    assert caught.value.fix.endswith(
        "toolkit down --no-save  # removes the cluster without downloading the job records"
    )


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("a file")
    with pytest.raises(
        ToolkitError, match=r"cannot write the downloaded files to .*saved: File exists"
    ) as caught:
        fetch(Runner(archive("job/x")), tmp_path / "saved")
    assert "toolkit down --no-save" in caught.value.fix


def test_few_names_are_kept_of_what_was_not_requested(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for number in range(500):
            tar.addfile(tarfile.TarInfo(f"../{number}"))
    packed.seek(0)
    with LocalWriter(Destination(tmp_path)) as writer:
        assert _unpack(packed, writer, "gpu1") == (0, ["'../0'", "'../1'", "'../2'"], 497)
