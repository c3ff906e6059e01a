"""Leftovers that `gc` removes and what it leaves alone; real shells run its steps."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import toolkit.cli.gc
from tests.unit import cluster_world as world
from tests.unit.checks.recorded import marks, process
from tests.unit.conftest import Run as RunToolkit
from tests.unit.container_world import BOUND_TO_MODES, OTHER, PATIENCE_S, only_root, sleeping
from tests.unit.hosts_here import execute, hosts
from toolkit.checks.leftovers import Stray
from toolkit.checks.model import Scene, Seen
from toolkit.cleanup import gc as gc_module
from toolkit.cleanup import plan as plan_module
from toolkit.cleanup.gc import Collection
from toolkit.cleanup.plan import Leftovers, OldJob, State, plan_gc
from toolkit.cleanup.remains import STATES, Remains, removable, reported
from toolkit.cluster.session import Session
from toolkit.core.facts import ContainerFacts
from toolkit.image.on_hosts import HeldImage
from toolkit.plan.steps import Run

JOB = world.JOB_ID
NOW = 1_000_000
DAY = 86400
HOME = "/home/alice/.local/state/toolkit"


def container(cluster: str, host: str, role: str, state: str = "running", owner: str = "alice") -> Any:
    labels = world.running(cluster, host, role).labels
    made = world.running(cluster, host, role)
    return replace(made, state=state, labels={**labels, "toolkit.owner": owner}, id=f"{cluster}{role}" * 8)


def folder(cluster: str, host: str, changed: int = NOW - 7200, address: str = "") -> str:
    return f"state|{changed}|{address}|{cluster}|{host}"


def job(cluster: str, host: str, sent: str = "yes", state: str = "", ended: str = "", at: int = 0) -> str:
    return f"job|{sent}|{state}|{ended}|{at or NOW - 7200}|{cluster}|{host}|{JOB}"


def seen(host: str, *lines: str, containers: tuple[ContainerFacts, ...] = (), ranks: str = "") -> Seen:
    answers = {"marks": marks(host, *filter(None, (ranks,))), "states": "\n".join((f"now|{NOW}", *lines))}
    return Seen(host, answers, world.facts(host, containers=containers))


def remains(*answered: Seen, days: float | None = None) -> Remains:
    return Remains(Scene(world.inventory(), {one.host: one for one in answered}), days)


def left(found: Remains) -> Leftovers:
    return found.leftovers((), False)


# The question


def test_the_question_tells_folders_as_they_are(tmp_path: Path) -> None:
    state = tmp_path / ".local/state/toolkit"
    done, half = (state / "de mo/gpu1/jobs" / name for name in ("done", "half"))
    for made in (done, half, state / "shared/gpu2/conf"):
        made.mkdir(parents=True)
    (done / ".sent").touch()
    (done / "status.json").write_text(
        '{"state": "failed", "exit_code": 1, "ended": 1795204800.25, "pid": 7}\n'
    )
    (state / "de mo/gpu1/conf").mkdir()
    (state / "de mo/gpu1/conf/host.json.toolkit-new").touch()
    said = subprocess.run(
        ["sh", "-c", STATES.text],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stderr == ""
    known = reported(answered("gpu1", said.stdout))
    (one,) = known.states.values()
    assert (one.cluster, one.path, one.records) == ("de mo", f"{HOME}/de mo/gpu1", 2)
    assert 0 <= one.quiet < 60 and not removable(one)
    assert [(j.job, j.sent, j.state, j.ended) for j in known.jobs] == [
        ("done", True, "failed", 1795204800.0),
        ("half", False, "", 0.0),
    ]
    assert known.halves == 0, "somebody may be writing it"
    # Of a home that hosts share, each has its own; also if two hosts have one name.
    assert one.elsewhere == ""
    (state / "de mo/gpu1/conf/host.json").write_text('{"address": "192.0.2.7", "cluster": "de mo"}\n')
    again = subprocess.run(
        ["sh", "-c", STATES.text], env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, capture_output=True
    )
    assert reported(answered("gpu1", again.stdout.decode())).states["de mo"].elsewhere == "192.0.2.7"
    assert list(reported(answered("gpu2", said.stdout)).states) == ["shared"]


def answered(host: str, states: str) -> Seen:
    return Seen(host, {"states": states}, world.facts(host))


def test_names_of_files_are_data(tmp_path: Path) -> None:
    """A rank can make any name below the folders that it sees."""
    jobs = tmp_path / ".local/state/toolkit/demo/gpu1/jobs"
    for name in ("a\nstate|0||demo|gpu1", "b|c", "-exec", "\x1b[31m", JOB):
        (jobs / name).mkdir(parents=True)
    os.mkfifo(jobs / "b|c" / "status.json")
    (jobs / "-exec" / "status.json").symlink_to("/dev/zero")
    (jobs / JOB / "status.json").write_text('{"state": "failed|0\nnow|5", "ended": 1|2|3}')
    said = subprocess.run(
        ["sh", "-c", STATES.text],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    known = reported(answered("gpu1", said.stdout))
    assert known.clock > 1e9 and len(known.states) == 1
    assert {(one.job, one.path, one.state, one.ended) for one in known.jobs} == {
        ("-exec", f"{HOME}/demo/gpu1/jobs/-exec", "", 0.0),
        ("b|c", f"{HOME}/demo/gpu1/jobs/b|c", "", 0.0),
        (JOB, f"{HOME}/demo/gpu1/jobs/{JOB}", "failed|0now|5", 1.0),
    }


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "=YQpi", "\x9b", "/"])
def test_what_is_no_name_of_an_entry_is_ignored(name: str) -> None:
    said = "".join(f"{line}\n" for line in (folder(name, "gpu1"), folder("demo", name), job("demo", "gpu1")))
    assert reported(answered("gpu1", said.replace(JOB, name))) == reported(answered("gpu1", ""))


# What is left over


def test_processes_of_jobs_that_are_over_by_the_word_of_their_own_main() -> None:
    main = container("demo", "gpu1", "main")
    rank = process(811, JOB)
    there = seen("gpu2", ranks=rank, containers=(container("demo", "gpu2", "worker"),))
    over = remains(seen("gpu1", containers=(main,)), there)
    assert left(over).strays == (Stray("gpu2", JOB, (811,), "gpu1", "demo"),)
    alive = seen("gpu1", containers=(main,), ranks=process(700, JOB, "SUPERVISOR"))
    assert left(remains(alive, there)).strays == ()
    # Its main is on none of these hosts, or is another person's: gc cannot tell.
    for others in ((), (container("demo", "gpu1", "main", owner="bob"),)):
        unknown = remains(seen("gpu1", containers=others), there)
        assert left(unknown).strays == ()
        (kept,) = unknown.kept(())
        assert (kept.host, JOB in kept.what, "cluster demo" in kept.why) == ("gpu2", True, True)
        assert kept.fix == "toolkit up && toolkit gc"
    # A cluster without a container on the host has no job there.
    rank = process(811, JOB, cluster="other")
    alone = remains(seen("gpu1"), seen("gpu2", ranks=rank))
    assert left(alone).strays == (Stray("gpu2", JOB, (811,), "", "other"),)
    # The first process of a container that the engine of this cluster does not list.
    first = "/proc/700/environ:TOOLKIT_CLUSTER=other"
    assert left(remains(seen("gpu1"), seen("gpu2", ranks=f"{first}\n{rank}"))).strays == ()


def test_without_ssh_each_host_reports_its_own_processes() -> None:
    """With ``transport: exec`` a supervisor runs on each host."""
    there = seen("gpu2", ranks=process(811, JOB), containers=(container("demo", "gpu2", "worker"),))
    inventory = world.inventory(f"{world.HOSTS}{world.EXEC}")
    found = Remains(Scene(inventory, {one.host: one for one in (seen("gpu1"), there)}))
    assert left(found).strays == (Stray("gpu2", JOB, (811,), "gpu2", "demo"),)
    others = seen(
        "gpu2", ranks=process(811, JOB), containers=(container("demo", "gpu2", "worker", owner="bob"),)
    )
    assert left(replace(found, scene=Scene(inventory, {"gpu2": others}))).strays == ()


@pytest.mark.parametrize(("cluster", "liar"), [("other", "gpu1"), ("other", "cpu3"), ("demo", "cpu3")])
def test_a_host_that_says_that_it_is_main_is_not_believed(cluster: str, liar: str) -> None:
    worker = container(cluster, "gpu2", "worker")
    there = seen("gpu2", job(cluster, "gpu2"), ranks=process(811, JOB, cluster=cluster), containers=(worker,))
    lies = seen(
        liar,
        job(cluster, liar, state="succeeded", ended="1"),
        containers=(container(cluster, liar, "main"),),
    )
    found = remains(lies, there, days=1.0)
    assert left(found).strays == () and left(found).jobs == ()


def test_main_alone_says_when_a_job_has_ended() -> None:
    main = container("demo", "gpu1", "main")
    recent = job("demo", "gpu1", state="succeeded", ended=str(NOW - 3600))
    forged = job("demo", "gpu2", state="succeeded", ended="1")
    worker = container("demo", "gpu2", "worker")
    hosts_ = (seen("gpu1", recent, containers=(main,)), seen("gpu2", forged, containers=(worker,)))
    assert left(remains(*hosts_, days=9.0)).jobs == ()
    assert [one.host for one in left(remains(*hosts_, days=0.01)).jobs] == ["gpu1", "gpu2"]


def test_state_folders_of_clusters_without_a_container() -> None:
    plain, young = folder("old", "gpu1"), folder("new", "gpu1", NOW - 60)
    recorded = folder("kept", "gpu1")
    lines = (plain, young, recorded, job("kept", "gpu1"), folder("there", "gpu1"), folder("at-work", "gpu1"))
    found = remains(
        seen(
            "gpu1",
            *lines,
            containers=(container("there", "gpu1", "main", "exited", "bob"),),
            ranks=process(5, JOB, cluster="at-work"),
        )
    )
    states = {state.cluster: state for state in found.states()}
    assert states.keys() == {"old", "new", "kept"}
    assert [removable(states[name]) for name in ("old", "new", "kept")] == [True, False, False]
    stay = {
        kept.what.split()[5]: kept.why
        for kept in found.kept((states["old"],))
        if "state directory" in kept.what
    }
    assert stay == {
        "new": "the state directory changed in the last 60 minutes",
        "kept": "the state directory contains the record of 1 job",
    }
    without = seen("gpu1", plain)
    assert without.facts is not None
    no_engine = replace(without, facts=replace(without.facts, docker=""))
    assert remains(no_engine).states() == (), "without an engine nobody knows which clusters are there"


def test_a_folder_in_a_shared_home_that_another_host_of_this_name_uses_stays() -> None:
    """Another cluster of the user calls another host gpu1, and both hosts have the same home."""
    one = seen("gpu1", folder("own", "gpu1"), folder("other", "gpu1", address="192.0.2.7"))
    assert one.facts is not None
    own = replace(
        one,
        answers={
            **one.answers,
            "states": one.answers["states"].replace("||own", f"|{one.facts.interfaces[-1].address}|own"),
        },
    )
    found = remains(own)
    states = {state.cluster: state for state in found.states()}
    assert (removable(states["own"]), removable(states["other"])) == (True, False)
    (kept,) = (kept for kept in found.kept((states["own"],)) if "state directory" in kept.what)
    assert "cluster other" in kept.what and "192.0.2.7 is not an address of gpu1" in kept.why
    session: Any = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc_module, "first_look", lambda _: found.scene)
        plan = gc_module.collect(session, None, True, lambda state: True).plan
    assert [step.title for step in plan.steps if "cluster" in step.title] == [
        "remove the state directory of cluster own"
    ]


def test_the_state_of_a_host_under_its_former_name_is_kept_with_a_fix() -> None:
    """No other command finds these keys and job records."""
    there = seen("gpu1", ranks="state|10.77.0.2|demo|node1", containers=(container("demo", "gpu1", "main"),))
    found = remains(there)
    assert found.states() == ()
    (kept,) = found.kept(())
    assert (kept.host, kept.what) == ("gpu1", "the state directory of cluster demo for the former name node1")
    assert kept.why == "the host has another name in hosts.yaml"
    assert kept.fix.startswith(f"on gpu1: mv {HOME}/demo/node1/jobs/* {HOME}/demo/gpu1/jobs/  # ")


def test_folders_of_jobs() -> None:
    main = seen(
        "gpu1",
        job("demo", "gpu1", state="succeeded", ended=str(NOW - 10 * DAY)),
        containers=(container("demo", "gpu1", "main"),),
    )
    worker = seen("gpu2", job("demo", "gpu2"), containers=(container("demo", "gpu2", "worker"),))
    assert left(remains(main, worker)).jobs == ()
    old = left(remains(main, worker, days=9)).jobs
    assert [(one.host, one.main, one.quiet) for one in old] == [
        ("gpu1", "gpu1", False),
        ("gpu2", "gpu1", False),
    ]
    assert left(remains(main, worker, days=11)).jobs == ()
    assert left(remains(worker, days=0)).jobs == (), "main is not there to say that it is over"
    running = seen(
        "gpu1",
        job("demo", "gpu1", state="running"),
        containers=(container("demo", "gpu1", "main"),),
        ranks=process(700, JOB, "SUPERVISOR"),
    )
    assert left(remains(running, worker, days=0)).jobs == ()
    half = seen("gpu2", job("demo", "gpu2", "no"), job("demo", "gpu2", "no", at=NOW - 60))
    (one,) = left(remains(main, half)).jobs
    assert (one.host, one.quiet) == ("gpu2", True) and "transfer of its code did not finish" in one.why


def unknown_ends(*answered: Seen, days: float | None = 3) -> list[tuple[str, str]]:
    found = remains(*answered, days=days)
    assert left(found).jobs == ()
    return [(one.host, one.fix) for one in found.kept(()) if one.what == "1 old job folder"]


@pytest.mark.parametrize("lost", [True, False])
def test_old_folders_of_jobs_without_a_record_of_their_end_are_kept_with_a_fix(lost: bool) -> None:
    """A reboot ended the supervisor, or an earlier gc removed the record while a worker did not answer."""
    main, worker = container("demo", "gpu1", "main"), container("demo", "gpu2", "worker")
    old = NOW - 5 * DAY
    on_main = seen("gpu1", job("demo", "gpu1", state="running", at=old), containers=(main,))
    without = seen("gpu1", containers=(main,))
    on_worker = seen("gpu2", job("demo", "gpu2", at=old), containers=(worker,))
    there = on_main if lost else without
    fixes = [
        (host, f"on {host}: rm -rf {HOME}/demo/{host}/jobs/{JOB}  # deletes the records, logs and results")
        for host in ("gpu1", "gpu2")
    ]
    assert unknown_ends(there, on_worker) == fixes[not lost :]
    for days in (None, 6):
        assert unknown_ends(there, on_worker, days=days) == []
    assert unknown_ends(on_worker) == [], "main does not answer"
    rank = seen("gpu2", job("demo", "gpu2", at=old), containers=(worker,), ranks=process(811, JOB))
    supervisor = seen("gpu1", containers=(main,), ranks=process(700, JOB, "SUPERVISOR"))
    assert unknown_ends(without, rank) == unknown_ends(supervisor, on_worker) == [], "the job runs"
    young = seen("gpu2", job("demo", "gpu2", at=NOW - 60), containers=(worker,))
    assert unknown_ends(without, young, days=0) == [], "the job might start"
    silent = replace(without, answers={**without.answers, "states": ""})
    assert unknown_ends(silent, on_worker) == [], "main did not list its jobs"
    # The former main host has a record, which does not count: any host can claim the end of a job.
    former = job("demo", "gpu2", state="succeeded", ended=str(old), at=old)
    (kept,) = remains(without, seen("gpu2", former, containers=(worker,)), days=3).kept(())
    assert kept.why == "toolkit finds no supervisor, and the main host has no record of the end"


def test_parts_of_images_that_wait_for_nobody() -> None:
    def image(name: str, when: str, part_of: str = "abc", created: str = "1970-01-01T00:00:00Z") -> str:
        return (
            f'{{"Id": "sha256:{name}", "RepoTags": ["toolkit-part:{part_of}-{name}-1"], "Os": "linux",'
            f' "Config": {{"Labels": {{"toolkit.part": "{part_of}"}}}}, "RootFS": {{"Layers": []}},'
            f' "Created": "{created}", "Metadata": {{"LastTagTime": "{when}"}}}}'
        )

    def parts(*images: str) -> list[str]:
        one = seen("gpu1")
        host = replace(one, answers={**one.answers, "images-held": f"[{','.join(images)}]"})
        found = left(remains(host)).parts
        assert found is not None
        return [image.names[0] for image in found["gpu1"]]

    old, new = "1970-01-12T10:00:00Z", "1970-01-12T13:40:00Z"
    assert parts(image("a", old)) == ["toolkit-part:abc-a-1"]
    assert parts(image("a", old), image("b", old, "def")) == ["toolkit-part:abc-a-1", "toolkit-part:def-b-1"]
    assert parts(image("a", new.replace("1970", "2030")), image("b", old)) == [], "one of them is new"
    # With overlay2, `docker load` sets no such time: the creation time is that of the transfer.
    never = "0001-01-01T00:00:00Z"
    assert parts(image("a", never, created="2030-01-12T13:40:00Z")) == []
    assert parts(image("a", never, created=old)) == ["toolkit-part:abc-a-1"]


@pytest.mark.parametrize(("day", "removed"), [(13, ["toolkit-part:abc-a-1"]), (14, [])])
def test_parts_of_another_users_transfer_are_left_for_a_day(day: int, removed: list[str]) -> None:
    """Its processes are hidden, and one large layer can take hours."""
    image = (
        '[{"Id": "sha256:a", "RepoTags": ["toolkit-part:abc-a-1"],'
        ' "Config": {"Labels": {"toolkit.part": "abc"}},'
        f' "Metadata": {{"LastTagTime": "2027-01-{day}T08:10:00Z"}}}}]'
    )
    answers = {"marks": marks("gpu1"), "states": "now|1800000000", "images-held": image}  # 2027-01-15 08:00
    found = left(remains(Seen("gpu1", answers, world.facts()))).parts
    assert found is not None and [image.names[0] for image in found["gpu1"]] == removed


# What is done about it


# Marks are seen on the whole machine: another run of these tests must not meet this one.
MARKED = f"g{os.getpid():x}"
GONE = f"gone-{os.getpid():x}"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that says which containers the fake docker lists."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n[ $1 != ps ] || cat {tmp_path}/containers\n")
    program.chmod(0o755)
    (tmp_path / "containers").write_text("")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path / "containers"


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a job of a cluster that nothing else here belongs to."""
    with sleeping(TOOLKIT_CLUSTER=GONE, TOOLKIT_JOB=MARKED) as started:
        yield started


