"""Every launcher's job file, for clusters of several shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.each import for_each
from toolkit.errors import BadInput, NotReady
from toolkit.hostsfile import fields
from toolkit.jobs.launcher import launcher_findings
from toolkit.jobs.plan import job_file
from toolkit.jobs.request import Request, check_request
from toolkit.jobs.slots import Room, Taken, take_slots
from toolkit.launchers import BY_AGENT, ELASTIC, LAUNCHERS, NEEDS
from toolkit.launchers.job import Job, JobHost

GPU1 = JobHost("gpu1", "10.77.0.2", 2, (0, 1))
GPU2 = JobHost("gpu2", "10.77.0.3", 3, (0, 1, 2))
ROOMS = (Room("gpu1", "10.77.0.2", 2), Room("gpu2", "10.77.0.3", 3))
SPARE = JobHost("gpu3", "10.77.0.4", 2, (0, 1))
SHAPES = {"one-host": (GPU1,), "uneven": (GPU1, GPU2), "main-without-slots": (GPU2,)}


@for_each("shape", SHAPES)
@for_each("launcher", LAUNCHERS)
def test_every_launcher_has_goldens(launcher: str, shape: str) -> None:
    job = world.job(launcher, SHAPES[shape])
    check_golden(f"launchers/{launcher}/{shape}.json", job_file(job))


@pytest.mark.parametrize("launcher", ELASTIC)
def test_elastic_launchers_have_goldens(launcher: str) -> None:
    check_golden(f"launchers/{launcher}/elastic.json", job_file(elastic(launcher)))


def elastic(launcher: str, **changes: Any) -> Job:
    changes = {"elastic": True, "max_restarts": 3, "min_hosts": 1, "spares": (SPARE,), **changes}
    return replace(world.job(launcher, (GPU1, GPU2)), **changes)


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, (2, 5)),
        ({"min_hosts": 2}, (4, 5)),  # the first two, with the spare in place of the bigger one
        ({"min_hosts": 0}, (4, 5)),
        ({"min_hosts": 0, "spares": ()}, (5, 5)),
        ({"elastic": False}, (5, 5)),
        ({"spares": (GPU2,)}, (2, 5)),  # an earlier restart has taken it in
    ],
)
def test_the_smallest_and_largest_world_size(changes: dict[str, Any], sizes: tuple[int, int]) -> None:
    assert elastic("torchrun", **changes).world_sizes == sizes


@for_each("shape", SHAPES)
@for_each("launcher", LAUNCHERS)
def test_every_launcher_starts_every_rank_through_the_rank_program(launcher: str, shape: str) -> None:
    job = world.job(launcher, SHAPES[shape])
    launches = LAUNCHERS[launcher](job)
    known = {host.name for host in job.hosts} | {job.main}
    assert launches
    for launch in launches:
        assert launch.host in known
        assert launch.serves or launch.argv[-2:] == job.rank_argv[-2:]
        # Secrets and the person's command travel in the job file alone.
        assert not {"TOKEN", "s3cret $x", "OTHER_TOKEN", "s3cret too", *job.command} & {
            *launch.argv,
            *dict(launch.env).values(),
        }
        assert not any("StrictHostKeyChecking" in token for token in launch.argv)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_program_that_a_launcher_starts_is_among_its_needs(launcher: str) -> None:
    assert set(NEEDS) == set(LAUNCHERS)
    for launch in LAUNCHERS[launcher](world.job(launcher, SHAPES[next(iter(SHAPES))])):
        assert launch.argv[0] in ("python3", *NEEDS[launcher])


@pytest.mark.parametrize("launcher", BY_AGENT)
def test_hosts_are_started_at_the_same_time_and_from_main_only(launcher: str) -> None:
    """Open MPI builds a tree from 65 hosts on: hosts that start others would need main's key."""
    hosts = tuple(JobHost(f"gpu{n}", f"10.77.{n // 200}.{n % 200 + 1}", 1, (0,)) for n in range(1, 101))
    (launch,) = LAUNCHERS[launcher](world.job(launcher, hosts))
    env = dict(launch.env)
    for name in ("OMPI_MCA_plm_rsh", "PRTE_MCA_plm_ssh"):
        assert (env[f"{name}_no_tree_spawn"], env[f"{name}_num_concurrent"]) == ("1", "100")
    assert launch.argv[launch.argv.index("-H") + 1].count(",") == 99


