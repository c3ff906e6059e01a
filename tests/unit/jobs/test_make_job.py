"""From a request to a job: spares, lost hosts, slots that others have, and what a job is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit import cluster_world as world
from tests.unit.each import for_each
from toolkit.cluster.session import Session
from toolkit.core.facts import Claim
from toolkit.errors import BadInput, NotReady, Unreachable
from toolkit.jobs.make_job import code_findings, plan_request
from toolkit.jobs.plan import job_file
from toolkit.jobs.request import Request
from toolkit.launchers.job import job_of
from toolkit.plan.steps import Plan

Make = Callable[..., Any]
TWO_GPUS = (world.gpu(0), world.gpu(1))
WITH_SPARE = world.HOSTS + "spares: [cpu3]\n"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return what makes a job on hosts of which `gone` do not answer and `stopped` have no container."""

    def made(
        text: str,
        request: Request,
        gone: tuple[str, ...] = (),
        stopped: tuple[str, ...] = (),
        jobs: Any = (),
        claims: tuple[Claim, ...] = (),
        claimed: str = "gpu1",
    ) -> Any:
        session = Session(world.inventory(text))
        session.facts = world.facts_when_up()
        session.facts[claimed] = replace(session.facts[claimed], claims=claims, gpus=TWO_GPUS)
        for name in stopped:
            session.facts[name] = world.cluster_facts()[name]
        for name in gone:
            del session.facts[name]
            session.errors[name] = Unreachable(f"{name} does not answer", "", name)
        monkeypatch.setattr("toolkit.jobs.records.job_statuses", lambda session: jobs)
        return plan_request(session, request).job

    return made


def names(hosts: Any) -> list[str]:
    return [host.name for host in hosts]


def test_a_spare_waits_beside_the_hosts_of_a_job_that_may_restart(make: Make) -> None:
    job = make(WITH_SPARE, Request(("true",), max_restarts=2))
    assert (names(job.hosts), names(job.spares)) == (["gpu1", "gpu2"], ["cpu3"])
    assert job.max_restarts == 2 and job.spares[0].slots >= 1


def test_a_job_that_never_restarts_has_no_spare(make: Make) -> None:
    assert make(WITH_SPARE, Request(("true",))).spares == ()


@for_each(("ranks", "least"), [(None, 2), (1, 1)])
def test_a_job_on_fewer_hosts_requires_no_more_hosts(make: Make, ranks: int | None, least: int) -> None:
    """torchrun would reject --nnodes 2:1."""
    job = make(WITH_SPARE, Request(("true",), max_restarts=1, min_hosts=2, ranks=ranks))
    assert job.min_hosts == least == len(job.hosts)


@for_each(
    "choice",
    [{"exclude": ("cpu3",)}, {"exclude": ("cpu[3]",)}, {"only": ("gpu1", "gpu2")}, {"only": ("gpu[1-2]",)}],
)
def test_a_spare_that_the_request_leaves_out_stays_out(make: Make, choice: dict[str, Any]) -> None:
    assert make(WITH_SPARE, Request(("true",), max_restarts=1, **choice)).spares == ()


@pytest.mark.parametrize("how", ["gone", "stopped"])
def test_a_spare_that_cannot_be_had_keeps_no_job_from_starting(make: Make, how: str) -> None:
    job = make(WITH_SPARE, Request(("true",), max_restarts=1), **{how: ("cpu3",)})
    assert (names(job.hosts), job.spares) == (["gpu1", "gpu2"], ())


def test_a_spare_has_no_more_slots_than_it_can_take_over(make: Make) -> None:
    job = make(WITH_SPARE, Request(("true",), max_restarts=1))
    assert job.spares[0].slots <= max(host.slots for host in job.hosts)


def test_a_host_that_does_not_answer_stops_the_job(make: Make) -> None:
    with pytest.raises(Unreachable) as caught:
        make(world.HOSTS, Request(("true",)), gone=("gpu2",))
    assert caught.value.host == "gpu2"
    assert str(caught.value).endswith(
        "\n  fix: toolkit run --exclude gpu2 …  # runs the job on the other hosts"
    )


