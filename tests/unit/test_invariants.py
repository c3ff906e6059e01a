"""The three invariants, each with the proof that its test sees the rule broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toolkit.api.up
import toolkit.cluster.session
import toolkit.jobs.control
import toolkit.jobs.make_job
from tests.unit import cluster_world as world
from tests.unit.each import for_each
from tests.unit.hosts_here import FakePrepared, HostHere, execute, hosts, tree
from toolkit.cli import plans
from toolkit.cluster.session import Session
from toolkit.core.code import CodeTree
from toolkit.core.command import Command, Kind, Ref, Result, command, script
from toolkit.core.report import Outcome, Report
from toolkit.launchers.job import Job
from toolkit.plan.show import plan_text
from toolkit.plan.steps import File, Phase, Plan, Run, Upload, WaitFor

ROOT = Path(__file__).resolve().parents[2]

# 1. The same inputs give the same plan, byte for byte, in any process.

_IN_ANOTHER_PROCESS = """
import json, sys
from tests.unit import cluster_world as world
import toolkit.lifecycle.up
good = world.everything()
# A plan that follows a set has another order in another process.
toolkit.lifecycle.up._FOLDERS = frozenset(toolkit.lifecycle.up._FOLDERS)
json.dump({"good": good, "follows a set": world.everything()}, sys.stdout)
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The plans as four other processes make them: other hash seeds, time zones, homes, folders, names."""
    started = []
    for seed, zone in enumerate(("UTC", "Asia/Tokyo", "America/Lima", "Europe/Oslo")):
        home = tmp_path_factory.mktemp(f"home{seed}")
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONHASHSEED": str(seed),
            "TZ": zone,
            "HOME": str(home),
            "USER": f"user{seed}",
            "TOOLKIT_HOSTS": f"other{seed}.yaml",
        }
        argv = [sys.executable, "-c", _IN_ANOTHER_PROCESS]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=home))
    results = []
    for process in started:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        results.append(json.loads(out))
    return results


def test_the_same_inputs_give_the_same_plan_in_any_process(elsewhere: list[dict[str, str]]) -> None:
    assert {result["good"] for result in elsewhere} == {world.everything()}


def test_a_plan_that_follows_a_set_is_caught(elsewhere: list[dict[str, str]]) -> None:
    assert len({result["follows a set"] for result in elsewhere}) > 1


def test_planning_changes_none_of_its_inputs() -> None:
    layout, facts, inventory = world.layout(), world.facts_when_up(), world.inventory()
    before = repr((layout, facts, inventory))
    first, second = world.plans(), world.plans()
    assert first == second
    toolkit.lifecycle.up.plan_up(layout, world.INSIDE)
    toolkit.lifecycle.down.plan_down(inventory, facts, "x")
    assert repr((layout, facts, inventory)) == before


@for_each("name", world.plans())
def test_a_plan_is_made_of_values(name: str) -> None:
    """No closures, no sets: what `repr` shows is all there is."""

    def check(value: Any) -> None:
        assert not callable(value) and not isinstance(value, (set, frozenset, dict, list)), value
        fields = getattr(value, "__dataclass_fields__", None)
        for part in value if isinstance(value, tuple) else [getattr(value, f) for f in fields or ()]:
            check(part)

    check(world.plans()[name])


# 2. What --dry-run prints is the object that runs.


class Recorder:
    """A substitute for the executor of plans that records them."""

    def __init__(self) -> None:
        self.ran: list[Plan] = []

    def __call__(self, plan: Plan, *rest: object, **more: object) -> Report:
        self.ran.append(plan)
        return Report(plan.title, tuple(Outcome("p", s.title, s.host, "ok") for s in plan.steps))

    def text(self) -> str:
        """Return the executed phases as the text of one plan: `run` executes its phases one by one."""
        phases = tuple(phase for plan in self.ran for phase in plan.phases)
        return plan_text(Plan(self.ran[0].title, phases))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    """The real commands on hosts that said what the test's facts say; nothing is connected to."""
    recorder = Recorder()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text(f"{world.HOSTS}transport: ssh\n")
    (tmp_path / "train.py").write_text("import torch\n")

    def opened(inventory: Any, *more: Any) -> Session:
        session = Session(inventory)
        session.facts = world.facts_when_up()
        session.runners = {name: HostHere(name) for name in session.facts}  # type: ignore[misc]
        return session

    monkeypatch.setattr(toolkit.cluster.session.Session, "open", opened)
    monkeypatch.setattr("toolkit.cluster.session.local_image", lambda *_: world.IMAGE)
    monkeypatch.setattr("toolkit.cluster.session.execute", recorder)
    monkeypatch.setattr("toolkit.jobs.records.job_statuses", lambda session: [])
    monkeypatch.setattr(toolkit.jobs.control, "running_jobs", lambda *_: [])
    # A job's id is made of the clock and of chance; it is an argument of the plan like any other.
    monkeypatch.setattr(toolkit.jobs.make_job, "job_id", lambda *parts: world.JOB_ID)
    return recorder