def test_horovod_with_gloo_finds_loopback_itself_on_one_host() -> None:
    (alone,) = LAUNCHERS["horovodrun-gloo"](world.job("horovodrun-gloo", (GPU1,)))
    (two,) = LAUNCHERS["horovodrun-gloo"](world.job("horovodrun-gloo", (GPU1, GPU2)))
    assert "--network-interfaces" not in alone.argv and "--network-interfaces" in two.argv


def test_job_file_is_what_its_readers_expect() -> None:
    told = json.loads(job_file(world.job("torchrun", (GPU2,))))
    assert told["main"] == "gpu1"
    assert (told["world_size"], told["master_address"], told["master_port"]) == (3, "10.77.0.3", 29500)
    # That there are variables is written, and none of them is.
    assert told["variables"] is True and not {"env", "host_env", "override", "token"} & {*told}
    assert told["workdir"] == f"/run/toolkit/jobs/{world.JOB_ID}/code"
    assert [launch["host"] for launch in told["launches"]] == ["gpu2"]


def test_the_hosts_file_knows_the_same_launchers() -> None:
    assert set(fields.LAUNCHER_NAMES) == {"auto", *LAUNCHERS}


@pytest.mark.parametrize(
    ("ranks", "slots"),
    [(None, [2, 3]), (5, [2, 3]), (4, [2, 2]), (2, [2]), (1, [1])],
)
def test_slots_are_taken_in_order(ranks: int | None, slots: list[int]) -> None:
    assert [host.slots for host in take_slots(ROOMS, ranks)] == slots


def test_a_host_without_slots_takes_no_part() -> None:
    assert take_slots((Room("gpu1", "10.77.0.2", 0), ROOMS[1]), None) == (GPU2,)


@pytest.mark.parametrize("ranks", [0, -1, 6])
def test_impossible_numbers_of_ranks(ranks: int) -> None:
    with pytest.raises(ValueError, match=r"at least one rank|5 slots"):
        take_slots(ROOMS, ranks)


def test_no_slot_at_all() -> None:
    with pytest.raises(NotReady, match="gpu1 has no slot for a rank"):
        take_slots((Room("gpu1", "10.77.0.2", 0),), None)


OTHER = Taken("20261120-digits-a1b2", "alice", {"gpu1": (0,), "gpu2": (1, 2)})


def test_a_second_job_takes_the_free_slots() -> None:
    assert take_slots(ROOMS, 2, (OTHER,)) == (
        JobHost("gpu1", "10.77.0.2", 1, (1,)),
        JobHost("gpu2", "10.77.0.3", 1, (0,)),
    )
    assert take_slots(ROOMS[:1], 1, (OTHER,)) == (JobHost("gpu1", "10.77.0.2", 1, (1,)),)


def test_too_few_free_slots_are_reported_with_the_jobs_that_have_them() -> None:
    with pytest.raises(NotReady) as caught:
        take_slots(ROOMS, None, (OTHER,))
    holders = "job 20261120-digits-a1b2 of alice uses 1 slot of gpu1, 2 slots of gpu2"
    assert caught.value.what == f"the job needs 5 slots, but the hosts have only 2 free slots: {holders}"
    assert caught.value.fix.startswith(
        "toolkit stop 20261120-digits-a1b2  # or share the slots with `toolkit run --share`"
    )


def test_the_fix_for_too_few_free_slots_stops_a_job_on_these_hosts() -> None:
    elsewhere = Taken("20261121-digits-c3d4", "bob", {"gpu2": (0,)})
    with pytest.raises(NotReady) as caught:
        take_slots(ROOMS[:1], 2, (OTHER, elsewhere))
    assert elsewhere.job not in caught.value.what
    assert caught.value.fix.startswith("toolkit stop 20261120-digits-a1b2  #")