def carried_out(found: Leftovers) -> list[tuple[str, str]]:
    report = execute(plan_gc(found), hosts("gpu1", "gpu2"))
    return [(o.status, o.detail) for o in report.outcomes]


def test_a_container_is_not_gone_because_the_engine_does_not_answer(tmp_path: Path, engine: Path) -> None:
    found = Leftovers({"gpu2": (container("old", "gpu2", "worker", "exited"),)})
    assert carried_out(found)[0][0] == "skipped", "the engine lists no container"
    engine.write_text("aaaa\n")
    assert carried_out(found)[0][0] == "ok"
    (tmp_path / "bin" / "docker").write_text(
        "#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n"
    )
    ((status, detail),) = carried_out(found)
    assert status == "failed" and "Cannot connect" in detail


def test_a_cluster_that_has_come_back_keeps_its_processes(
    engine: Path, rank: subprocess.Popen[bytes]
) -> None:
    found = Leftovers({}, (Stray("gpu2", MARKED, (rank.pid,), "", GONE),))
    engine.write_text("aaaa\n")
    ((status, detail),) = carried_out(found)
    assert status == "failed" and f"cluster {GONE} runs" in detail and rank.poll() is None
    engine.write_text("")
    with sleeping(TOOLKIT_CLUSTER=GONE):  # in a container of another engine
        ((status, detail),) = carried_out(found)
        assert status == "failed" and f"cluster {GONE} runs" in detail and rank.poll() is None
    assert carried_out(found) == [("ok", "")] and rank.wait(PATIENCE_S) == -15
    assert carried_out(found)[0][0] == "skipped"


