"""Download by `down` of the jobs on a host, with the real shell script and the real archive."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit.core.command import Command
from toolkit.core.result import Result
from toolkit.errors import ToolkitError
from toolkit.executors import executor_of, transfers
from toolkit.executors.context import Context
from toolkit.plan.steps import Fetch

JOB = "20261120-211300-digits-a1b2"


class Runner:
    """Runs a host's commands on this machine, or sends an archive of its own."""

    def __init__(self, archive: bytes | None = None, error: str = "") -> None:
        self.archive, self.error = archive, error
        self.name = "gpu1"

    def stream(self, command: Command, keep: Callable[[bytes], None], **_: Any) -> Result:
        if self.error:
            return Result(1, "", self.error)
        if self.archive is None:
            done = subprocess.run([str(word) for word in command.argv], capture_output=True, check=False)
            keep(done.stdout)
            return Result(done.returncode, "", done.stderr.decode())
        keep(self.archive)
        return Result(0)


def fetch(runner: Runner, into: Path) -> tuple[Any, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    step = Fetch(host="gpu1", title="save", inside=(), into=str(into))
    context = Context(runners={"gpu1": runner})  # type: ignore[dict-item]
    verdict = executor_of(Fetch)(step, context, lambda done, total: told.append((done, total)))
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


def test_a_host_without_jobs_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "JOBS", tmp_path / "jobs")
    (tmp_path / "jobs").mkdir()
    for runner in (Runner(), Runner(b""), Runner(archive())):
        verdict, _ = fetch(runner, tmp_path / "saved")
        assert (verdict.status, verdict.detail) == ("skipped", "no jobs")
    assert files(tmp_path / "saved") == []


def test_one_file_is_not_several(tmp_path: Path) -> None:
    verdict, _ = fetch(Runner(archive("job/logs/rank-0.log")), tmp_path / "saved")
    assert verdict.detail == f"1 file in {tmp_path / 'saved'}"


@pytest.mark.parametrize("name", ["/etc/x", "../x", "job/../../x", "..", "alone", "job/logs/link>"])
def test_what_leads_out_of_the_jobs_folder_stays_out(name: str, tmp_path: Path) -> None:
    verdict, _ = fetch(Runner(archive(name)), tmp_path / "saved")
    assert verdict.status == "skipped"
    assert files(tmp_path) == []


def test_a_host_that_fails_is_named_with_a_way_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        fetch(Runner(error="tar: short of memory"), tmp_path / "saved")
    assert caught.value.host == "gpu1"
    assert caught.value.fix.endswith("to go on without them: toolkit down --no-save")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("a file")
    with pytest.raises(ToolkitError, match=r"cannot write to .*saved: File exists") as caught:
        fetch(Runner(archive("job/x")), tmp_path / "saved")
    assert "toolkit down --no-save" in caught.value.fix
