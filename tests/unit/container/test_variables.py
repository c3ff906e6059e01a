"""The variables of a job: ranks have them, from memory alone, and no host keeps them."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit import cluster_world
from tests.unit.code_here import ContainerHere
from tests.unit.container_world import (
    JOB,
    World,
    host_entry,
    memory_file,
    python,
    rank_env,
    wait_for,
)
from toolkit.container.diagnose.inspect_ranks import secrets_of
from toolkit.container.job import variables
from toolkit.core.code import CodeTree
from toolkit.jobs.executors import send_code, start_job
from toolkit.jobs.plan import plan_job
from toolkit.plan.context import Context
from toolkit.plan.steps import SendCode, StartJob

FINAL = {"succeeded", "failed", "stopped", "timeout"}
SECRET = "s3cret"
CONTAINER = "gpu1-container"
SHOW = "import os; print('has', len(os.environ['TOKEN']), os.environ['OWN'], flush=True)\n"
WAITS = SHOW + "import pathlib, time\nwhile not pathlib.Path('go-on').exists(): time.sleep(0.05)"
GIVEN = {"env": {"TOKEN": SECRET, "OWN": "all"}, "host_env": {"gpu2": {"OWN": "gpu2"}}}


def two_hosts(world: World, code: str = WAITS, **changes: Any) -> dict[str, str]:
    """Make a job with one rank on gpu1 and one on gpu2; returns what its supervisor needs."""
    launches = [
        {"host": name, "argv": world.rank_argv(), "env": rank_env(rank, 2)}
        for rank, name in enumerate(("gpu1", "gpu2"))
    ]
    hosts = [host_entry(), host_entry(name="gpu2", address="10.77.0.3")]
    world.job(command=python(code), hosts=hosts, world_size=2, launches=launches, **GIVEN, **changes)
    world.other_host("gpu2")
    return world.with_bin()


def on_disks(world: World) -> list[Path]:
    return [path for path in world.holders(SECRET) if world.root in path.parents]


def has_ended(world: World) -> bool:
    return world.status()["state"] in FINAL


def test_variables_are_in_memory_alone_while_a_job_runs_and_nowhere_afterwards(world: World) -> None:
    supervisor = world.start("job.supervisor", JOB, **two_hosts(world))
    wait_for(lambda: world.log().count(b"has") == 2)
    # Each rank has those of its own host.
    assert set(world.log().splitlines()) == {b"[gpu1 0] has 6 all", b"[gpu2 1] has 6 gpu2"}
    assert on_disks(world) == []
    for root in (world.root, world.root / "hosts/gpu2"):
        link = memory_file(root / "jobs" / JOB, "variables")
        assert SECRET in link.read_text() and link.stat().st_mode & 0o777 == 0o600
        # Killed or not, the lease takes them along: no name leads to them but through its process.
        assert link.is_symlink() and link.stat().st_nlink == 0
    (world.folder() / "code" / "go-on").touch()
    supervisor.communicate()
    assert world.status()["state"] == "succeeded", world.log()
    assert world.holders(SECRET) == []


@pytest.mark.parametrize("program", ["job.stop", "job.supervisor", "job.lease"])
def test_a_job_that_is_stopped_or_loses_a_program_leaves_none(world: World, program: str) -> None:
    world.start("job.supervisor", JOB, **two_hosts(world, grace=0.1))
    wait_for(lambda: world.log().count(b"has") == 2)
    if program == "job.stop":
        assert world.call("job.stop", JOB, **world.with_bin())[0] == 0
    elif program == "job.supervisor":
        os.kill(world.status()["pid"], signal.SIGKILL)
    else:
        found = memory_file(world.root / "hosts/gpu2/jobs" / JOB, "variables").readlink()
        os.kill(int(found.parts[2]), signal.SIGKILL)
        wait_for(lambda: has_ended(world))
    wait_for(lambda: world.holders(SECRET) == [])


@pytest.mark.parametrize("end", ["success", "a lease is killed"])
def test_the_token_of_a_launcher_is_in_memory_alone(world: World, end: str) -> None:
    token = "t0ken-of-ray"
    world.start("job.supervisor", JOB, **two_hosts(world, token=token, grace=0.1))
    wait_for(lambda: world.log().count(b"has") == 2)
    links = [memory_file(root / "jobs" / JOB, "token") for root in (world.root, world.root / "hosts/gpu2")]
    for link in links:
        assert link.read_text() == token and link.stat().st_mode & 0o777 == 0o600
        assert link.is_symlink() and link.stat().st_nlink == 0
    assert not [path for path in world.holders(token) if world.root in path.parents]
    if end == "success":
        (world.folder() / "code" / "go-on").touch()
    else:
        os.kill(int(links[1].readlink().parts[2]), signal.SIGKILL)
    wait_for(lambda: has_ended(world))
    wait_for(lambda: world.holders(token) == [])
    wait_for(lambda: not links[0].is_symlink())  # gpu2 is not swept in this world


def context_of(world: World) -> Context:
    """Return a context in which the container of gpu1 is the world's folder."""
    return Context({"gpu1": ContainerHere(world.root)})