def test_a_job_that_runs_by_mains_word_keeps_its_processes(
    rank: subprocess.Popen[bytes], engine: Path
) -> None:
    found = Leftovers({}, (Stray("gpu2", MARKED, (rank.pid,), "gpu1", GONE),))
    with sleeping(TOOLKIT_SUPERVISOR=MARKED):
        assert [status for status, _ in carried_out(found)] == ["ok", "failed"] and rank.poll() is None
        # Main is gone: no host reports that the job is over.
        report = execute(plan_gc(found), hosts("gpu2"))
        assert not report.ok and rank.poll() is None


@only_root
def test_a_process_of_another_user_is_no_supervisor(rank: subprocess.Popen[bytes], engine: Path) -> None:
    found = Leftovers({}, (Stray("gpu2", MARKED, (rank.pid,), "gpu1", GONE),))
    with sleeping(user=OTHER, TOOLKIT_SUPERVISOR=MARKED):
        assert [status for status, _ in carried_out(found)] == ["ok", "ok"]
    assert rank.wait(PATIENCE_S) == -15


@only_root
def test_processes_of_another_user_neither_end_nor_keep_anything(tmp_path: Path, engine: Path) -> None:
    old, keys = tmp_path / "jobs" / "old", tmp_path / "keys"
    old.mkdir(parents=True)
    keys.mkdir()
    job = OldJob("gpu1", MARKED, str(old), "the job ended 9 days ago", "gpu2", GONE)
    found = Leftovers(
        {},
        (Stray("gpu2", MARKED, (1,), "", GONE),),
        jobs=(job,),
        states=(state(keys),),
        granted=(state(keys),),
    )
    with sleeping(user=OTHER, TOOLKIT_CLUSTER=GONE, TOOLKIT_JOB=MARKED) as stranger:
        report = execute(plan_gc(found), hosts("gpu1", "gpu2"))
        assert report.ok, report
        assert stranger.poll() is None
    assert {o.phase: o.status for o in report.outcomes}["processes"] == "skipped"
    assert not old.exists() and not keys.exists()


