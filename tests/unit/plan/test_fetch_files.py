"""Download by `down` of the jobs on a host, with the real program that sends the files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_world import BOUND_TO_MODES
from tests.unit.hosts_here import execute
from toolkit.api.executors import EXECUTORS
from toolkit.container import send_files
from toolkit.container.code.packs import load, save
from toolkit.core import local_writer
from toolkit.core.command import Command, Result, command
from toolkit.core.runner import LocalRunner
from toolkit.errors import ToolkitError, Unreachable
from toolkit.plan import fetch_files as transfers
from toolkit.plan.context import Context
from toolkit.plan.steps import Fetch, Phase, Plan, Run, Step
from toolkit.protocol.files import NO_JOB_FILES

JOB = "20261120-211300-digits-a1b2"


class Runner:
    """Runs a host's commands on this machine, or sends bytes of its own."""

    def __init__(self, sent: bytes | None = None, error: str = "") -> None:
        self.sent, self.error = sent, error
        self.name = "gpu1"

    def stream(self, command: Command, keep: Callable[[bytes], None], silence: float | None = None) -> Result:
        assert silence, "a host that sends nothing would keep `down` waiting"
        if self.error:
            return Result(1, "", self.error)
        if self.sent is None:
            done = subprocess.run([str(word) for word in command.argv], capture_output=True, check=False)
            keep(done.stdout)
            return Result(done.returncode, "", done.stderr.decode())
        keep(self.sent)
        return Result(0)


class Host(LocalRunner):
    """Runs commands on this machine, and sends bytes of its own."""

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