@for_each(
    ("request_", "gone", "fix"),
    [
        (Request(("true",)), ("gpu2", "cpu3"), "--exclude gpu2,cpu3 "),
        (Request(("true",), exclude=("cpu3",)), ("gpu2", "cpu3"), "--exclude cpu3,gpu2 "),
        (Request(("true",), exclude=("cpu[3]",)), ("gpu2",), "--exclude 'cpu[3],gpu2' "),
        (Request(("true",), only=("gpu2",)), ("gpu2",), ""),
        (Request(("true",)), ("gpu1", "gpu2"), ""),
    ],
)
def test_a_job_is_offered_the_hosts_that_answer_if_main_does(
    make: Make, request_: Request, gone: tuple[str, ...], fix: str
) -> None:
    with pytest.raises(Unreachable) as caught:
        make(world.HOSTS, request_, gone=gone)
    assert fix in caught.value.fix and bool(fix) == bool(caught.value.fix)
    assert caught.value.host == gone[0]


@for_each(
    ("request_", "stopped", "other"),
    [
        (Request(("true",)), ("gpu2",), "gpu2"),
        (Request(("true",), exclude=("cpu3",)), ("gpu2",), "cpu3,gpu2"),
        (Request(("true",), exclude=("cpu[3]",)), ("gpu2",), "'cpu[3],gpu2'"),
        (Request(("true",), exclude=("gpu1",), launcher="mpirun"), ("gpu2", "cpu3"), ""),
        (Request(("true",), only=("gpu1", "gpu2")), ("gpu2",), ""),
        (Request(("true",)), ("gpu1",), ""),
        (Request(("true",), max_restarts=1, min_hosts=2), ("gpu2",), "gpu2"),
        (Request(("true",), max_restarts=1, min_hosts=3), ("gpu2",), ""),
    ],
)
def test_a_host_without_its_container_stops_the_job(
    make: Make, request_: Request, stopped: tuple[str, ...], other: str
) -> None:
    with pytest.raises(NotReady) as caught:
        make(world.HOSTS, request_, stopped=stopped)
    command = f"  # or run the job on the other hosts: toolkit run --exclude {other} …" if other else ""
    assert caught.value.fix == f"toolkit up{command}"


def test_more_ranks_than_slots_are_refused_by_the_option(make: Make) -> None:
    with pytest.raises(BadInput) as caught:
        make(world.HOSTS, Request(("true",), ranks=10_000))
    assert "--np" in str(caught.value)


def test_slots_of_a_running_job_are_taken_only_with_share(make: Make) -> None:
    every = {host.name: host.taken for host in make(world.HOSTS, Request(("true",))).hosts}
    running = [SimpleNamespace(id="other", owner="bob", hosts=every, final=False)]
    with pytest.raises(NotReady):
        make(world.HOSTS, Request(("true",)), jobs=running)
    job = make(world.HOSTS, Request(("true",), share=True), jobs=running)
    assert job.share and {host.name: host.taken for host in job.hosts} == every
    ended = [SimpleNamespace(id="other", owner="bob", hosts=every, final=True)]
    assert not make(world.HOSTS, Request(("true",)), jobs=ended).share


@for_each(
    ("before", "ranks", "after", "gpus"),
    [
        (1, 1, 2, None),  # slot 0 was both GPUs, and is GPU-0 now
        (4, 1, 2, ("GPU-1",)),  # slot 0 was half of GPU-0
        (1, 1, 4, ("GPU-0",)),  # slots 0 and 1 share GPU-0
        (2, 1, 2, ("GPU-1",)),
        (4, 1, 4, ("GPU-0",)),
    ],
)
def test_a_job_gets_no_gpu_of_a_job_that_started_with_other_slots(
    make: Make, before: int, ranks: int, after: int, gpus: tuple[str, ...] | None
) -> None:
    def with_slots(count: int) -> str:
        return world.HOSTS.replace("address: 10.77.0.2\n", f"address: 10.77.0.2\n    slots: {count}\n")

    (first,) = make(with_slots(before), Request(("true",), only=("gpu1",), ranks=ranks)).hosts
    user = world.facts_when_up()["gpu1"].user
    claim = Claim("first", "demo", "alice", first.taken, first.gpus, user)
    running = [SimpleNamespace(id="first", owner="alice", hosts={"gpu1": first.taken}, final=False)]
    request = Request(("true",), only=("gpu1",), ranks=1)
    if gpus is None:
        with pytest.raises(NotReady, match=r"is held by job first of cluster demo"):
            make(with_slots(after), request, jobs=running, claims=(claim,))
    else:
        assert make(with_slots(after), request, jobs=running, claims=(claim,)).hosts[0].gpus == gpus


