"""Tests of inspect_ranks.py on real processes, with a substitute for py-spy, and of the watchdog."""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_world import JOB, World, python, unkillable_smi, wait_for
from toolkit.container.conventions import in_memory
from toolkit.container.diagnose import collect, inspect_ranks, processes, stacks, watchdog
from toolkit.protocol.decode import decode
from toolkit.protocol.evidence import InspectedNow

SPY = """#!{python}
import json, os, sys
pid = int(sys.argv[-1])
if "--nonblocking" not in sys.argv: sys.exit("Error: it would have been stopped")
frame = {{"name": "main", "filename": "<string>", "line": 4}}
print(json.dumps([{{"os_thread_id": pid, "thread_name": "MainThread", "frames": [frame]}}]))
"""
SLEEPER = """import os, time
try:
    print("my token is tok-12345", flush=True)
    raise KeyError(1)
except KeyError:
    time.sleep(600)
"""
READER = "import os; os.mkfifo('f'); print('up', flush=True); fd = os.open('f', os.O_RDWR); os.read(fd, 1)"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def inspect(world: World, *words: str, **env: str) -> dict[str, Any]:
    spy = world.root / "bin" / "py-spy"
    if not spy.exists():
        spy.parent.mkdir(exist_ok=True)
        spy.write_text(SPY.format(python=sys.executable))
        spy.chmod(0o755)
    status, out, err = world.call(
        "diagnose.inspect_ranks", *words, PATH=f"{spy.parent}:{os.environ['PATH']}", **env
    )
    assert status == 0, err
    said: dict[str, Any] = json.loads(out)
    assert decode(InspectedNow, said).host == said["host"], "the client understands it"
    return said


def rank_of(world: World, code: str, **changes: Any) -> int:
    """Start one rank; returns the process of its command once it has printed."""
    folder = world.job(command=python(code), **changes)
    world.start("job.supervisor", JOB)
    wait_for(lambda: b"up" in world.log() or b"token" in world.log())
    (pid,) = (one["pid"] for one in seen_processes(world) if one["state"] != "Z")
    assert folder.is_dir()
    return int(pid)


def seen_processes(world: World) -> list[dict[str, Any]]:
    return list(inspect(world, JOB)["ranks"][0]["processes"])


def test_a_rank_that_sleeps_in_its_handler(world: World) -> None:
    rank_of(world, SLEEPER, env={"MY_TOKEN": "tok-12345", "PLAIN": "value"})
    said = inspect(world)
    assert said["job"]["id"] == JOB and said["py_spy"] is True and said["host"] == "gpu1"
    (rank,) = said["ranks"]
    assert rank["lines"] == ["my token is ***"] and "tok-12345" not in json.dumps(said)
    assert rank["age"] < 30 and rank["exit_code"] is None
    (process,) = rank["processes"]
    # time.sleep of Python 3.10 calls select.
    assert process["call"] in ("clock_nanosleep", "pselect6", "") and process["cpu"] < 0.5
    (thread,) = process["threads_seen"]
    assert thread["first"] and thread["frames"][0]["text"] == "raise KeyError(1)"
    assert said["status"]["state"] == "running" and "token is ***" in said["output"]


def test_a_variable_with_the_name_of_a_secret_does_not_hide_the_job_and_its_hosts(world: World) -> None:
    rank_of(world, SLEEPER, env={"TOKENIZER": "digits", "KEY_SERVER": "gpu1"})
    said = inspect(world)
    assert (said["host"], said["job"]["id"], said["job"]["hosts"][0]["name"]) == ("gpu1", JOB, "gpu1")


def test_a_rank_that_reads_a_fifo_and_one_that_is_stopped(world: World) -> None:
    pid = rank_of(world, READER)
    (process,) = seen_processes(world)
    if process["call"]:
        assert process["call"] == "read" and process["target"].endswith("/code/f (fifo)")
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: seen_processes(world)[0]["state"] == "T")
    os.kill(pid, signal.SIGCONT)