def fetch(
    runner: Runner, into: Path, inside: tuple[str, ...] = (), fix: str = ""
) -> tuple[Any, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    step = Fetch(host="gpu1", title="save", inside=inside, into=str(into), fix=fix)
    context = Context(runners={"gpu1": runner})  # type: ignore[dict-item]
    verdict = EXECUTORS[Fetch](step, context, lambda done, total: told.append((done, total)))
    return verdict, told


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


END = b'{"end": true}\n'


def sent(*names: str, end: bytes = END) -> bytes:
    """The bytes of a host with these files."""
    lines = (json.dumps({"name": name, "size": 1}).encode() + b"\nx" for name in names)
    return b"".join(lines) + end


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The jobs of a host: one that has run here, one of which only its folder is there."""
    folder = tmp_path / "jobs"
    monkeypatch.setattr(transfers, "JOBS", folder)
    job = folder / JOB
    for name in ("code/train.py", "code/__pycache__/train.pyc", "logs/rank-0.log", "job.json", "status.json"):
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text(name)
    train = (job / "code" / "train.py").stat()
    save(str(job / ".sent"), {"train.py": [train.st_size, train.st_mtime_ns]})
    model = job / "code" / "model.pt"
    model.write_text("model")
    while model.stat().st_ctime_ns <= (job / ".sent").stat().st_mtime_ns:  # the kernel's clock is coarse
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


def test_names_are_utf8_whatever_locale_the_image_has(jobs: Path, tmp_path: Path) -> None:
    inside = ("sh", "-c", 'case $* in *" -X utf8 -c "*) exec "$@" ;; *) exit 9 ;; esac', "sh")
    verdict, _ = fetch(Runner(), tmp_path / "saved", inside)
    assert verdict.status == "ok"


def test_only_folders_of_jobs_are_searched(jobs: Path, tmp_path: Path) -> None:
    for name in ("-delete", ".code"):
        (jobs / name).mkdir()
        (jobs / name / ".sent").touch()
    (jobs / "file").touch()
    verdict, _ = fetch(Runner(), tmp_path / "saved")
    assert verdict.detail.startswith("3 files in ")


def test_only_regular_files_come(jobs: Path, tmp_path: Path) -> None:
    code = jobs / JOB / "code"
    os.mkfifo(code / "pipe")
    (code / "link").symlink_to("/etc/passwd")
    (code / "folder").symlink_to("/etc")
    verdict, _ = fetch(Runner(), tmp_path / "saved")
    assert verdict.detail.startswith("3 files in ")


def test_results_come_that_are_named_like_files_of_toolkit(jobs: Path, tmp_path: Path) -> None:
    for name in ("job.json", ".sent"):
        (jobs / JOB / "code" / name).write_text("of the job")
    fetch(Runner(), tmp_path / "saved")
    of_job = f"{JOB}/gpu1"
    assert {f"{of_job}/code/job.json", f"{of_job}/code/.sent"} <= set(files(tmp_path / "saved"))
    assert f"{of_job}/job.json" not in files(tmp_path / "saved")


def test_results_come_although_the_clock_was_set_back(jobs: Path, tmp_path: Path) -> None:
    job = jobs / JOB
    later = (job / ".sent").stat().st_mtime_ns + 3600 * 10**9
    os.utime(job / ".sent", ns=(later, later))
    (job / "code" / "train.py").write_text("changed")
    fetch(Runner(), tmp_path / "saved")
    code = tmp_path / "saved" / JOB / "gpu1" / "code"
    assert files(code) == ["model.pt", "train.py"]


def test_code_does_not_come_from_a_file_system_that_keeps_times_less_exactly(
    jobs: Path, tmp_path: Path
) -> None:
    job = jobs / JOB
    train = job / "code" / "train.py"
    second = 10**9
    kept = train.stat().st_mtime_ns // second * second
    os.utime(train, ns=(kept, kept))
    save(str(job / ".sent"), {"train.py": [train.stat().st_size, kept + second - 1]})
    later = train.stat().st_ctime_ns + 3600 * second
    os.utime(job / ".sent", ns=(later, later))
    fetch(Runner(), tmp_path / "saved")
    code = tmp_path / "saved" / JOB / "gpu1" / "code"
    assert files(code) == ["model.pt"]
    # The job wrote the same number of bytes, or another number within the same second.
    os.utime(train, ns=(kept + second, kept + second))
    (job / "code" / "lib.py").write_text("changed")
    os.utime(job / "code" / "lib.py", ns=(kept, kept))
    save(str(job / ".sent"), {**load(str(job / ".sent")), "lib.py": [1, kept]})
    os.utime(job / ".sent", ns=(later, later))
    fetch(Runner(), tmp_path / "saved")
    assert files(code) == ["lib.py", "model.pt", "train.py"]


def test_a_job_that_an_earlier_version_started(jobs: Path, tmp_path: Path) -> None:
    """Its .sent is empty, so the time alone counts."""
    job = jobs / JOB
    (job / ".sent").write_text("")
    model = job / "code" / "model.pt"
    while model.stat().st_ctime_ns <= (job / ".sent").stat().st_mtime_ns:
        model.write_text("model")
    fetch(Runner(), tmp_path / "saved")
    assert files(tmp_path / "saved" / JOB / "gpu1" / "code") == ["model.pt"]


@pytest.mark.parametrize("locked", ["code/model.pt", "code/out", "logs", "."])
def test_what_cannot_be_read_is_named_and_the_rest_comes(jobs: Path, tmp_path: Path, locked: str) -> None:
    """`down` keeps the host's files, because the step fails."""
    (jobs / JOB / "code" / "out").mkdir()
    (jobs / "second" / "logs").mkdir(parents=True)
    (jobs / "second" / ".sent").touch()
    (jobs / "second" / "logs" / "rank-0.log").write_text("x")
    path = jobs / JOB / locked
    mode = path.stat().st_mode
    path.chmod(0)
    into = tmp_path / "saved"
    try:
        with pytest.raises(ToolkitError) as caught:
            fetch(Runner(), into, BOUND_TO_MODES, "on gpu1: sudo chown")
    finally:
        path.chmod(mode)
    name = JOB if locked == "." else f"{JOB}/{locked}"
    assert caught.value.what.startswith(f"the host cannot read '{name}")
    assert "(Permission denied); toolkit saved " in caught.value.what
    assert caught.value.what.endswith(f" in {into}")
    assert caught.value.fix.splitlines()[0] == "on gpu1: sudo chown"
    assert caught.value.fix.splitlines()[1].startswith("toolkit down --no-save")
    assert "second/gpu1/logs/rank-0.log" in files(into)


def test_of_many_files_that_cannot_be_read_the_first_are_named(tmp_path: Path) -> None:
    lines = [json.dumps({"name": f"job/{n}", "refused": "no"}).encode() + b"\n" for n in range(5)]
    with pytest.raises(ToolkitError) as caught:
        fetch(Runner(b"".join(lines) + END), tmp_path / "saved")
    names = "'job/0' (no), 'job/1' (no), 'job/2' (no) and 2 more"
    into = tmp_path / "saved"
    assert caught.value.what == f"the host cannot read {names}; toolkit saved 0 other files in {into}"


def test_a_file_that_is_removed_or_becomes_shorter_is_no_failure(
    jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A process that the job left can still write to its files."""
    finder, job = send_files.Finder(str(jobs / JOB / "code")), jobs / JOB
    send_files.send_new(str(job / "code" / "gone"), finder)
    real = os.fstat

    def longer(descriptor: int) -> os.stat_result:
        values = list(real(descriptor))
        values[6] += 4
        return os.stat_result(values)

    monkeypatch.setattr(os, "fstat", longer)
    send_files.send_new(str(job / "code" / "model.pt"), finder)
    monkeypatch.undo()
    sys.stdout.flush()
    line, _, content = capfdbinary.readouterr().out.partition(b"\n")
    assert json.loads(line)["size"] == 9 and content == b"model" + bytes(4)


def test_a_file_with_a_bad_block_is_named(
    jobs: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = str(jobs / JOB / "code" / "model.pt")

    class Bad:
        def __enter__(self) -> Bad:
            return self

        def __exit__(self, *_: object) -> None: ...

        def fileno(self) -> int:
            return descriptor

        def read(self, size: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    descriptor = os.open(path, os.O_RDONLY)
    monkeypatch.setattr(send_files, "open", lambda *_, **__: Bad(), raising=False)
    send_files.send_new(path, send_files.Finder(str(jobs / JOB / "code")))
    os.close(descriptor)
    sys.stdout.flush()
    line, _, rest = capfdbinary.readouterr().out.partition(b"\n")
    assert rest[:5] == bytes(5) and json.loads(rest[5:]) == {"name": path, "refused": "Input/output error"}
    assert json.loads(line) == {"name": path, "size": 5}


def test_two_names_of_one_file_both_come(jobs: Path, tmp_path: Path) -> None:
    logs = jobs / JOB / "logs"
    (logs / "same.log").hardlink_to(logs / "rank-0.log")
    fetch(Runner(), tmp_path / "saved")
    saved = tmp_path / "saved" / JOB / "gpu1" / "logs"
    assert [(saved / name).read_text() for name in ("rank-0.log", "same.log")] == ["logs/rank-0.log"] * 2


def test_a_host_without_jobs_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "JOBS", tmp_path / "jobs")
    (tmp_path / "jobs").mkdir()
    for runner in (Runner(), Runner(NO_JOB_FILES.encode() + b"\n")):
        verdict, _ = fetch(runner, tmp_path / "saved")
        assert (verdict.status, verdict.detail) == ("skipped", "no job records")
    assert files(tmp_path / "saved") == []


def test_one_file_is_not_several(tmp_path: Path) -> None:
    verdict, _ = fetch(Runner(sent("job/logs/rank-0.log")), tmp_path / "saved")
    assert verdict.detail == f"1 file in {tmp_path / 'saved'}"


@pytest.mark.parametrize("name", ["/etc/x", "../x", "job/../../x", "..", "alone", "job//x", "job/./x"])
def test_what_leads_out_of_the_jobs_folder_stays_out(name: str, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="is not a "):
        fetch(Runner(sent(name)), tmp_path / "saved")
    assert files(tmp_path) == []


def test_links_of_an_earlier_download_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside").mkdir()
    Path("runs/demo/job").mkdir(parents=True)
    Path("runs/demo/job/gpu1").symlink_to(tmp_path / "outside")
    with pytest.raises(ToolkitError, match="runs/demo/job/gpu1 is a symbolic link") as caught:
        fetch(Runner(sent("job/logs/x")), Path("runs/demo"))
    assert caught.value.host == "gpu1" and "toolkit down --no-save" in caught.value.fix
    Path("runs/demo").rename("runs/old")
    Path("runs/demo").symlink_to(tmp_path / "outside")
    with pytest.raises(ToolkitError, match="runs/demo is a symbolic link"):
        fetch(Runner(sent("job/logs/x")), Path("runs/demo"))
    assert files(tmp_path / "outside") == []


def test_a_file_replaces_a_link_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    logs = tmp_path / "saved" / "job" / "gpu1" / "logs"
    logs.mkdir(parents=True)
    (logs / "x").symlink_to(tmp_path / "precious")
    fetch(Runner(sent("job/logs/x")), tmp_path / "saved")
    assert (logs / "x").read_text() == "x" and (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["job/job.json", "job/.sent", "job/code/__pycache__/x", ".ssh/x"])
def test_only_what_was_requested_is_kept(name: str, tmp_path: Path) -> None:
    """The step fails, so that `down` does not delete what it did not save."""
    with pytest.raises(ToolkitError) as caught:
        fetch(Runner(sent("job/x", name)), tmp_path / "saved")
    assert caught.value.what == f"the host sent {name!a}, which is not a file that a job wrote"
    assert files(tmp_path) == ["saved/job/gpu1/x"]


GARBAGE = [
    b"",
    b"no list at all",
    b"no list at all\n",
    b"x" * 100_000,
    sent("job/x", end=b""),  # without an end
    sent("job/x")[:-1],
    sent("job/x") + sent("job/y"),
    sent("job/x", end=b'{"name": "job/y", "size": 10}\nshort'),
    sent("job/x", end=b'{"name": "job/y", "size": -5}\n') + END,
    sent("job/x", end=b'{"name": "job/y", "size": 1e300}\n') + END,
    sent("job/x", end=b'{"name": "job/y"}\n') + END,
    sent("job/x", end=b'{"end": false}\n'),
    sent("job/x", end=b"[" * 3000 + b"\n"),
]


@pytest.mark.parametrize("number", range(len(GARBAGE)))
@pytest.mark.parametrize("piece", [1, 10**6])
def test_a_list_that_is_not_valid_fails_on_its_host_alone(number: int, piece: int, tmp_path: Path) -> None:
    class Slow(Runner):
        def stream(
            self, command: Command, keep: Callable[[bytes], None], silence: float | None = None
        ) -> Result:
            for at in range(0, len(GARBAGE[number]), piece):
                keep(GARBAGE[number][at : at + piece])
            return Result(0)

    with pytest.raises(ToolkitError) as caught:
        fetch(Slow(), tmp_path / "saved")
    assert caught.value.host == "gpu1" and caught.value.fix.splitlines()[-1].startswith(
        "toolkit down --no-save"
    )
    assert set(files(tmp_path)) <= {"saved/job/gpu1/x"}
    assert not list((tmp_path / "saved").glob(".*"))


def test_a_host_that_sends_garbage_keeps_its_cluster_and_the_others_continue(tmp_path: Path) -> None:
    steps: list[Step] = [
        Fetch(host=name, title="save", inside=(), into=str(tmp_path / "saved")) for name in ("gpu1", "gpu2")
    ]
    remove = [Run(name, "remove", command("touch", str(tmp_path / name))) for name in ("gpu1", "gpu2")]
    plan = Plan("down", (Phase("records", tuple(steps)), Phase("containers", tuple(remove))))
    runners = {"gpu1": Host("gpu1", b"x" * 100_000), "gpu2": Host("gpu2", sent("job/x"))}
    report = execute(plan, runners)
    found = [(one.host, one.step, one.status) for one in report.outcomes]
    assert found == [
        ("gpu1", "save", "failed"),
        ("gpu2", "save", "ok"),
        ("gpu1", "remove", "not run"),
        ("gpu2", "remove", "ok"),
    ]
    assert "the host sent an invalid list of job files" in report.failures[0].detail
    assert files(tmp_path) == ["gpu2", "saved/job/gpu2/x"]


def test_records_need_their_own_size_only(tmp_path: Path, free_bytes: Callable[[int], None]) -> None:
    free_bytes(100_000)
    line = b'{"name": "job/x", "size": 90000}\n'
    verdict, _ = fetch(Runner(line + b"x" * 90_000 + END), tmp_path / "saved")
    assert verdict.status == "ok"
    with pytest.raises(ToolkitError, match="the host sent more bytes than fit into") as caught:
        fetch(Runner((line + b"x" * 90_000) * 2 + END), tmp_path / "saved")
    assert "announced" not in caught.value.what and "--no-save" in caught.value.fix


def test_records_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_writer, "_SHARE", 0)
    with pytest.raises(ToolkitError, match="fit into") as caught:
        fetch(Runner(sent("job/x")), tmp_path / "saved")
    assert caught.value.host == "gpu1" and files(tmp_path) == []


def test_a_host_that_fails_is_named_with_a_way_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        fetch(Runner(error="tar: short of memory"), tmp_path / "saved")
    assert caught.value.host == "gpu1"
    assert caught.value.fix.endswith(
        "toolkit down --no-save  # removes the cluster without downloading the job records"
    )


def test_a_host_that_is_lost_is_reported_as_lost(tmp_path: Path) -> None:
    class Lost(Runner):
        def stream(self, *_: Any, **__: Any) -> Result:
            raise Unreachable("the connection was lost", "toolkit status", "gpu1")

    with pytest.raises(Unreachable) as caught:
        fetch(Lost(), tmp_path / "saved")
    assert caught.value.fix == "toolkit status"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("a file")
    with pytest.raises(
        ToolkitError, match=r"cannot write the downloaded files to .*saved: File exists"
    ) as caught:
        fetch(Runner(sent("job/x")), tmp_path / "saved")
    assert "toolkit down --no-save" in caught.value.fix