def test_parts_of_an_image_that_this_user_receives_stay(tmp_path: Path, engine: Path) -> None:
    name = f"toolkit-part:{MARKED}-a1b2-3"
    image = HeldImage("sha256:1", MARKED, (name,), 1, 0.0, (), part_of=MARKED)
    found = Leftovers({}, parts={"gpu1": (image,)})
    with sleeping(TOOLKIT_RELAY=MARKED) as relay:
        (stays,) = execute(plan_gc(found), hosts("gpu1")).outcomes
    assert stays.status == "not run" and stays.detail.endswith(f"runs as pid {relay.pid}")
    assert stays.fix == "toolkit gc  # after the transfer of the image has finished"
    assert [status for status, _ in carried_out(found)] == ["ok"]


def state(folder: Path) -> State:
    return State("gpu1", GONE, str(folder), records=1)


def test_a_state_folder_goes_unless_somebody_makes_it_just_now(tmp_path: Path, engine: Path) -> None:
    made = tmp_path / "toolkit/gone/gpu1"
    (made / "conf").mkdir(parents=True)
    assert carried_out(Leftovers({}, states=(state(made),)))[0][0] == "skipped"
    assert made.exists(), "it has changed within the hour"
    engine.write_text("aaaa\n")
    ((status, detail),) = carried_out(Leftovers({}, states=(state(made),), granted=(state(made),)))
    assert (status, "has a new container" in detail) == ("failed", True) and made.exists()
    engine.write_text("")
    other = tmp_path / "toolkit/other/gpu1"
    (other / "conf").mkdir(parents=True)
    both = Leftovers({}, states=(state(other), state(made)), granted=(state(made),))
    assert [status for status, _ in carried_out(both)] == ["skipped", "ok"]
    assert other.exists() and not made.exists()