def test_an_unkillable_nvidia_smi_does_not_hold_up_the_inspection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = unkillable_smi(tmp_path, monkeypatch)
    monkeypatch.setattr(processes, "SMI_S", 1.0)
    start = time.monotonic()
    assert processes.gpus() == {"gpus": [], "gpu_error": "no answer within 1 s"}
    assert time.monotonic() - start < 20
    (process,) = killed
    process.terminate()
    process.communicate()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho '0, GPU-1a, 97, 349.12, 20000'\n")
    gpu = {"index": "0", "uuid": "GPU-1a", "busy": "97", "watts": "349.12", "mib": "20000"}
    monkeypatch.setattr(processes, "SMI_S", 20.0)
    assert processes.gpus() == {"gpus": [gpu], "gpu_error": ""}
    with (tmp_path / "nvidia-smi").open("a") as smi:
        smi.write("echo 'Unable to determine the device handle for GPU1: GPU is lost.'\nexit 15\n")
    lost = "Unable to determine the device handle for GPU1: GPU is lost."
    assert processes.gpus() == {"gpus": [gpu], "gpu_error": lost}
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert processes.gpus() == {"gpus": [], "gpu_error": "exit code 9"}


def test_stacks_take_no_longer_than_their_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A py-spy that hangs begins near the end of the time, and there are two ways to start it."""
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\nexec sleep 60\n")
    spy.chmod(0o755)
    monkeypatch.setattr(inspect_ranks, "STACKS_S", 0.5)
    monkeypatch.setattr(stacks, "STACK_S", 20.0)
    process = {"pid": os.getpid(), "parent": 0, "state": "S"}
    start = time.monotonic()
    inspect_ranks.add_stacks(str(spy), [process])
    assert time.monotonic() - start < 15
    assert process["threads_seen"] == [] and str(process["no_stack"]).startswith("py-spy did not exit within")


def test_gpus_and_nccl_are_queried_while_stacks_are_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3, timeout=20)

    def reads(value: object) -> Any:
        def read(*given: object) -> object:
            together.wait()
            return value

        return read

    monkeypatch.setenv("TOOLKIT_ROOT", str(world.root))
    monkeypatch.setattr(inspect_ranks, "ranks_of", lambda job: {0: [os.getpid()]})
    for name, value in {"add_stacks": None, "ras": "NCCL", "gpus": {"gpus": []}}.items():
        monkeypatch.setattr(inspect_ranks, name, reads(value))
    world.job()
    assert inspect_ranks.seen(JOB)["ras"] == "NCCL"


def test_a_rank_that_has_ended_and_a_host_without_the_job(world: World) -> None:
    world.job(command=python("print('token')"))
    world.start("job.supervisor", JOB)
    wait_for(lambda: world.status()["state"] == "succeeded")
    (rank,) = inspect(world, JOB)["ranks"]
    assert (rank["exit_code"], rank["processes"], rank["lines"]) == (0, [], ["token"])
    assert inspect(world, JOB.rpartition("-")[2])["job"]["id"] == JOB
    world.folder(f"20260101-000000-other-{JOB.rpartition('-')[2]}").mkdir()
    status, _, err = world.call("diagnose.inspect_ranks", JOB.rpartition("-")[2])
    assert status == 66 and b"gpu1 has no folder of job" in err, "two ids end in it"
    status, _, err = world.call("diagnose.inspect_ranks", "20260101-000000-x-0000")
    assert status == 66 and b"gpu1 has no folder of job" in err


def test_dumps_of_this_job_come_along(world: World) -> None:
    folder = world.job(command=python("print('token')"))
    (folder / "record.json").write_text("{}")
    os.utime(folder / "record.json", (1000, 1000))
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.log").write_text("token")
    cache = world.root / "cache" / "torch"
    cache.mkdir(parents=True)
    (cache / "comm_lib_trace_rank_0").write_bytes(b"dump")
    env = {"XDG_CACHE_HOME": str(cache.parent)}
    assert inspect(world, JOB, **env)["ranks"][0]["dumps"] == {"comm_lib_trace_rank_0": "ZHVtcA=="}
    os.utime(cache / "comm_lib_trace_rank_0", (900, 900))
    assert inspect(world, JOB, **env)["ranks"][0]["dumps"] == {}, "an earlier job's"


def test_a_secret_within_a_dump_is_masked_by_its_host(world: World) -> None:
    env = {"MY_TOKEN": "tok-12345", "TORCH_FR_DUMP_TEMP_FILE": str(world.root / "fr_")}
    rank_of(world, SLEEPER, env=env)
    folder = world.folder()
    (folder / "record.json").write_text("{}")
    os.utime(folder / "record.json", (1000, 1000))
    (world.root / "fr_0").write_bytes(b"\x8c\x09tok-12345\0")
    # As an earlier toolkit kept it.
    dumps = {"fr_0": base64.b64encode(b"\0\x09tok-12345").decode(), "damaged": "tok-12345"}
    (folder / "evidence").mkdir()
    (folder / "evidence" / "1.json").write_text(
        json.dumps({"at": 1.0, "hosts": [{"host": "gpu1", "ranks": [{"rank": 0, "dumps": dumps}]}]})
    )
    said = inspect(world, JOB)
    assert base64.b64decode(said["ranks"][0]["dumps"]["fr_0"]) == b"\x8c\x09*********\0"
    kept = said["kept"]["hosts"][0]["ranks"][0]["dumps"]
    assert base64.b64decode(kept["fr_0"]) == b"\0\x09*********" and kept["damaged"] == "***"


def test_after_a_restart_its_own_hosts_and_ends_count(world: World) -> None:
    folder = world.job()
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.log").write_text("token")
    ended = {"rank": 0, "attempt": 0, "exit_code": 1, "ended": 1000.0}
    (folder / "logs" / "rank-0.exit").write_text(json.dumps(ended))
    assert inspect(world, JOB)["ranks"][0]["exit_code"] == 1
    killed = {"signal": 9, "oom": False}
    for more, oom in (
        ({}, None),
        ({"oom": False}, None),
        (killed, False),
        (killed | {"vanished": True}, None),
    ):
        (folder / "logs" / "rank-0.exit").write_text(json.dumps(ended | more))
        assert inspect(world, JOB)["ranks"][0]["oom"] is oom
    own = {"attempt": 1, "hosts": [{"name": "gpu9", "address": "10.77.0.9", "slots": 1, "gpus": []}]}
    (folder / "attempt.json").write_text(json.dumps(own))
    said = inspect(world, JOB)
    assert said["ranks"] == [], "the restart has not started it"
    assert said["job"]["hosts"][0]["name"] == "gpu9"
    run = {"rank": 0, "attempt": 1, "pid": 7}
    (folder / "logs" / "rank-0.run").write_text(json.dumps(run))
    assert inspect(world, JOB)["ranks"][0]["exit_code"] is None
    # An elastic launcher has started the rank again.
    (folder / "logs" / "rank-0.exit").write_text(json.dumps(ended | {"attempt": 1, "pid": 6}))
    assert inspect(world, JOB)["ranks"][0]["exit_code"] is None
    (folder / "logs" / "rank-0.exit").write_text(json.dumps(ended | {"attempt": 1, "pid": 7}))
    assert inspect(world, JOB)["ranks"][0]["exit_code"] == 1
    # The disk was full, and the file of the start is of an earlier attempt or missing.
    (folder / "logs" / "rank-0.run").write_text(json.dumps(run | {"attempt": 0, "pid": 5}))
    assert inspect(world, JOB)["ranks"][0]["exit_code"] == 1
    (folder / "logs" / "rank-0.run").unlink()
    assert inspect(world, JOB)["ranks"][0]["exit_code"] == 1
    (folder / "logs" / "rank-0.run").write_text(json.dumps(run | {"starts": [5.0, 9.0]}))
    assert inspect(world, JOB)["ranks"][0]["started"] == 9.0
    # The disk was full when the launcher started the rank once more.
    memory = in_memory(folder, "rank-0.run")
    try:
        memory.write_text(json.dumps(run | {"pid": 8}))
        assert inspect(world, JOB)["ranks"][0]["exit_code"] is None
    finally:
        memory.unlink()


def test_everything_is_kept_by_collect(world: World) -> None:
    rank_of(world, SLEEPER)
    status, out, _ = world.call("diagnose.collect", JOB, "--why", "no rank has printed for 9 s")
    assert status == 0
    said = json.loads(out)
    assert (said["hosts"], said["silent"]) == (1, [])
    kept = json.loads(Path(said["path"]).read_text())
    assert kept["why"] == "no rank has printed for 9 s" and kept["hosts"][0]["ranks"][0]["rank"] == 0
    assert inspect(world, JOB)["kept"]["why"] == kept["why"]
    assert Path(said["path"]).stat().st_mode & 0o77 == 0


def test_evidence_of_the_watchdog_masks_secrets_of_the_hosts_file(world: World) -> None:
    rank_of(world, SLEEPER, env={"MINE": "tok-12345"}, secret_names=["MINE"])
    _, out, _ = world.call("diagnose.collect", JOB)
    kept = Path(json.loads(out)["path"]).read_text()
    assert "my token is ***" in kept and "tok-12345" not in kept


def test_hosts_that_do_not_answer_are_not_among_those_that_collect_counts(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = {"host": "gpu3", "error": "did not answer", "is_predicate": True}
    reports = [{"host": "gpu1", "ranks": []}, {"host": "gpu2", "error": "gone"}, late]
    monkeypatch.setattr(collect, "load_job", lambda job: {"hosts": []})
    monkeypatch.setattr(collect, "job_folder", lambda job: world.root)
    monkeypatch.setattr(collect, "look_everywhere", lambda job, names: reports)
    monkeypatch.setattr(sys, "argv", ["diagnose.collect", JOB])
    assert collect.main() == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["hosts"], said["silent"]) == (1, ["gpu2: gone", "gpu3 did not answer"])


def test_collect_keeps_only_the_newest_files_and_queries_the_current_hosts(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOOLKIT_ROOT", str(world.root))
    folder = world.job()
    (folder / "status.json").write_text(json.dumps({"state": "running", "hosts": {"gpu7": [0, 1]}}))
    queried: list[str] = []
    monkeypatch.setattr(collect, "look_on", lambda job, host: queried.append(host) or {"host": host})
    monkeypatch.setattr(sys, "argv", ["diagnose.collect", JOB])
    for _ in range(5):
        assert collect.main() == 0
    paths = [json.loads(line)["path"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(map(str, folder.glob("evidence/*"))) == paths[-3:]
    assert set(queried) == {"gpu1", "gpu7"}
    assert json.loads(Path(paths[-1]).read_text())["slots"] == {"gpu7": [0, 1]}


def test_rows_of_the_table_of_connections() -> None:
    row = "  1: 0A00000A:9C40 0B00000A:3039 01 00000010:00000002 01:00000019 00000003 1000 0 4711 2 0 20 4 0"
    assert processes.socket_row(row) == {
        "local": "10.0.0.10:40000",
        "peer": "10.0.0.11:12345",
        "state": "ESTABLISHED",
        "unsent": 16,
        "unread": 2,
        "retries": 3,
        "inode": "4711",
    }
    mapped = row.replace("0B00000A:3039", "0000000000000000FFFF00000B00000A:3039")
    assert processes.socket_row(mapped)["peer"] == "10.0.0.11:12345"
    six = row.replace("0B00000A:3039", "B80D01200000000000000000010000000:3039"[:32] + ":3039")
    assert processes.socket_row(six)["peer"].startswith("[2001:0db8:")


def test_handlers_are_found_in_a_program() -> None:
    assert stacks.handlers_in(SLEEPER) == [(6, 6)] and stacks.handlers_in("x = (") == []


def test_only_one_thread_builds_a_syntax_tree_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are inspected in several threads; Python 3.11 can raise SystemError otherwise."""
    inside = threading.Semaphore(1)

    def parse(text: str) -> ast.Module:
        assert inside.acquire(blocking=False), "two threads parse"
        time.sleep(0.01)
        inside.release()
        return real(text)

    real = ast.parse
    with monkeypatch.context() as patch:
        patch.setattr(stacks.ast, "parse", parse)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(stacks.handlers_in, [SLEEPER] * 4))
    assert found == [[(6, 6)]] * 4