VERBS = {
    "up": ("up",),
    "up --prepare": ("up", "--prepare"),
    "down": ("down",),
    "down --no-save": ("down", "--no-save"),
    "image send": ("image", "send"),
    "run": ("run", "--detach", "--np", "3", "train.py", "--epochs", "3"),
}


def invoke(*words: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    from toolkit.cli.app import app

    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return done.exit_code, done.stdout


def dry_run_and_run(words: tuple[str, ...], recorder: Recorder, at: int) -> tuple[str, str]:
    """Return what --dry-run printed and, as text, what ran without it; ``at``: the position of its option."""
    code, printed = invoke(*words[:at], "--dry-run", *words[at:])
    assert code == 0
    assert recorder.ran == []
    code, _ = invoke(*words)
    assert code == 0
    return printed, recorder.text()


@pytest.mark.parametrize("verb", VERBS)
def test_what_dry_run_prints_is_what_runs(verb: str, recorder: Recorder) -> None:
    words = VERBS[verb]
    printed, ran = dry_run_and_run(words, recorder, 2 if words[0] == "image" else 1)
    assert printed == ran
    assert len(printed.splitlines()) > 5


def test_a_pull_is_printed_as_it_runs_and_what_follows_is_planned_after_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = world.HOSTS.replace("image: toolkit:cpu", "image: {name: toolkit:cpu, pull: always}")
    (tmp_path / "hosts.yaml").write_text(text)
    brought = {name: replace(f, images=(world.NAMED,)) for name, f in world.facts_when_up().items()}
    monkeypatch.setattr(Session, "_ask", lambda session, name: brought[name])
    for words in (("up",), ("image", "send")):
        code, printed = invoke(*words, "--dry-run")
        assert code == 0 and recorder.ran == []
        assert invoke(*words)[0] == 0
        assert [plan.title.split()[0] for plan in recorder.ran] == ["pull", words[0]]
        assert plan_text(recorder.ran[0]) == printed
        recorder.ran.clear()


def test_a_plan_that_changes_between_print_and_run_is_caught(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Plan] = []

    def unsteady(*words: Any) -> Plan:
        made.append(toolkit.lifecycle.up.plan_up(*words))
        return made[-1] if len(made) == 1 else replace(made[-1], phases=made[-1].phases[1:])

    monkeypatch.setattr(toolkit.api.up, "plan_up", unsteady)
    printed, ran = dry_run_and_run(("up",), recorder, 1)
    assert printed != ran


def test_the_json_of_run_has_the_warnings(recorder: Recorder) -> None:
    code, printed = invoke("run", "--detach", "--json", "--env", "NCCL_TIMEOUT=9", "--np", "3", "train.py")
    told = json.loads(printed)
    assert (code, told["job"]) == (0, world.JOB_ID)
    assert [w["subject"] for w in told["warnings"]] == ["--env NCCL_TIMEOUT"]


def test_carry_out_prints_a_plan_or_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    prepared = FakePrepared(world.plans()["up"])
    assert plans.carry_out(prepared, True, False, False) is None
    assert prepared.executed == []
    assert capsys.readouterr().out == plan_text(prepared.plan)
    plans.carry_out(prepared, False, False, False)
    assert prepared.executed[0] is prepared.plan


def test_dry_run_as_json_holds_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    prepared = FakePrepared(world.plans()["up"])
    plan = prepared.plan
    plans.carry_out(prepared, True, True, False)
    told = json.loads(capsys.readouterr().out)
    assert told["plan"] == plan_text(plan).splitlines()
    assert (told["title"], told["dry_run"]) == (plan.title, True)
    assert "to_do" not in told
    plans.carry_out(prepared, True, True, False, to_do=prepared.to_do)
    told = json.loads(capsys.readouterr().out)
    assert told["to_do"] == [{"host": "cpu3", "step": "record the settings"}]
    plans.carry_out(prepared, True, False, False, to_do=prepared.to_do)
    said = capsys.readouterr()
    assert said.out == plan_text(plan) and said.err.endswith("\n  cpu3: record the settings\n")


def test_plan_text_tells_apart_what_differs() -> None:
    """Else the comparison above would be blind: each kind of step shows in the text when it changes."""
    base = world.plans()["up"]
    for number, phase in enumerate(base.phases):
        phases = [*base.phases[:number], replace(phase, steps=phase.steps[1:]), *base.phases[number + 1 :]]
        assert plan_text(replace(base, phases=tuple(phases))) != plan_text(base)
    one = File("/x", ("one",))
    texts = {
        plan_text(Plan("p", (Phase("q", (Upload("a", "t", (file,)),)),)))
        for file in (one, replace(one, content=("two",)), replace(one, mode=0o644), replace(one, path="/y"))
    }
    assert len(texts) == 4


# 3. A second `up` on an untouched cluster skips every step. (tests/e2e does it with containers.)


def small_cluster(folder: Path) -> Plan:
    """A plan of all that `up` does to a host's files and processes, for two hosts that are folders here."""

    def key(host: str) -> Run:
        path = f"{folder}/{host}/key"
        return Run(
            host,
            "key",
            script('printf "%s" "$2" >"$1"', path, host * 64),
            unless=command("test", "-s", path),
            reads=command("cat", path),
            saves="host",
            kind=Kind.CONTAINER_ID,
        )

    both = ("a", "b")
    lines = tuple(Ref(host, "host", f"{host} ", "\n") for host in both)
    make = [f"{folder}/{host}" for host in both]
    return Plan(
        "up",
        (
            Phase(
                "folders",
                tuple(
                    Run(h, "folder", command("mkdir", path), unless=command("test", "-d", path))
                    for h, path in zip(both, make, strict=True)
                ),
            ),
            Phase("keys", tuple(key(host) for host in both)),
            Phase("trust", tuple(Upload(h, "trust", (File(f"{folder}/{h}/known", lines),)) for h in both)),
            Phase(
                "start",
                tuple(
                    Run(
                        h,
                        "start",
                        command("touch", f"{folder}/{h}/up"),
                        unless=command("test", "-e", f"{folder}/{h}/up"),
                    )
                    for h in both
                ),
            ),
            Phase(
                "wait",
                tuple(
                    WaitFor(
                        h, "wait", command("test", "-e", f"{folder}/{h}/up"), command("true"), command("true")
                    )
                    for h in both
                ),
            ),
        ),
    )


def changes_of_second_run(plan: Plan, runners: dict[str, HostHere]) -> list[Outcome]:
    first = execute(plan, runners)
    assert first.ok and first.changes
    second = execute(plan, runners)
    assert second.ok
    return [outcome for outcome in second.outcomes if outcome.status != "skipped"]


def test_a_second_run_skips_every_step(tmp_path: Path) -> None:
    plan, runners = small_cluster(tmp_path), hosts("a", "b")
    assert changes_of_second_run(plan, runners) == []
    before = tree(tmp_path)
    execute(plan, runners)
    assert tree(tmp_path) == before


def test_a_step_that_cannot_be_asked_is_caught(tmp_path: Path) -> None:
    plan = small_cluster(tmp_path)
    careless = replace(plan.steps[0], unless=None, command=command("mkdir", "-p", f"{tmp_path}/a"))
    broken = replace(
        plan, phases=(replace(plan.phases[0], steps=(careless, plan.steps[1])), *plan.phases[1:])
    )
    assert [o.step for o in changes_of_second_run(broken, hosts("a", "b"))] == ["folder"]


def test_a_file_that_differs_each_time_is_caught(tmp_path: Path) -> None:
    class Forgetful(HostHere):
        """Its key is another one each time it is read."""

        def run(self, command: Command, timeout: float | None = None) -> Result:
            done = super().run(command, timeout)
            return replace(done, stdout=f"{len(self.ran):064x}") if "b" * 64 in done.stdout else done

    runners = {"a": HostHere("a"), "b": Forgetful("b")}
    assert [o.step for o in changes_of_second_run(small_cluster(tmp_path), runners)] == ["trust", "trust"]


def test_every_step_of_up_that_acts_can_be_asked_first() -> None:
    """`up` has no step that would act on an untouched cluster; images are known from the facts."""
    facts = {name: replace(f, images=(world.NAMED,)) for name, f in world.facts_when_up().items()}
    plan = toolkit.lifecycle.up.plan_up(
        toolkit.cluster.layout.make_layout(world.inventory(), toolkit.cluster.layout.Observed(facts)),
        world.INSIDE,
    )
    for step in plan.steps:
        assert isinstance(step, (Upload, WaitFor)) or (isinstance(step, Run) and step.unless), step


def test_the_job_is_part_of_the_plan() -> None:
    """A different job is a different plan: nothing about it is looked up later."""
    place, job = world.layout(), world.job()
    other: Job = replace(job, master_port=29501)
    texts = {
        world.everything({"x": toolkit.jobs.plan.plan_job(place, j, "", CodeTree())}) for j in (job, other)
    }
    assert len(texts) == 2