def test_a_start_that_is_interrupted_after_the_code_has_been_sent_leaves_none(world: World) -> None:
    plan = plan_job(cluster_world.layout(), cluster_world.job(), "", CodeTree())
    send = next(step for step in plan.steps if isinstance(step, SendCode) and step.host == "gpu1")
    (world.root / "jobs").mkdir()
    context = context_of(world)
    assert send_code(replace(send, container=CONTAINER), context, lambda done, total: None).status == "ok"
    context.container_sessions.leave()
    assert (world.folder(cluster_world.JOB_ID) / "job.json").exists()
    assert world.holders(SECRET) == []


def test_a_start_that_is_refused_leaves_none(world: World) -> None:
    world.job(command=python("import time; time.sleep(60)"))
    world.start("job.supervisor", JOB)
    wait_for(lambda: world.status()["state"] == "running")
    other = f"{JOB}-other"
    world.job(other, **GIVEN)
    context = context_of(world)
    step = StartJob("gpu1", "start", CONTAINER, other, world.variables[other])
    assert start_job(step, context, lambda done, total: None).status == "ok"
    context.container_sessions.leave()
    wait_for(lambda: world.status(other)["state"] in FINAL)
    status = world.status(other)
    assert (status["state"], status["exit_code"]) == ("failed", 65) and JOB in status["reason"]
    assert world.holders(SECRET) == []


def test_the_container_session_starts_a_job_with_its_variables(world: World) -> None:
    # Too many for a pipe to hold them at once.
    world.job(command=python(SHOW), env={**GIVEN["env"], "MANY": "x" * 100_000})
    context = context_of(world)
    step = StartJob("gpu1", "start", CONTAINER, JOB, world.variables[JOB])
    start_job(step, context, lambda done, total: None)
    context.container_sessions.leave()
    wait_for(lambda: has_ended(world))
    assert world.log() == b"[gpu1 0] has 6 all\n" and world.holders(SECRET) == []
    assert not memory_file(world.folder(), "variables").is_symlink()


def test_variables_that_do_not_arrive_completely_refuse_the_job(world: World) -> None:
    world.job(**GIVEN)
    for number, given in enumerate(("", world.variables[JOB][:-1])):
        name = f"{JOB}-{number}"
        world.job(name, **GIVEN)
        world.variables[name] = given
        world.call("job.supervisor", name)
        status = world.status(name)
        assert (status["state"], status["exit_code"]) == ("failed", 65)
        assert status["reason"].startswith("the job's variables did not arrive")
        assert world.holders(SECRET) == []


def test_ranks_have_them_after_a_restart_too(world: World) -> None:
    code = SHOW + "raise SystemExit(os.environ['TOOLKIT_RESTART'] == '0')"
    spares = [host_entry(name="gpu2", address="10.77.0.3")]
    words = {"spares": spares, "max_restarts": 2, "networks": []}
    world.job(command=python(code), **GIVEN, **words)
    world.other_host("gpu2")
    world.mpirun_of_one_rank()
    world.call("job.supervisor", JOB, **world.with_bin())
    assert world.status()["state"] == "succeeded", world.log()
    assert world.log().count(b"has 6 all") == 2 and world.holders(SECRET) == []


def test_a_rank_without_its_variables_does_not_run(world: World) -> None:
    code = """
from toolkit.container.job import rank, variables
variables.ARRIVE_S = 0.2
sys.exit(rank.main())
"""
    folder = world.job(command=python("print('must not run')"), **GIVEN)
    status, out, err = world.call(world.driver(code), JOB, **rank_env())
    assert (status, out) == (66, b"") and not (folder / "logs").exists()
    assert b"gpu1 0: the variables of job" in err and b"the container was restarted" in err


def test_variables_are_never_kept_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "in_memory", lambda folder, name: folder / name)
    with pytest.raises(OSError, match="/dev/shm is not writable"):
        variables.keep(tmp_path, {"env": {"TOKEN": SECRET}, "override": {}, "token": ""})
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_cannot_keep_them_ends_the_job(world: World) -> None:
    world.job(command=python("print('must not run')"), **GIVEN)
    programs = world.own_programs()
    variables_file = programs / "toolkit/container/job/variables.py"
    with variables_file.open("a") as file:
        file.write("\n\ndef in_memory(folder: Path, name: str) -> Path:\n    return folder / name\n")
    world.call("job.supervisor", JOB)
    status = world.status()
    why = (
        "gpu1 is lost: the lease process cannot keep the variables of the job in memory: "
        "/dev/shm is not writable"
    )
    assert (status["state"], status["reason"]) == ("failed", why)
    assert b"must not run" not in world.log() and world.holders(SECRET) == []


def test_what_is_read_of_ranks_hides_variables_in_memory(world: World) -> None:
    folder = world.job(**GIVEN, token="t0ken-of-ray")
    world.keep_variables()
    about = json.loads(world.variables[JOB])
    assert about["token"] == "t0ken-of-ray"
    assert set(secrets_of(folder, [], ())) == {SECRET, "t0ken-of-ray"}


def test_secrets_of_the_hosts_file_are_masked_whatever_their_names(world: World) -> None:
    given = {"env": {"WANDB": "w-12345", "PLAIN": "value"}}
    folder = world.job(**given, secret_names=["WANDB"])
    world.keep_variables()
    assert secrets_of(folder, [], ()) == ("w-12345",)
    assert set(secrets_of(folder, [{"WANDB": "own-12345"}], ("PLAIN",))) == {"w-12345", "own-12345", "value"}