@for_each(
    ("cluster", "held", "running", "spares"),
    [
        ("demo", ("GPU-0",), (0,), ["gpu2"]),
        ("demo", ("GPU-0", "GPU-1"), (0,), []),  # it started when the host had one slot
        ("other", ("GPU-0",), (), []),
        ("demo", ("GPU-0", "GPU-1"), (), ["gpu2"]),  # for a restart, as this job
    ],
)
def test_a_spare_has_only_gpus_that_no_job_holds(
    make: Make, cluster: str, held: tuple[str, ...], running: tuple[int, ...], spares: list[str]
) -> None:
    text = world.HOSTS.replace("    slots: 3\n", "") + "spares: [gpu2]\n"
    request = Request(("true",), max_restarts=1, ranks=1, exclude=("cpu3",))
    user = world.facts_when_up()["gpu2"].user
    claim = Claim("first", cluster, "alice", running, held, user)
    jobs = [SimpleNamespace(id="first", owner="alice", hosts={"gpu2": running}, final=False)]
    jobs = jobs if cluster == "demo" else []
    job = make(text, request, jobs=jobs, claims=(claim,), claimed="gpu2")
    assert names(job.spares) == spares
    shared = make(text, replace(request, share=True), jobs=jobs, claims=(claim,), claimed="gpu2")
    assert names(shared.spares) == ["gpu2"]


def test_a_job_runs_beside_one_that_started_when_main_had_slots(make: Make) -> None:
    text = world.HOSTS.replace("address: 10.77.0.2\n", "address: 10.77.0.2\n    slots: 0\n")
    jobs = [SimpleNamespace(id="first", owner="alice", hosts={"gpu1": (0,)}, final=False)]
    assert names(make(text, Request(("true",), ranks=1), jobs=jobs).hosts) == ["gpu2"]


def test_only_a_launcher_with_daemons_has_a_token(make: Make) -> None:
    assert make(world.HOSTS, Request(("true",), launcher="torchrun")).token == ""
    tokens = [make(world.HOSTS, Request(("true",), launcher="ray")).token for _ in range(2)]
    assert len(tokens[0]) == 64 and tokens[0] != tokens[1]


def test_a_job_has_the_names_of_its_secrets(make: Make, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("tok-12345")
    (tmp_path / "token").chmod(0o600)
    hosts = f"{world.HOSTS}secrets: {{MINE: {tmp_path}/token}}\n"
    job = make(hosts, Request(("true",)))
    assert job.secret_names == ("MINE",) and ("MINE", "tok-12345") in job.env
    about = json.loads(job_file(job))
    assert about["secret_names"] == ["MINE"] and "tok-12345" not in job_file(job)
    assert job_of(about).secret_names == ("MINE",)
    del about["secret_names"]
    assert job_of(about).secret_names == (), "an earlier toolkit wrote the job file"
    assert make(hosts, Request(("true",), secrets=False)).secret_names == ()


def test_variables_of_the_command_line_come_sorted_beside_those_of_the_cluster(make: Make) -> None:
    job = make(world.HOSTS, Request(("true",), env=(("B", "2"), ("A", "9"), ("A", "10"))))
    assert job.override == (("A", "10"), ("B", "2"))
    assert dict(job.env)["EPOCHS"] == "3" and job.env == tuple(sorted(job.env))
    assert job.host_env == (("gpu2", (("OMP_NUM_THREADS", "4"),)),)
    assert make(world.HOSTS, Request(("true",), only=("gpu1",))).host_env == ()


def test_a_plan_that_sends_no_code_has_nothing_to_say_of_it() -> None:
    assert code_findings(Plan("p", ())) == ()