class Collector:
    """A substitute for the process that inspects ranks."""

    def __init__(self, said: bytes, code: int = 0) -> None:
        self.stdout, self.returncode, self.over, self.killed = io.BytesIO(said), code, False, False

    def poll(self) -> int | None:
        return self.returncode if self.over else None

    def kill(self) -> None:
        self.killed = True

    def wait(self) -> int:
        return self.returncode


def test_the_watchdog_looks_once_at_each_stall() -> None:
    started: list[Collector] = []

    def start(job: str, why: str) -> Collector:
        assert (job, why) == ("x", "no rank has printed for 10 s")
        said = {"path": "/p", "hosts": 1, "silent": ["box2: gone"]}
        started.append(Collector(json.dumps(said).encode()))
        return started[-1]

    dog = watchdog.Watchdog("x", 10.0, 100.0, start)
    assert dog.tick(109.0) is None and not started
    assert dog.tick(110.0) is None and len(started) == 1
    assert dog.tick(111.0) is None
    started[0].over = True
    line = dog.tick(112.0)
    assert line == (
        "no rank has printed for 12 s; toolkit saved the state of the ranks on 1 host (see `toolkit why x`)"
        "; box2: gone"
    )
    assert dog.tick(500.0) is None and len(started) == 1, "the same stall"
    dog.heard(500.0)
    assert dog.tick(509.0) is None and len(started) == 1
    dog.tick(510.0)
    assert len(started) == 2
    late = dog.tick(571.0)
    assert (
        late is not None and "could not save the state of the ranks within 60 s" in late and started[1].killed
    )