@pytest.mark.parametrize(
    ("records", "words"), [(0, "no job records"), (1, "records of 1 job"), (2, "records of 2 jobs")]
)
def test_the_plan_reports_the_job_records_of_a_state_directory(records: int, words: str) -> None:
    (step,) = plan_gc(Leftovers({}, states=(State("gpu1", "old", "/z", records=records),))).steps
    assert isinstance(step, Run)
    assert step.why == f"the cluster has no container on the host, and /z contains {words}"


def test_the_state_directory_of_a_running_cluster_is_kept(
    tmp_path: Path, engine: Path, rank: subprocess.Popen[bytes]
) -> None:
    made = tmp_path / "toolkit/gone/gpu1"
    made.mkdir(parents=True)
    ((status, detail),) = carried_out(Leftovers({}, states=(state(made),), granted=(state(made),)))
    assert (status, detail.endswith(f"processes of cluster {GONE} run on this host")) == (
        "failed",
        True,
    ) and made.exists()


def test_folders_of_jobs_go(tmp_path: Path, engine: Path) -> None:
    old, young = (tmp_path / name for name in ("old", "young"))
    for made in (old, young):
        (made / "code").mkdir(parents=True)
    jobs = (
        OldJob("gpu1", "gc-old", str(old), "the job ended 9 days ago", "gpu2", "demo"),
        OldJob("gpu1", "gc-young", str(young), "the job never started", "gpu2", "demo", quiet=True),
    )
    assert [status for status, _ in carried_out(Leftovers({}, jobs=jobs))] == ["ok", "ok", "skipped"]
    assert not old.exists() and young.exists(), "its code may be coming"


