"""`up` and `run` on hosts with faults: each is printed once, errors stop the command, warnings do not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

import toolkit.checks.preflight
import toolkit.cleanup.gc
from tests.unit import cluster_world as world
from tests.unit.checks.cases_gpu_setup import CUDA_WITHOUT_GPU
from tests.unit.checks.recorded import card, gpus, marks, place, places, process
from tests.unit.checks.scenes import scene, with_host
from tests.unit.cluster_world import running
from tests.unit.test_invariants import Recorder
from tests.unit.test_invariants import recorder as recorder
from toolkit.checks.model import Scene, Seen
from toolkit.checks.preflight import first_look, preflight, questions, raise_if_errors
from toolkit.checks.registry import CHECKS, judge
from toolkit.cli.app import app
from toolkit.cluster.layout import reference_image
from toolkit.cluster.session import Session
from toolkit.core.finding import Finding
from toolkit.core.image import ImageFacts
from toolkit.errors import NotReady

_ERROR = scene(gpu_health=gpus(card(0, gpu_recovery_action="Reset"), card(1)))
_WARNINGS = with_host(
    scene(gpu_health=gpus(card(0, persistence_mode="Disabled"), card(1, persistence_mode="Disabled"))),
    "gpu2",
    ahead=3.0,
)


@pytest.fixture
def saw(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the hosts be as in a scene."""

    def say(said: Scene) -> None:
        for module in (toolkit.checks.preflight, toolkit.cleanup.gc):
            monkeypatch.setattr(module, "first_look", lambda session, running=False: said)

    return say


def session(**facts: object) -> Session:
    session = Session(world.inventory())
    session.facts = {name: f for name, f in world.facts_when_up().items() if facts.get(name, True)}
    return session