def test_the_watchdog_marks_the_evidence_of_a_stall_after_which_ranks_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLKIT_ROOT", str(tmp_path))
    evidence = tmp_path / "jobs" / "x" / "evidence"
    evidence.mkdir(parents=True)
    number = 0

    def start(job: str, why: str) -> Collector:
        nonlocal number
        number += 1
        path = evidence / f"{number}.json"
        path.touch()
        collector = Collector(json.dumps({"path": str(path), "hosts": 1, "silent": []}).encode())
        collector.over = True
        return collector

    def files() -> list[str]:
        return sorted(path.name for path in evidence.iterdir())

    dog = watchdog.Watchdog("x", 10.0, 0.0, start)
    dog.tick(10.0)
    dog.tick(11.0)
    for now in (20.0, 80.0, 139.0):  # the errors that end a job
        dog.heard(now)
    assert files() == ["1.json"]
    dog.heard(140.0)
    assert files() == ["1.over.json"]
    dog.tick(150.0)
    dog.tick(151.0)
    dog.heard(152.0)
    assert files() == ["1.over.json", "2.json"]
    dog.tick(162.0)
    assert files() == ["1.over.json", "2.over.json", "3.json"], "another stall"
    dog.tick(163.0)
    dog.restart(164.0)
    assert files() == ["1.over.json", "2.over.json", "3.over.json"]
    dog.tick(174.0)
    dog.restart(174.5)  # before the watchdog has read the result
    assert files()[3:] == ["4.over.json"]
    dog = watchdog.Watchdog("x", 300.0, 1000.0, start)
    dog.tick(1300.0)
    dog.tick(1301.0)
    for now in (1310.0, 1600.0):  # one line during the stall, then the errors of a time-out
        dog.heard(now)
    assert files()[4:] == ["5.json"]