def test_a_folder_of_a_job_that_a_rank_has_made_read_only_goes(tmp_path: Path, engine: Path) -> None:
    job = tmp_path / "job"
    (job / "code" / "cache").mkdir(parents=True)
    (job / "code" / "cache" / "file").touch()
    (job / "code" / "cache").chmod(0o555)
    words = ("gc-job", "demo", "over: /gc-job/", str(job))
    command = [*BOUND_TO_MODES, "sh", "-c", plan_module._REMOVE_JOB, "sh", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, job.exists()) == (0, "", False)


def test_a_folder_of_a_job_with_a_mounted_file_system_stays(tmp_path: Path, engine: Path) -> None:
    (job := tmp_path / "job").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    (table := tmp_path / "mounts").write_text(f"server:/data {job}/data nfs rw 0 0\n")
    text = plan_module._REMOVE_JOB.replace("/proc/self/mounts", str(table))
    words = ("gc-job", "demo", "over: /gc-job/", str(tmp_path / "link" / "job"))
    done = subprocess.run(["sh", "-c", text, "sh", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and job.exists()
    assert done.stderr.startswith(f"a file system is mounted at {job}/data; unmount the file system")
    # A rank can replace the folder by a link. Only the link is removed.
    (link := tmp_path / "planted").symlink_to(job)
    words = (*words[:-1], str(link))
    done = subprocess.run(["sh", "-c", text, "sh", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, link.is_symlink(), job.exists()) == (0, "", False, True)


def test_files_that_were_never_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept.toolkit-new").touch()
    (tmp_path / "state").mkdir()
    (tmp_path / "state/link").symlink_to(other)
    names = ("x", "-exec touch ran ;", "a\nb", "$(touch ran)", "-delete")
    halves = [tmp_path / f"state/{name}.toolkit-new" for name in names]
    for half in halves:
        half.touch()
    asked = Leftovers({}, halves={"gpu1": str(tmp_path / "state")})
    assert carried_out(asked)[0][0] == "skipped"
    assert all(half.exists() for half in halves), "somebody may be writing them"
    monkeypatch.setattr("toolkit.cleanup.plan.QUIET", -1)
    assert carried_out(asked)[0][0] == "ok"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept.toolkit-new", "link", "other", "state"]
    assert carried_out(asked)[0][0] == "skipped", "nothing is left to do"


def test_every_step_can_be_asked_whether_there_is_anything_to_do() -> None:
    found = Leftovers(
        {"gpu1": (container("old", "gpu1", "worker", "exited"),)},
        (Stray("gpu2", JOB, (1,), "gpu1", "demo"),),
        (OldJob("gpu1", JOB, "/x", "y", "gpu1", "demo"),),
        (State("gpu1", "old", "/z"),),
        halves={"gpu1": "/h"},
    )
    plan = plan_gc(found)
    assert [p.title for p in plan.phases] == ["containers", "jobs", "processes", "folders", "files"]
    assert all(isinstance(s, Run) and (s.unless or s.saves) for s in plan.steps)
    assert plan_gc(Leftovers({})).phases == ()


@pytest.mark.parametrize(
    ("words", "terminal", "asks"),
    [((), True, True), ((), False, False), (("--dry-run",), True, False), (("--json",), True, False)],
)
def test_a_person_at_a_terminal_is_asked_unless_nothing_is_removed_or_a_program_reads(
    run: RunToolkit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    terminal: bool,
    asks: bool,
) -> None:
    (tmp_path / "hosts.yaml").write_text(world.HOSTS)
    asked: list[State] = []

    def collected(session: object, days: object, state: bool, ask: Callable[[State], bool]) -> Collection:
        ask(State("gpu1", "old", "/z"))
        return Collection(plan_gc(Leftovers({})), ())

    monkeypatch.setattr(toolkit.cli.gc, "connect", lambda *_, **__: nullcontext(Session(world.inventory())))
    monkeypatch.setattr(Session, "require_some", lambda session: None)
    monkeypatch.setattr("toolkit.cli.gc.collect", collected)
    monkeypatch.setattr(toolkit.cli.gc, "_ask", lambda state: bool(asked.append(state)))
    stream = SimpleNamespace(isatty=lambda: terminal)
    monkeypatch.setattr(toolkit.cli.gc, "sys", SimpleNamespace(stdin=stream, stderr=stream))
    assert run("gc", *words)[0] == 0
    assert bool(asked) == asks