@pytest.mark.parametrize(
    ("slots", "gpus", "taken", "expected"),
    [
        (4, 4, (1, 2), (1, 2)),
        (2, 4, (1,), (2, 3)),  # two GPUs for each slot
        (4, 2, (1, 2), (0, 1)),  # two slots on each GPU
        (3, 0, (0, 1), ()),
    ],
)
def test_the_gpus_of_slots(slots: int, gpus: int, taken: tuple[int, ...], expected: tuple[int, ...]) -> None:
    room = Room("gpu1", "10.77.0.2", slots, tuple((f"GPU-{n}",) for n in range(gpus)))
    assert room.gpus_of(taken) == tuple(f"GPU-{n}" for n in expected)


def test_visible_gpus_are_set_only_if_other_jobs_have_the_rest() -> None:
    room = Room("gpu1", "10.77.0.2", 2, (("GPU-a",), ("GPU-b",)))
    assert take_slots((room,), 2)[0].visible == ""
    (host,) = take_slots((room,), 1, (Taken("j", "bob", {"gpu1": (0,)}),))
    assert (host.gpus, host.visible) == (("GPU-b",), "GPU-b")


@pytest.mark.parametrize(
    ("slots", "gpus", "taken", "own", "visible"),
    [
        # MIG devices in the list of the hosts file: one for each rank, also if the job has all of them.
        (3, ("MIG-a", "MIG-b", "MIG-c"), (), "MIG-a MIG-b MIG-c", "MIG-a,MIG-b,MIG-c"),
        (3, ("MIG-a", "MIG-b", "MIG-c"), (0,), "MIG-b MIG-c", "MIG-b,MIG-c"),
        (2, ("MIG-a", "MIG-b", "MIG-c", "MIG-d"), (), "MIG-a MIG-b MIG-c MIG-d", "MIG-a,MIG-c"),
        # Split GPUs without a list: a slot for each GPU, also if the GPUs have different numbers of parts.
        (2, ("MIG-a MIG-b MIG-c", "MIG-d"), (), "MIG-a MIG-b MIG-c MIG-d", "MIG-a,MIG-d"),
        (2, ("MIG-a MIG-b MIG-c", "MIG-d"), (0,), "MIG-d", "MIG-d"),
        (2, ("MIG-a MIG-b", "GPU-c"), (), "MIG-a MIG-b GPU-c", "MIG-a,GPU-c"),
        (3, ("MIG-a MIG-b", "GPU-c", "GPU-d"), (0,), "GPU-c GPU-d", "GPU-c,GPU-d"),
        # A slot for each part.
        (3, ("MIG-a MIG-b", "MIG-c"), (), "MIG-a MIG-b MIG-c", "MIG-a,MIG-b,MIG-c"),
    ],
)
def test_each_rank_has_a_mig_device_of_its_own(
    slots: int, gpus: tuple[str, ...], taken: tuple[int, ...], own: str, visible: str
) -> None:
    room = Room("gpu1", "10.77.0.2", slots, tuple(tuple(gpu.split()) for gpu in gpus))
    (host,) = take_slots((room,), slots - len(taken), (Taken("j", "bob", {"gpu1": taken}),))
    assert (host.gpus, host.visible) == (tuple(own.split()), visible)


def test_elastic_horovod_warns_and_the_others_do_not() -> None:
    (finding,) = launcher_findings(elastic("horovodrun"))
    assert finding.verdict == "warning" and finding.host == "gpu1"
    assert "CVE-2024-10190" in finding.what and "CVE-2026-31234" in finding.what
    assert "can run programs as you" in finding.what
    assert launcher_findings(elastic("torchrun")) == ()
    assert launcher_findings(elastic("horovodrun", elastic=False)) == ()


def test_elastic_is_refused_without_restarts_or_with_a_launcher_that_cannot(tmp_path: Path) -> None:
    words = ("python3",)
    with pytest.raises(BadInput) as caught:
        check_request(
            world.inventory(), Request(words, tmp_path, launcher="mpirun", elastic=True, secrets=False)
        )
    said = [str(problem) for problem in caught.value.problems]
    assert len(said) == 2 and "mpirun cannot restart ranks" in said[0] and "--max-restarts N" in said[1]
    good = Request(words, tmp_path, launcher="torchrun", elastic=True, max_restarts=1, secrets=False)
    check_request(world.inventory(), good)
