"""A job on a disk that becomes full: the exit records of the ranks and of the job are kept."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_world import JOB, World, memory_file, python, rank_env

FILL = """
with open('fill', 'wb', 0) as file:
    try:
        while True: file.write(bytes(4096))
    except OSError: pass
"""


@pytest.fixture
def small_disk(world: World) -> Iterator[Path]:
    """The folder of jobs on a file system of its own, of 4 MiB."""
    jobs = world.root / "jobs"
    jobs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(jobs)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs, as root has it")
    yield jobs
    world.close()  # before the files are removed; another call has nothing to end
    subprocess.run(["umount", "--lazy", str(jobs)], check=True)


def launched(world: World, before: str, after: str, **changes: Any) -> Path:
    """A job whose launcher runs Python code before its only rank and after it."""
    folder = world.job(**changes)
    # The exit code is that of the rank.
    text = '"$0" -c "$1"; sh -c "$2"; code=$?; "$0" -c "$3"; exit $code'
    argv = ["sh", "-c", text, sys.executable, before, f"exec {shlex.join(world.rank_argv())}", after]
    job = json.loads((folder / "job.json").read_text())
    launch = {"host": "gpu1", "argv": argv, "env": rank_env(), "serves": False, "name": ""}
    (folder / "job.json").write_text(json.dumps({**job, "launches": [launch]}))
    return folder


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (3, "failed")])
def test_a_rank_on_a_full_disk_is_recorded_as_it_ended(
    world: World, small_disk: Path, code: int, state: str
) -> None:
    command = python(f"{FILL}\nraise SystemExit({code})")
    folder = launched(world, "", FILL, command=command, env={"TOKEN": "s3cret"})
    world.call("job.supervisor", JOB)
    status = world.status()
    assert (status["state"], status["exit_code"], status["restarts"]) == (state, code, [])
    record = json.loads((folder / "logs" / "rank-0.exit").read_text())
    assert (record["exit_code"], record.get("vanished")) == (code, None)
    assert world.holders("s3cret") == []
    assert sorted(path.name for path in folder.rglob(".*")) == []  # no reserve stays


def test_a_rank_that_begins_on_a_full_disk_is_heard_of_through_its_lease(
    world: World, small_disk: Path
) -> None:
    launched(world, FILL, "", command=python("raise SystemExit(3)"))
    world.call("job.supervisor", JOB)
    status = world.status()
    assert (status["state"], status["exit_code"]) == ("failed", 3)
    assert status["reason"] == "rank 0 on gpu1 exited with code 3"


def test_the_final_state_reaches_those_who_ask_without_any_room(world: World, small_disk: Path) -> None:
    gone = f"import pathlib; pathlib.Path('../.status.json.spare').unlink()\n{FILL}"
    launched(world, "", gone)
    world.call("job.supervisor", JOB)
    assert world.status()["state"] == "running"  # what the disk still says
    told = json.loads(world.call("job.stop", JOB)[1])
    assert (told["state"], told["exit_code"]) == ("succeeded", 0)
    code, _, err = world.call("logs.follow", JOB, "--status")
    assert (code, json.loads(err)["status"]["state"]) == (0, "succeeded")
    (row,) = json.loads(world.call("job_list", str(small_disk))[1])
    assert (row["status"]["state"], row["alive"]) == ("succeeded", False)


def test_a_job_without_room_for_its_records_does_not_begin(world: World, small_disk: Path) -> None:
    folder = world.job()
    subprocess.run([sys.executable, "-c", FILL], cwd=folder, check=True)
    code, _, _ = world.call("job.supervisor", JOB)
    told = json.loads(world.call("job.stop", JOB)[1])
    what = f"gpu1 cannot reserve disk space for the job's records in {folder}: No space left on device"
    assert (code, told["state"], told["reason"]) == (65, "failed", what)
    assert not (folder / "logs").exists()


def test_a_record_that_the_full_disk_does_not_take_leaves_the_earlier_one(world: World) -> None:
    folder = world.job()
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.run").write_text('{"attempt": 0}\n')
    code = (
        "import pathlib, resource\nfrom toolkit.container.job.rank_records import move_records\n"
        "if sys.argv[2] == 'full': resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "move_records(pathlib.Path(sys.argv[1]))\n"
    )
    for disk, attempt in (("full", 0), ("free", 1)):
        memory_file(folder, "rank-0.run").write_text('{"attempt": 1}\n')
        assert world.call(world.driver(code), str(folder), disk)[0] == 0
        assert json.loads((folder / "logs" / "rank-0.run").read_text()) == {"attempt": attempt}
        assert [path.name for path in (folder / "logs").iterdir()] == ["rank-0.run"]
        assert not memory_file(folder, "rank-0.run").exists()


def test_reserved_space_is_used_and_given_back(world: World, tmp_path: Path) -> None:
    code = """
import os, pathlib
from toolkit.container import files
path = pathlib.Path(sys.argv[1])
files.reserve(path, 4096)
files.write_reserved(path, "one")
print(path.read_text(), os.listdir(path.parent))
files.reserve(path, 4096)
def full(path, text):
    raise OSError(28, "No space left on device")
files.write_text = full
files.write_reserved(path, "two")
print(path.read_text(), os.listdir(path.parent))
try:
    files.write_reserved(path, "three")
except OSError as error:
    print(type(error).__name__)
"""
    (tmp_path / "own").mkdir()
    out = world.call(world.driver(code), str(tmp_path / "own" / "x"))[1].decode()
    assert out.splitlines() == ["one ['x']", "two ['x']", "FileNotFoundError"]
