"""Launches that are there for the others: ended when those have ended, and not to end before."""

from __future__ import annotations

import sys
import time

from tests.unit.container_world import JOB, World, python, wait_for
from toolkit.container.job.orphans import still_alive

STAYS = "import time; print('serving', flush=True); time.sleep(600)"


def job(world: World, rank: str, server: str, **changes: object) -> None:
    launches = [
        {"host": "gpu1", "argv": world.rank_argv(), "env": {"RANK": "0", "WORLD_SIZE": "1"}},
        {"host": "gpu1", "argv": python(server), "env": {}, "serves": True, "name": "Ray"},
    ]
    world.job(**{"command": python(rank), "launches": launches, "launcher": "ray", **changes})


def test_the_job_ends_with_its_ranks_and_what_served_them_goes(world: World) -> None:
    job(world, "import time; time.sleep(1); print('done')", STAYS)
    began = time.monotonic()
    world.call("job.supervisor", JOB)
    assert time.monotonic() < began + 300
    assert world.status()["state"] == "succeeded" and set(world.log().splitlines()) >= {b"serving"}
    assert world.call("job.orphans", JOB, "--list")[1] == b"[]\n"


def test_what_ends_before_the_ranks_is_a_failure_whatever_its_code(world: World) -> None:
    for code in (0, 3):
        name = f"{JOB}-{code}"
        argv = [sys.executable, str(world.root / "inside" / "run.py"), "job.rank", name]
        launches = [
            {"host": "gpu1", "argv": argv, "env": {"RANK": "0", "WORLD_SIZE": "1"}},
            {"host": "gpu1", "argv": python(f"raise SystemExit({code})"), "serves": True, "name": "Ray"},
        ]
        world.job(name, command=python("import time; time.sleep(60)"), launches=launches, launcher="ray")
        world.call("job.supervisor", name)
        status = world.status(name)
        assert status["state"] == "failed" and status["exit_code"] == (code or 70)
        assert status["reason"] == f"Ray on gpu1 exited with code {code}"


def test_a_rank_that_fails_is_the_cause_and_not_what_served_it(world: World) -> None:
    job(world, "import sys; sys.exit(7)", STAYS)
    world.call("job.supervisor", JOB)
    status = world.status()
    assert (status["exit_code"], status["reason"]) == (7, "rank 0 on gpu1 exited with code 7")


def test_a_jobs_token_is_forgotten_with_the_variables(world: World) -> None:
    job(world, "import time; time.sleep(1)", STAYS, token="0123456789abcdef")
    supervisor = world.start("job.supervisor", JOB)
    wait_for(lambda: world.holders("0123456789abcdef"))
    supervisor.communicate()
    assert world.holders("0123456789abcdef") == []


def test_processes_that_do_not_end_are_named() -> None:
    left = [{"pid": 12, "name": "python3"}, {"pid": 7, "name": "sh"}]
    assert still_alive(left) == "python3 (pid 12), sh (pid 7) did not exit"
    assert still_alive([]) is None
    assert still_alive("words of a changed host") == "unknown processes did not exit"
