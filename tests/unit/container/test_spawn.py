"""spawn.py under a real supervisor: the ranks of one host without any launcher of theirs."""

from __future__ import annotations

import json
import sys
import time

from tests.unit.container_world import JOB, PATIENCE_S, World, host_entry, python, wait_for

PLACE = "import os; print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE')))"


def job(world: World, code: str, size: int = 3, ranks: int = 3, first: int = 0, **changes: object) -> None:
    spawn = [sys.executable, str(world.root / "inside" / "run.py"), "job.spawn", str(ranks), str(first)]
    launch = {"host": "gpu1", "argv": [*spawn, *world.rank_argv()], "env": {"WORLD_SIZE": str(size)}}
    hosts = [host_entry(slots=ranks, taken=list(range(ranks)))]
    own = {"command": python(code), "world_size": size, "hosts": hosts, "launches": [launch]}
    world.job(**{**own, "launcher": "python", **changes})


def test_every_rank_is_told_its_place(world: World) -> None:
    job(world, PLACE)
    assert world.call("job.supervisor", JOB)[0] == 0
    lines = {b"[gpu1 0] 0 3 0 3", b"[gpu1 1] 1 3 1 3", b"[gpu1 2] 2 3 2 3"}
    assert set(world.log().splitlines()) == lines and world.status()["state"] == "succeeded"


def test_the_ranks_of_a_later_host_count_on(world: World) -> None:
    job(world, PLACE, size=5, ranks=2, first=3)
    world.call("job.supervisor", JOB)
    assert set(world.log().splitlines()) == {b"[gpu1 3] 3 5 0 2", b"[gpu1 4] 4 5 1 2"}


def test_one_that_fails_ends_the_others_with_its_exit_code(world: World) -> None:
    code = (
        "import os, pathlib, sys, time\n"
        "pathlib.Path('here-' + os.environ['RANK']).touch()\n"
        "while os.environ['RANK'] != '1' or len(list(pathlib.Path().glob('here-*'))) < 3: time.sleep(0.05)\n"
        "sys.exit(7)"
    )
    job(world, code)
    began = time.monotonic()
    world.call("job.supervisor", JOB)
    assert time.monotonic() < began + PATIENCE_S
    status = world.status()
    assert (status["exit_code"], status["reason"]) == (7, "rank 1 on gpu1 exited with code 7")
    ends = [json.loads(path.read_text()) for path in (world.folder() / "logs").glob("rank-*.exit")]
    codes = {end["rank"]: end["exit_code"] for end in ends}
    # On a busy machine the others' short grace may be over before they have written anything.
    assert codes.pop(1) == 7 and set(codes.values()) <= {143}


def test_a_stop_reaches_all_and_waits_for_them(world: World) -> None:
    code = (
        "import os, signal, sys, time\n"
        "def end(*_): time.sleep(0.3); print('saved'); sys.exit(0)\n"
        "signal.signal(15, end); print('ready'); time.sleep(60)"
    )
    job(world, code, grace=600.0)
    supervisor = world.start("job.supervisor", JOB)
    wait_for(lambda: world.log().count(b"ready") == 3)
    supervisor.terminate()
    supervisor.wait(PATIENCE_S)
    assert world.log().count(b"saved") == 3 and world.status()["state"] == "stopped"


def test_a_world_of_another_size_is_refused(world: World) -> None:
    job(world, PLACE, world_size=2)
    world.call("job.supervisor", JOB)
    assert world.status()["exit_code"] == 64
    assert b"the world size to 3, but the job requires 2" in world.log()