def call(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    error = done.exception
    if isinstance(error, NotReady):
        return error.exit_code, done.stdout, f"{done.stderr}{error}"
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("words", [("up",), ("run", "--detach", "--np", "3", "train.py")], ids=lambda w: w[0])
def test_errors_stop_before_anything_is_done(words: tuple[str, ...], recorder: Recorder, saw: Any) -> None:
    saw(_ERROR)
    status, _, err = call(*words)
    assert (status, recorder.ran) == (3, [])
    assert err.count("that requires a reset") == 1 and "nvidia-smi --gpu-reset" in err
    assert re.search(r"1 error on \w+ would break or corrupt a job", err)
    status, _, err = call(words[0], "--no-check", *words[1:])
    assert status == 0 and recorder.ran and "reset" not in err


def test_a_dry_run_shows_faults_and_the_plan(recorder: Recorder, saw: Any) -> None:
    saw(_ERROR)
    status, out, err = call("up", "--dry-run")
    assert status == 0 and "phase containers" in out and "that requires a reset" in err


def test_up_warns_of_a_cuda_image_for_hosts_without_gpus(recorder: Recorder, saw: Any) -> None:
    saw(CUDA_WITHOUT_GPU)
    status, _, err = call("up")
    assert status == 0 and err.count("is built for CUDA, but no host has an NVIDIA GPU  [gpu-image]") == 1
    assert "fix: toolkit image build --flavor cpu  # then in hosts.yaml: set image: toolkit:cpu\n" in err


def test_warnings_are_printed_by_up_and_by_run(recorder: Recorder, saw: Any) -> None:
    saw(_WARNINGS)
    status, _, err = call("up")
    assert (status, len(recorder.ran)) == (0, 1)
    assert "gpu2: persistence mode is off" in err and "gpu2: the clock of the host is" in err
    status, _, err = call("run", "--detach", "--np", "3", "train.py")
    assert status == 0 and "gpu2: persistence mode is off" in err and "gpu2: the clock of the host is" in err
    assert "toolkit check" not in err


def test_up_does_not_report_what_it_repairs(recorder: Recorder, saw: Any) -> None:
    stopped = replace(running("demo", "gpu2", "worker"), state="exited", exit_code=137)
    abandoned = replace(running("old", "gpu2", "worker"), state="exited", id="a" * 64)
    saw(with_host(scene(), "gpu2", {"containers": (stopped, abandoned)}))
    assert [f.fix.split("  ")[0] for f in preflight(session(), {"gpu2"})] == ["toolkit gc", "toolkit up"]
    status, _, err = call("up")
    assert (status, len(recorder.ran)) == (0, 1)
    assert "belongs to a removed cluster" in err and "is not running" not in err and "toolkit up" not in err


def test_run_prints_five_warnings_once_each_and_counts_the_others(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = [Finding(f"check-{n}", "warning", f"fault {n}", f"cure {n}", "gpu1") for n in range(7)]
    several.append(replace(several[0], host="gpu2"))
    monkeypatch.setattr("toolkit.api.run.preflight", lambda session, hosts, running: tuple(several))
    words = ("run", "--detach", "--json", "--np", "3", "train.py")
    status, out, err = call(*words)
    assert status == 0
    lines = [line.strip() for line in err.splitlines()]
    assert [line for line in lines if "fault" in line or "cure" in line or "more" in line] == [
        "warning  gpu1, gpu2: fault 0  [check-0]",
        "fix: cure 0",
        *(text for n in range(1, 5) for text in (f"warning  gpu1: fault {n}  [check-{n}]", f"fix: cure {n}")),
        "2 more warnings: toolkit check",
    ]
    carried = [f for f in json.loads(out)["warnings"] if f["check"].startswith("check-")]
    assert len(carried) == len(several)
    del several[6:]
    assert "1 more warning: toolkit check" in call(*words)[2]
    del several[5:]
    assert "more warning" not in call(*words)[2]


def test_an_error_of_an_unused_host_does_not_stop_the_command(saw: Any) -> None:
    saw(_ERROR)
    assert preflight(session(), {"gpu1", "cpu3"}) == ()
    assert [f.check for f in preflight(session(), {"gpu2"})] == ["gpu-memory"]
    # One that cannot be used is reported by the plan itself.
    assert preflight(session(gpu2=False), world.inventory().names) == ()


LOCAL = replace(world.IMAGE, id="sha256:" + "9" * 64, identity="9" * 16, arch="arm64")


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose hosts run the cluster; this machine has another image of the same name."""
    cluster = session()
    cluster.facts = {
        name: replace(f, containers=tuple(replace(c, image=world.NAMED.id) for c in f.containers))
        for name, f in cluster.facts.items()
    }
    monkeypatch.setattr(cluster, "find_local_image", lambda: LOCAL)
    monkeypatch.setattr(
        toolkit.checks.preflight, "_seen", lambda session, name: Seen(name, facts=session.facts[name])
    )
    return cluster


@pytest.mark.parametrize(
    ("pull", "running", "image"),
    [
        ("never", False, LOCAL),
        ("never", True, world.NAMED),
        ("missing", False, world.NAMED),
        ("always", False, world.NAMED),
        ("always", True, world.NAMED),
    ],
)
def test_checks_judge_the_image_of_the_containers(
    pull: str, running: bool, image: ImageFacts, up: Session
) -> None:
    """`up` sends the image of this machine only with pull: never, and `run` uses the running containers."""
    up.inventory = replace(up.inventory, pull=pull)
    judged, observed = first_look(up, running), up.observe(running)
    assert judged.image == image
    assert image == reference_image(up.inventory, up.facts, observed.local_image, observed.by_name)
    found = {(f.check, f.verdict) for f in judge(judged, ("host",))}
    assert (("arch", "error") in found) == (image == LOCAL)
    # `run` also warns that the image of this machine is newer than the containers.
    assert (("image-running", "warning") in found) == (pull == "never")


def test_checks_judge_the_image_of_a_host_if_hosts_have_different_images(up: Session) -> None:
    up.facts = world.cluster_facts()
    up.facts["gpu2"] = replace(up.facts["gpu2"], images=(replace(LOCAL, tags=("toolkit:cpu",)),))
    up.find_local_image = lambda: None  # type: ignore[method-assign]
    assert first_look(up).image == world.NAMED
    up.facts = {name: replace(facts, images=()) for name, facts in up.facts.items()}
    assert first_look(up).image is None


def test_refusing_counts() -> None:
    raise_if_errors([Finding("a", "warning", "w", "f")])
    with pytest.raises(NotReady, match="2 errors") as caught:
        raise_if_errors([Finding("a", "error", "e", "f"), Finding("b", "error", "e", "f")])
    assert caught.value.exit_code == 3 and "2 errors would" in caught.value.what
    one = Finding("disk", "error", "e", "f", host="gpu1")
    with pytest.raises(NotReady, match="2 errors on gpu1 would"):
        raise_if_errors([one, one])
    with pytest.raises(NotReady, match="2 errors would"):
        raise_if_errors([one, Finding("image", "error", "no host has the image", "f")])


def test_the_refusal_lists_errors_that_were_not_printed_before() -> None:
    found = [Finding("disk", "error", "it is full", "rm", host="gpu1"), Finding("a", "warning", "w", "f")]
    with pytest.raises(NotReady) as caught:
        raise_if_errors(found, told=False)
    assert "\n  gpu1: " in caught.value.what and "it is full; fix: rm" in caught.value.what
    assert caught.value.fix.endswith("check=False")


def test_a_session_runs_every_probe() -> None:
    assert {name for name, _ in questions()} == {p.name for c in CHECKS for p in c.probes if p.text}


@pytest.mark.parametrize("words", [("gc",), ("check", "--fix")], ids=lambda words: words[0])
def test_gc_and_its_hidden_alias_remove_the_same(
    recorder: Recorder, saw: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("toolkit.cli.check.run_checks", lambda *_: ())
    saw(scene())
    assert call(*words)[0] == 0 and recorder.ran.pop().steps == ()
    stopped = replace(world.running("old", "gpu2", "worker"), state="exited")
    saw(with_host(scene(marks=marks("gpu2")), "gpu2", {"containers": (stopped,)}))
    status, out, _ = call(*words, "--dry-run")
    assert status == 0 and "\ngc\n\nphase containers\n" in f"\n{out}" and recorder.ran == []
    status, _, err = call(*words)
    assert status == 0 and "gc: 1 change" in err
    assert [step.title for step in recorder.ran[0].steps] == ["remove container toolkit-old-worker"]
    told = json.loads(call(*words, "--json")[1])
    told = told if words == ("gc",) else told["fix"]
    assert [row["step"] for row in told["outcomes"]] == ["remove container toolkit-old-worker"]
    assert told["kept"] == []


def test_findings_name_gc_and_check_shows_no_second_door() -> None:
    found = scene(marks=marks("gpu2", process(811, "over")))
    fixes = {finding.fix for finding in judge(found, ("host",)) if finding.check == "left-processes"}
    assert fixes == {"toolkit gc  # stops these processes"}
    assert "--fix" not in call("check", "--help")[1]


# Restarts and checkpoints

_SHARED = "nfs4|nas:/export/out|rw"
_LOCAL = "ext4|/dev/sda1|rw"
_SERVER = "xfs|/dev/md0|rw"  # of the host that shares the folder with the others


def _with_out(**changes: str) -> Scene:
    """Three hosts whose writable mount /scratch/out is as given, on the others a network file system."""
    made = scene()
    for name, one in made.seen.items():
        on = changes.get(name, changes.get("rest", _SHARED))
        inode = {_LOCAL: "44:99", _SERVER: "9:77"}.get(on, "44:77")
        out = place("mount", "/scratch/out", on=on, more=f"inode|{inode}\n")
        said = {**one.answers, "places": places(mounts=place("mount", "/data/digits") + out)}
        made = replace(made, seen={**made.seen, name: replace(one, answers=said)})
    return made


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        (_with_out(), False),
        (_with_out(gpu2=_LOCAL), True),
        (_with_out(rest=_LOCAL), True),
        (_with_out(gpu1=_SERVER), False),
        (_with_out(rest=_SERVER), True),
        (replace(scene(), inventory=replace(scene().inventory, mounts=())), True),
        (scene(places=""), False),  # nothing is known of it
    ],
)
def test_run_warns_of_checkpoints_that_a_restart_would_not_find(
    said: Scene, warned: bool, recorder: Recorder, saw: Any
) -> None:
    saw(said)
    words = ("run", "--detach", "--json", "--np", "3", "--max-restarts", "2", "train.py")
    status, out, err = call(*words)
    assert status == 0
    found = [w for w in json.loads(out)["warnings"] if w["check"] == "restart-checkpoints"]
    assert len(found) == warned == ("warning: --max-restarts: ranks that restart on" in err)
    assert not warned or (
        err.index("no writable mount") < err.index("job 2026")
        and "fix: in hosts.yaml: add under mounts:" in err
    )
    status, out, err = call(*words[:5], "train.py")
    assert status == 0 and "no writable mount" not in err


def test_a_job_of_one_host_finds_its_checkpoints(recorder: Recorder, saw: Any) -> None:
    saw(_with_out(rest=_LOCAL))
    status, _, err = call("run", "--detach", "--only", "gpu2", "--max-restarts", "2", "train.py")
    assert status == 0 and "no writable mount" not in err