def test_a_stall_before_a_restart_is_not_the_cause_of_the_end(world: World) -> None:
    code = (
        "import os, pathlib, time; print('token', flush=True); evidence = pathlib.Path('../evidence')\n"
        "while os.environ['TOOLKIT_RESTART'] == '0' and not list(evidence.glob('*.json')): time.sleep(0.1)\n"
        "time.sleep(1 if os.environ['TOOLKIT_RESTART'] == '0' else 0); raise SystemExit(1)"
    )
    world.job(command=python(code), max_restarts=1, networks=[], stall_after=0.5)
    world.start("job.supervisor", JOB, PATH=f"{world.mpirun_of_one_rank()}:{os.environ['PATH']}")
    wait_for(lambda: world.status()["state"] == "failed")
    assert len(world.status()["restarts"]) == 1
    assert inspect(world, JOB)["kept"]["over"] is True


# A server that sends a byte from time to time, and the report that is read from it; for a process of its own.
RAS = """
import os, socket, threading, time
from toolkit.container.diagnose import processes
processes.RAS_S = 1.0
server = socket.create_server(("127.0.0.1", 0))
def serve():
    connection, _ = server.accept()
    while True:
        connection.sendall(b"x")
        time.sleep(0.2)
threading.Thread(target=serve, daemon=True).start()
environ = {"NCCL_RAS_ADDR": f"127.0.0.1:{server.getsockname()[1]}"}
print(repr(processes.ras(environ, [os.getppid()])))
start = time.monotonic()
print(set(processes.ras(environ, [os.getpid()])), time.monotonic() - start < 15)
"""


