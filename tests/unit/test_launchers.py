"""Every launcher's job file, for clusters of several shapes."""

from __future__ import annotations

import json

import pytest

from tests.golden import check_golden
from tests.unit import cluster_world as world
from toolkit.launchers import LAUNCHERS
from toolkit.launchers.job import JobHost, take_slots
from toolkit.plan.job import job_file
from toolkit.spec import fields

GPU1, GPU2 = JobHost("gpu1", "10.77.0.2", 2), JobHost("gpu2", "10.77.0.3", 3)
SHAPES = {"one-host": (GPU1,), "uneven": (GPU1, GPU2), "main-without-slots": (GPU2,)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_has_goldens(launcher: str, shape: str) -> None:
    job = world.job(launcher, SHAPES[shape])
    check_golden(f"launchers/{launcher}/{shape}.json", job_file(job))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_starts_every_rank_through_the_rank_program(launcher: str, shape: str) -> None:
    job = world.job(launcher, SHAPES[shape])
    launches = LAUNCHERS[launcher](job)
    known = {host.name for host in job.hosts} | {job.main}
    assert launches
    for launch in launches:
        assert launch.host in known
        assert launch.argv[-2:] == job.rank_argv[-2:]
        # Secrets and the person's command travel in the job file alone.
        assert not {"TOKEN", "s3cret $x", "OTHER_TOKEN", "s3cret too", *job.command} & {
            *launch.argv,
            *dict(launch.env).values(),
        }
        assert not any("StrictHostKeyChecking" in token for token in launch.argv)


def test_job_file_is_what_its_readers_expect() -> None:
    told = json.loads(job_file(world.job("torchrun", (GPU2,))))
    assert told["main"] == "gpu1"
    assert (told["world_size"], told["master_address"], told["master_port"]) == (3, "10.77.0.3", 29500)
    assert told["env"] == {"EPOCHS": "3", "TOKEN": "s3cret $x"}
    assert told["override"] == {"OTHER_TOKEN": "s3cret too"}
    assert told["workdir"] == f"/run/toolkit/jobs/{world.JOB_ID}/code"
    assert [launch["host"] for launch in told["launches"]] == ["gpu2"]


def test_the_hosts_file_knows_the_same_launchers() -> None:
    assert set(fields.LAUNCHERS) == set(LAUNCHERS)


@pytest.mark.parametrize(
    ("ranks", "slots"),
    [(None, [2, 3]), (5, [2, 3]), (4, [2, 2]), (2, [2]), (1, [1])],
)
def test_slots_are_taken_in_order(ranks: int | None, slots: list[int]) -> None:
    assert [host.slots for host in take_slots((GPU1, GPU2), ranks)] == slots


def test_a_host_without_slots_takes_no_part() -> None:
    assert take_slots((JobHost("gpu1", "10.77.0.2", 0), GPU2), None) == (GPU2,)


@pytest.mark.parametrize("ranks", [0, -1, 6])
def test_impossible_numbers_of_ranks(ranks: int) -> None:
    with pytest.raises(ValueError, match=r"at least one rank|5 slots"):
        take_slots((GPU1, GPU2), ranks)


def test_no_slot_at_all() -> None:
    with pytest.raises(ValueError, match="at least one rank"):
        take_slots((JobHost("gpu1", "10.77.0.2", 0),), None)
