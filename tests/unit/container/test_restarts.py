"""Tests of restarts after the end of an attempt: their number, their delay, their hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_world import (
    JOB,
    PATIENCE_S,
    World,
    host_entry,
    python,
    rank_env,
    sleeping,
    wait_for,
)
from toolkit.container.job import elastic, restarts
from toolkit.container.job import supervisor as supervisor_module
from toolkit.container.job.regroup import Regroup
from toolkit.container.job.supervisor import Supervisor
from toolkit.container.job_file import load_job
from toolkit.container.logs.log import Log
from toolkit.core.host_programs import container_programs
from toolkit.protocol.outcomes import EXIT_LOST

OTHER = f"{JOB}-other"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def a_job(**changes: Any) -> dict[str, Any]:
    hosts = [host_entry(), host_entry(name="gpu2", address="10.77.0.3")]
    spares = [host_entry(name="gpu9", address="10.77.0.9")]
    job = {"max_restarts": 3, "min_hosts": 0, "hosts": hosts, "spares": spares}
    return {**job, **changes}


def failed(host: str, state: str = "failed", code: int = 1) -> Any:
    return restarts.End(state, code, "it broke", host)


def spare(number: int) -> dict[str, Any]:
    return host_entry(name=f"gpu{number}", address=f"10.77.0.{number}")


@contextmanager
def another_job(world: World, *hosts: str) -> Iterator[None]:
    """Let slot 0 of these hosts be of another job that runs; its record still lists gpu7, where it began."""
    with sleeping(TOOLKIT_SUPERVISOR=OTHER) as process:
        status = {"state": "running", "pid": process.pid, "hosts": {name: [0] for name in hosts}}
        (world.job(OTHER, hosts=[spare(7)]) / "status.json").write_text(json.dumps(status))
        yield


def names(hosts: list[dict[str, Any]]) -> list[str]:
    return [host["name"] for host in hosts]


def test_a_failure_is_followed_as_often_as_asked() -> None:
    end = failed("gpu1")
    job = a_job(max_restarts=2)
    plan = restarts.Restarts(job)
    for _ in range(2):
        assert plan.may_follow(end) and not plan.why_not(failed("", "stopped"))
        plan.note(end, ["gpu1", "gpu2"], 1.0)
    assert not plan.may_follow(end)
    assert plan.why_not(end) == "; toolkit gave up after 2 restarts"
    assert not restarts.Restarts(a_job(max_restarts=0)).why_not(end)


@pytest.mark.parametrize("state", ["stopped", "timeout", "succeeded"])
def test_what_somebody_wanted_is_not_done_again(state: str) -> None:
    assert not restarts.Restarts(a_job()).may_follow(failed("gpu1", state))


def test_each_wait_is_longer_until_an_attempt_has_lasted() -> None:
    job = a_job(max_restarts=99)
    plan = restarts.Restarts(job)
    end = failed("gpu1")
    assert [plan.note(end, ["gpu1", "gpu2"], 5.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [plan.note(end, ["gpu1", "gpu2"], lasted) for lasted in (3600.0, 5.0)] == [1, 2]


def test_a_host_that_fails_twice_gives_way_to_a_spare() -> None:
    job = a_job()
    plan = restarts.Restarts(job)
    assert names(plan.candidates()) == ["gpu1", "gpu2", "gpu9"]
    plan.note(failed("gpu1"), ["gpu1", "gpu2"], 1.0)
    assert names(plan.candidates()) == ["gpu1", "gpu2", "gpu9"]
    plan.note(failed("gpu1"), ["gpu1", "gpu2"], 1.0)
    assert names(plan.candidates()) == ["gpu2", "gpu9", "gpu1"]


def test_a_spare_that_fails_twice_gives_way_to_another() -> None:
    plan = restarts.Restarts(a_job(spares=[spare(9), spare(10)]))
    for host in ("gpu2", "gpu2", "gpu9", "gpu9"):
        plan.note(failed(host), [], 1.0)
    assert names(plan.candidates()) == ["gpu1", "gpu10", "gpu2", "gpu9"]


def test_hosts_without_a_part_in_the_last_attempt_are_swept_too() -> None:
    job = a_job()
    plan = restarts.Restarts(job)
    assert names(plan.idle(job["hosts"], ())) == ["gpu9"]
    assert names(plan.idle([job["hosts"][0], job["spares"][0]], ())) == ["gpu2"]
    assert not plan.idle([job["hosts"][0], job["spares"][0]], {"gpu2"})
    assert not restarts.Restarts(a_job(spares=[])).idle(job["hosts"], ())


def test_too_few_hosts_are_told_by_name() -> None:
    one, two = a_job()["hosts"]
    assert restarts.too_few([], 1) == "no host answers, but the job requires 1 host (--min-hosts)"
    assert restarts.too_few([one], 2) == "only gpu1 answers, but the job requires 2 hosts (--min-hosts)"
    assert (
        restarts.too_few([one, two], 3)
        == "only gpu1, gpu2 answer, but the job requires 3 hosts (--min-hosts)"
    )


def test_the_launchers_that_travel_need_nothing_else(tmp_path: Path, world: World) -> None:
    for name, text in container_programs().items():
        path = tmp_path / "there" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for launcher in ("mpirun", "horovodrun", "torchrun"):
        folder = world.job(
            f"{JOB}-{launcher}", launcher=launcher, networks=["10.77.0.0/24"], command=["true"]
        )
        text = (
            "import json, sys; sys.path.insert(0, sys.argv[1]); from toolkit.container.job import restarts\n"
            "job = json.load(open(sys.argv[2]))\n"
            "spare = dict(job['hosts'][0], name='gpu9', address='10.77.0.9', slots=2, taken=[0, 1])\n"
            "made = restarts.next_job(job, [spare], 1, 29501)\n"
            "print(json.dumps(restarts.part_of_attempt(made)))\n"
        )
        argv = [sys.executable, "-I", "-S", "-c", text, str(tmp_path / "there"), str(folder / "job.json")]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=dict(os.environ))
        part = json.loads(done.stdout)
        about = (part["attempt"], part["world_size"], part["master_address"], part["master_port"])
        assert about == (1, 2, "10.77.0.9", 29501)
        assert part["launches"][0]["argv"][0] == launcher and "env" not in part
        assert any("gpu9:2" in word or word == "10.77.0.9" for word in part["launches"][0]["argv"])


def test_a_job_is_started_again_and_keeps_its_variables(world: World) -> None:
    text = (
        "import os; n = os.environ['TOOLKIT_RESTART']; print('try', n, os.environ['TOKEN'])\n"
        "raise SystemExit(0 if n == '1' else 9)"
    )
    world.job(command=python(text), env={"TOKEN": "s3cret"}, max_restarts=3, networks=[], launcher="mpirun")
    fake = world.mpirun_of_one_rank()
    world.call("job.supervisor", JOB, PATH=f"{fake}:{os.environ['PATH']}")
    status = world.status()
    assert (status["state"], status["exit_code"], len(status["restarts"])) == ("succeeded", 0, 1)
    log = world.log().decode()
    assert "[gpu1 0] try 0 s3cret" in log and "[gpu1 0] try 1 s3cret" in log
    assert "rank 0 on gpu1 exited with code 9\n[toolkit] restart 1 of 3 in 1 s" in log
    assert "restart 1: 1 rank on gpu1" in log
    logs = {"output.log", "rank-0.log"}
    assert {path.name for path in world.holders("s3cret")} == logs and (
        world.folder() / "attempt.json"
    ).exists()


class Leases:
    """Leases of hosts, of which some have a full disk, and some do not answer."""

    def __init__(self, full: str = "", silent: str = "") -> None:
        self.full, self.silent = full, silent
        self.hosts: list[str] = []
        self.lost: list[str] = []

    def keep(self, hosts: list[str]) -> None:
        self.hosts = list(dict.fromkeys(hosts))

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def leave(self, host: str) -> None:
        self.hosts.remove(host)

    def lose(self, host: str) -> None:
        self.lost.append(host)

    def is_lost(self, host: str) -> bool:
        return host in self.lost

    def interrupt(self, hosts: Sequence[str]) -> None:
        pass

    def there(self) -> list[str]:
        return [host for host in self.hosts if host not in self.lost]

    def tell(self, host: str, request: dict[str, Any]) -> dict[str, Any]:
        if host == self.silent:
            return {}
        if request["do"] == "port":
            return {"port": 29501}
        return {"error": DISK_FULL} if host == self.full else {"ready": True}


DISK_FULL = "OSError(28, 'No space left on device')"
NOT_STORED = f"could not store the files of the restart: {DISK_FULL}"


@pytest.mark.parametrize(
    ("full", "error", "left"),
    [
        ("", "", ["gpu1", "gpu2", "gpu9"]),
        ("gpu2", f"gpu2 {NOT_STORED}", ["gpu1", "gpu2", "gpu9"]),
        ("gpu9", "", ["gpu1", "gpu2"]),  # a spare host of an elastic job can be missing
    ],
)
@pytest.mark.parametrize("silent", ["", "gpu1"])
def test_a_restart_begins_only_if_its_hosts_have_stored_it(
    world: World, monkeypatch: pytest.MonkeyPatch, full: str, error: str, left: list[str], silent: str
) -> None:
    """A host with the files of the earlier attempt would wait for the others at its earlier port.

    A host that does not answer is lost, which ends the attempt, but not the job.
    """
    folder = world.job(**a_job(), world_size=2, launcher="torchrun", elastic=True, networks=[])
    monkeypatch.setenv("TOOLKIT_ROOT", str(world.root))
    supervisor = Supervisor(load_job(JOB), Log(folder / "output.log", 1 << 20))
    supervisor.restarts.note(failed("gpu2"), ["gpu1", "gpu2"], 1.0)
    leases: Any = Leases(full, silent)
    supervisor.leases = leases
    assert supervisor._take(supervisor.job["hosts"], 1) == error
    assert leases.hosts == left and leases.lost == ([silent] if silent else [])
    log = world.log().decode()
    assert (f"gpu9 {NOT_STORED}" in log) == (full == "gpu9")
    assert ("restart 1: 2 ranks on gpu1, gpu2" in log) == (not error)
    supervisor.log.close()


@pytest.mark.parametrize(
    ("begun", "gone", "held", "changes", "hosts"),
    [
        ("gpu2", "gpu2", [], {}, ["gpu1", "gpu9"]),
        ("gpu2", "gpu2", ["gpu9"], {}, ["gpu1", "gpu10"]),
        ("gpu2", "gpu2", ["gpu9", "gpu10"], {"min_hosts": 1}, ["gpu1"]),
        ("gpu2", "gpu2", ["gpu9", "gpu10"], {}, []),
        ("gpu2", "gpu2", [], {"min_hosts": 3}, ["gpu1", "gpu9"]),
        ("gpu2", "gpu2", ["gpu9", "gpu10"], {"share": True}, ["gpu1", "gpu9"]),
        # gpu2 was lost earlier and is back, with another job.
        ("gpu9", "", ["gpu2"], {}, ["gpu1", "gpu9"]),
        ("gpu9", "", [], {}, ["gpu1", "gpu2"]),
    ],
)
def test_a_restart_uses_the_first_hosts_that_no_other_job_uses(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    begun: str,
    gone: str,
    held: list[str],
    changes: dict[str, Any],
    hosts: list[str],
) -> None:
    job = a_job(spares=[spare(9), spare(10)], **changes)
    folder = world.job(**job, world_size=2, launcher="torchrun", networks=[])
    monkeypatch.setenv("TOOLKIT_ROOT", str(world.root))
    monkeypatch.setattr(restarts, "FIRST_WAIT_S", 0.0)
    supervisor = Supervisor(load_job(JOB), Log(folder / "output.log", 1 << 20))
    supervisor.status |= {"state": "running", "hosts": {"gpu1": [0], begun: [0]}}
    leases: Any = Leases()
    leases.hosts = [name for name in ("gpu1", "gpu2", "gpu9", "gpu10") if name != gone]
    supervisor.leases = leases
    monkeypatch.setattr(supervisor_module, "acquire_leases", lambda *_: leases)
    with another_job(world, *held):
        end = supervisor._prepare(failed("gpu2", code=EXIT_LOST), 1.0)
    supervisor.log.close()
    if hosts:
        assert end is None
    else:
        taken = f"slot 0 of gpu9 was reserved by job {OTHER} after the check of free slots"
        assert end is not None and end.reason == f"it broke; no restart: {taken}"
    assert list(world.status()["hosts"]) == (hosts or ["gpu1", begun])
    assert names(supervisor.job["hosts"]) == (hosts or ["gpu1", "gpu2"])


def test_a_restart_by_the_launcher_ends_a_stall(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = world.job(**a_job(), world_size=2, launcher="torchrun", elastic=True, networks=[])
    monkeypatch.setenv("TOOLKIT_ROOT", str(world.root))
    supervisor = Supervisor(load_job(JOB), Log(folder / "output.log", 1 << 20))
    ends: list[float] = []
    monkeypatch.setattr(supervisor.watchdog, "restart", ends.append)
    assert supervisor._may_go_on(failed("gpu2"), supervisor.job["hosts"][:1])
    assert len(ends) == 1
    supervisor.log.close()


def test_a_job_that_says_nothing_is_looked_at_once(world: World) -> None:
    # Until the line is in the log: the evidence is there earlier, and the job would end before the line.
    log = str(world.folder() / "output.log")
    looks = f"'no rank has printed' in open({log!r}).read()"
    waits = f"import time\nwhile not {looks}: time.sleep(0.05)\nprint('done')"
    world.job(command=python(waits), stall_after=1.0)
    world.call("job.supervisor", JOB)
    assert world.status()["state"] == "succeeded"
    told = [line for line in world.log().decode().splitlines() if "no rank has printed for" in line]
    assert len(told) == 1 and f"toolkit why {JOB}" in told[0], world.log()
    assert [path.name for path in (world.folder() / "evidence").iterdir()]


def test_a_stop_between_two_attempts_ends_the_job(world: World) -> None:
    world.job(command=python("raise SystemExit(9)"), max_restarts=9)
    process = world.start("job.supervisor", JOB)
    wait_for(lambda: world.status()["state"] == "restarting")
    process.terminate()
    process.wait(PATIENCE_S)
    status = world.status()
    assert (status["state"], status["exit_code"], status["reason"]) == ("stopped", 143, "stopped by SIGTERM")


def host(name: str, slots: int = 1) -> dict[str, Any]:
    return {"name": name, "slots": slots}


def members(launcher: str = "torchrun", **changes: Any) -> Any:
    job = {"launcher": launcher, "hosts": [host("a"), host("b")], "spares": [host("c"), host("d")]}
    return elastic.members_of({"main": "a", "min_hosts": 0, "elastic": True, **job, **changes})


def test_who_goes_on_when_a_host_is_gone() -> None:
    before = members()
    after = before.without("b", ["a", "d"])
    assert after.names == ["a", "d"] and [each["name"] for each in after.reserve] == ["c"]
    assert before.without("a", ["b", "c", "d"]) is None, "torchrun's store stood there"
    assert before.without("b", ["a"]) is None, "too few"
    assert members(min_hosts=1).without("b", ["a"]).names == ["a"]
    assert members("horovodrun", main="m").without("a", ["b", "c"]).names == ["b", "c"]
    assert members(spares=[host("b")], min_hosts=1).without("b", ["a", "b"]).names == ["a"]


@pytest.mark.parametrize(
    ("launcher", "code", "goes_on"),
    [("torchrun", 137, True), ("torchrun", 255, True), ("torchrun", 1, False), ("horovodrun", 137, False)],
)
def test_a_launch_that_ends_takes_its_host_along_or_everything(
    launcher: str, code: int, goes_on: bool
) -> None:
    assert elastic.launcher_goes_on({"launcher": launcher}, code) is goes_on


def test_the_host_of_a_dead_rank_is_out_with_horovod_alone() -> None:
    goes = elastic.host_that_goes
    assert goes({"launcher": "torchrun"}, "b", False) == ""
    assert goes({"launcher": "torchrun"}, "b", True) == "b"
    assert goes({"launcher": "horovodrun"}, "b", False) == "b"


# What torchrun does as far as we can see it: the rank again, in place.
AGAIN = "import subprocess, sys\nany(subprocess.call(sys.argv[1:]) == 0 for _ in range(5)) or sys.exit(1)"


@pytest.mark.parametrize(("fails", "most", "state"), [(2, 2, "succeeded"), (2, 1, "failed")])
def test_a_launcher_that_starts_a_rank_again_by_itself(
    world: World, fails: int, most: int, state: str
) -> None:
    count = world.root / "count"
    code = (
        f"import pathlib, sys, time; path = pathlib.Path({str(count)!r})\n"
        "number = len(path.read_text()) if path.exists() else 0\n"
        "path.write_text('x' * (number + 1)); print('try', number, flush=True)\n"
        "while not path.with_name(f'go-{number}').exists(): time.sleep(0.02)\n"
        f"sys.exit(9 if number < {fails} else 0)"
    )
    launch = {"host": "gpu1", "argv": [*python(AGAIN), *world.rank_argv()], "env": rank_env()}
    world.job(command=python(code), launches=[launch], launcher="torchrun", elastic=True, max_restarts=most)
    supervisor = world.start("job.supervisor", JOB)
    for number in range(most + 1):
        (world.root / f"go-{number}").touch()
        if number < most:  # what torchrun does next is not over before the supervisor has seen this
            wait_for(lambda: len(world.status().get("restarts", ())) == number + 1)  # noqa: B023
    assert supervisor.wait(PATIENCE_S) == 0
    status, log = world.status(), world.log().decode()
    assert status["state"] == state, log
    reason = "rank 0 on gpu1 exited with code 9"
    assert f"[toolkit] {reason}; restart 1 of {most} by torchrun on gpu1" in log
    assert [each["reason"] for each in status["restarts"]] == [reason] * most
    if state == "failed":
        assert status["exit_code"] == 9 and log.endswith("toolkit gave up after 1 restart\n")


@pytest.mark.parametrize(
    ("launcher", "state", "code", "reason"),
    [
        ("torchrun", "succeeded", 0, ""),
        ("horovodrun", "failed", 73, "gpu1 cannot write {folder}/discovered: Is a directory"),
    ],
)
def test_an_elastic_job_whose_hosts_cannot_be_written_down(
    world: World, launcher: str, state: str, code: int, reason: str
) -> None:
    """Only horovodrun reads them. A folder in place of the file fails as a full disk does."""
    folder = world.job(launcher=launcher, elastic=True)
    (folder / "discovered").mkdir()
    world.call("job.supervisor", JOB)
    status = world.status()
    found = (status["state"], status["exit_code"], status["reason"])
    assert found == (state, code, reason.format(folder=folder))


def test_a_lost_host_that_horovodrun_cannot_learn_of_ends_the_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.job(**a_job(), launcher="horovodrun", elastic=True)
    monkeypatch.setenv("TOOLKIT_ROOT", str(world.root))
    leases: Any = Leases()
    leases.hosts = ["gpu1", "gpu2", "gpu9"]
    asked: list[Any] = []
    group = Regroup(load_job(JOB), leases, lambda index: None, [], lambda *_: bool(asked.append(_)) or True)
    assert group.start() == ""
    assert (folder / "discovered").read_text() == "gpu1:1\ngpu2:1\n"
    (folder / "discovered").unlink()
    (folder / "discovered").mkdir()
    assert not group.survives(failed("gpu2")) and not asked


@pytest.fixture
def elastic_job(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """A job on gpu1 and gpu2, with gpu9 and gpu10 as spares, whose torchrun restarts ranks."""
    spares = [spare(9), spare(10)]
    folder = world.job(**a_job(spares=spares), world_size=2, launcher="torchrun", elastic=True)
    monkeypatch.setenv("TOOLKIT_ROOT", str(world.root))
    supervisor = Supervisor(load_job(JOB), Log(folder / "output.log", 1 << 20))
    supervisor.status["state"] = "running"
    yield supervisor
    supervisor.log.close()


@pytest.mark.parametrize(
    ("held", "changes", "hosts"),
    [
        ([], {}, ["gpu1", "gpu9"]),
        (["gpu9"], {}, ["gpu1", "gpu10"]),
        (["gpu9", "gpu10"], {"min_hosts": 1}, ["gpu1"]),
        (["gpu9", "gpu10"], {}, []),
        (["gpu9", "gpu10"], {"share": True}, ["gpu1", "gpu9"]),
    ],
)
def test_an_elastic_job_takes_a_spare_that_no_other_job_uses(
    world: World, elastic_job: Supervisor, held: list[str], changes: dict[str, Any], hosts: list[str]
) -> None:
    leases: Any = Leases()
    leases.hosts, leases.lost = ["gpu1", "gpu2", "gpu9", "gpu10"], ["gpu2"]
    job: Any = {**elastic_job.job, "launches": [], **changes}
    group = Regroup(job, leases, lambda index: None, [], elastic_job._may_go_on)
    with another_job(world, *held):
        assert group.survives(failed("gpu2", code=EXIT_LOST)) is bool(hosts)
    assert list(elastic_job.status["hosts"]) == (hosts or ["gpu1", "gpu2"])
    assert group.names == (hosts or ["gpu1", "gpu2"])


def test_other_jobs_see_the_hosts_to_which_an_elastic_job_has_moved(
    world: World, elastic_job: Supervisor
) -> None:
    one, two = elastic_job.job["hosts"]
    nine, ten = elastic_job.job["spares"]
    other: Any = {"id": OTHER, "share": False}
    with sleeping(TOOLKIT_SUPERVISOR=JOB) as process:
        elastic_job.status["pid"] = process.pid
        assert elastic_job._may_go_on(failed("gpu2"), [one, nine])
        assert restarts.taken_by_another(other, [one, two, nine, ten]).keys() == {"gpu1", "gpu9"}


def test_each_restart_by_the_launcher_has_the_hosts_of_the_ranks_that_failed(
    world: World, elastic_job: Supervisor
) -> None:
    one, _ = elastic_job.job["hosts"]
    nine, ten = elastic_job.job["spares"]
    assert elastic_job._may_go_on(failed("gpu2"), [one, nine])
    assert elastic_job._may_go_on(failed("gpu9"), [one, ten])
    found = [restart["hosts"] for restart in world.status()["restarts"]]
    assert found == [["gpu1", "gpu2"], ["gpu1", "gpu9"]]


def test_a_world_that_an_elastic_job_may_have(world: World) -> None:
    for size, code in ((1, 64), (2, 0), (3, 0), (4, 64)):
        world.job(f"{JOB}-{size}", world_sizes=[2, 3], world_size=3, elastic=True)
        argv = f"{JOB}-{size}"
        done, _, said = world.call("job.rank", argv, **rank_env(0, size))
        assert done == code, said
        assert (b"but the job requires 2 to 3" in said) == bool(code)