def test_ras_is_read_only_from_a_process_of_the_job_and_for_a_limited_time() -> None:
    """Another job on the host can have the port."""
    done = subprocess.run([sys.executable, "-c", RAS], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["''", "{'x'} True"], done.stderr


def test_the_watchdog_says_what_failed() -> None:
    broken = Collector(b"Traceback\nOSError: no room\n", 1)
    broken.over = True
    dog = watchdog.Watchdog("x", 1.0, 0.0, lambda job, why: broken)
    assert dog.tick(2.0) is None
    line = dog.tick(3.0)
    assert (
        line == "no rank has printed for 3 s; toolkit could not save the state of the ranks: OSError: no room"
    )
    dog.close()

    def fails(job: str, why: str) -> Any:
        raise OSError("no more processes")

    line = watchdog.Watchdog("x", 1.0, 0.0, fails).tick(2.0)
    assert line is not None and "toolkit could not save the state of the ranks: no more processes" in line


def test_output_of_an_earlier_attempt_is_not_a_current_cause(world: World) -> None:
    # The first attempt fails with an error of the catalogue; the second one runs.
    code = (
        "import pathlib, time; first = not pathlib.Path('tried').exists(); pathlib.Path('tried').touch()\n"
        "if first: raise SystemExit('ModuleNotFoundError: No module named')\n"
        "print('at work', flush=True); time.sleep(600)"
    )
    world.job(command=python(code), max_restarts=1, networks=[])
    world.start("job.supervisor", JOB, PATH=f"{world.mpirun_of_one_rank()}:{os.environ['PATH']}")
    wait_for(lambda: b"at work" in world.log(), 30)
    said = inspect(world, JOB)
    (rank,) = said["ranks"]
    assert rank["lines"] == ["at work"] and rank["tail"] == "at work\n"
    assert "ModuleNotFoundError" in world.log().decode() and "ModuleNotFoundError" not in said["output"]
    assert "at work" in said["output"]


def test_the_last_lines_are_complete_when_a_log_has_begun_a_new_piece(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_text("first\n")
    (tmp_path / "rank-0.log.600").write_text("Traceback\n  File x\n")
    (tmp_path / "rank-0.log.619").write_text("KeyError: 1\n")
    assert inspect_ranks.tail(path, 1000) == "Traceback\n  File x\nKeyError: 1\n"
    assert inspect_ranks.tail(path, 16) == "e x\nKeyError: 1\n"
    assert inspect_ranks.tail(path, 1000, 610) == "  File x\nKeyError: 1\n"
    assert inspect_ranks.tail(path, 1000, 625) == "or: 1\n"
    assert inspect_ranks.tail(path, 1000, 631) == inspect_ranks.tail(tmp_path / "none", 9) == ""


def test_the_last_lines_of_a_rank_are_those_before_a_backtrace(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    text = "KeyError: 1\n\n" + "frame #0: __clone + 0x44 (0x7fc3)\n" * 20
    (tmp_path / "logs" / "rank-0.log").write_text(text)
    found = inspect_ranks.rank_seen(tmp_path, 0, [1], time.time())
    assert found is not None and (found["lines"], found["tail"]) == (["KeyError: 1"], text)
