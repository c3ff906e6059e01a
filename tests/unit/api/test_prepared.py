"""Two phases: what a prepared command shows is what it executes, and preparing changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toolkit.api.run
import toolkit.bench.smoke
import toolkit.jobs.request
from tests.unit import cluster_world as world
from tests.unit.container_world import PATIENCE_S
from tests.unit.hosts_here import HostHere
from toolkit.api.cluster import Cluster
from toolkit.api.connection import ToolkitWarning
from toolkit.api.prepared import Prepared
from toolkit.cluster.layout import Observed, make_layout, refuse_unsendable
from toolkit.cluster.session import Session, observe_layout
from toolkit.core.finding import Finding, Notice, Topic
from toolkit.core.image import ImageFacts
from toolkit.core.report import Outcome, PlanFailed, Report
from toolkit.errors import BadInput, ImageError, NotReady, ToolkitError, Unreachable
from toolkit.jobs.request import Request, check_request
from toolkit.plan.execute import StepEnded
from toolkit.plan.steps import Plan

DATA = "data: [{source: ./folder, path: /scratch/x, target: /sets}]\n"
ERROR = Finding("gpu", "error", "is broken", "replace it", "gpu1", "gpu1")
WARNING = Finding("clock", "warning", "is late", "set it", "gpu2", "clock")


class Ran:
    """Replaces ``execute`` and keeps its plans."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def __call__(self, plan: Plan, *rest: object, **more: object) -> Report:
        self.plans.append(plan)
        return Report(plan.title, tuple(Outcome("p", s.title, s.host, "ok") for s in plan.steps))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    found = Ran()
    monkeypatch.setattr("toolkit.cluster.session.execute", found)
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Session]]:
    """The sessions that commands open, on hosts that answered as they do when the cluster is up."""
    sessions: list[Session] = []

    def meet(inventory: Any, *rest: Any) -> Session:
        session = Session(inventory)
        session.facts = world.facts_when_up()
        session.runners = {name: HostHere(name) for name in session.facts}  # type: ignore[misc]
        sessions.append(session)
        return session

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(Session, "open", meet)
    monkeypatch.setattr("toolkit.cluster.session.local_image", lambda *_: world.NAMED)
    monkeypatch.setattr("toolkit.jobs.records.job_statuses", lambda session: [])
    monkeypatch.setattr("toolkit.jobs.control.running_jobs", lambda *_: [])
    yield sessions


def cluster(text: str = world.HOSTS, **more: Any) -> Cluster:
    return Cluster(world.inventory(text), **{"warn": lambda finding: None, **more})


REQUEST = Request(("train.py",), Path(), launcher="torchrun")
COMMANDS: dict[str, Callable[[Cluster], Prepared[Any]]] = {
    "up": lambda one: one.prepare_up(check=False),
    "up --prepare": lambda one: one.prepare_up(check=False, prepare=True),
    "down": lambda one: one.prepare_down(),
    "run": lambda one: one.prepare_run(REQUEST, check=False),
    "smoke": lambda one: one.prepare_smoke("mpirun"),
    "image send": lambda one: one.image.prepare_send(),
    "data rm": lambda one: one.data.prepare_remove(),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_shown_is_the_object_that_runs(name: str, opened: list[Session], ran: Ran) -> None:
    with COMMANDS[name](cluster(world.HOSTS + DATA)) as prepared:
        plans = prepared.plans
        assert plans and plans[0] is prepared.plan and ran.plans == []
        if isinstance(prepared.plan, Plan) and name in ("run", "smoke"):
            assert_started(prepared, ran, plans)
        else:
            assert prepared.execute(lambda event: None).ok
            assert [id(plan) for plan in ran.plans] == [id(plan) for plan in plans]
    assert opened[0].closed and len(opened) == 1


def assert_started(prepared: Prepared[Any], ran: Ran, plans: tuple[Plan, ...]) -> None:
    """A job is started phase by phase, which are those of its plan."""
    with suppress(ToolkitError):  # nothing of the job's end is simulated
        prepared.execute(lambda event: None)
    shown = [phase for plan in plans for phase in plan.phases]
    carried_out = [phase for plan in ran.plans for phase in plan.phases]
    assert [id(phase) for phase in carried_out] == [id(phase) for phase in shown]


@pytest.mark.parametrize("name", COMMANDS)
def test_to_prepare_changes_nothing(name: str, opened: list[Session], ran: Ran) -> None:
    """Hosts are asked at most for what their image has, and a Ctrl-C closes the connections."""
    with pytest.raises(KeyboardInterrupt), COMMANDS[name](cluster(world.HOSTS + DATA)) as prepared:
        runners: Any = prepared.session.runners
        asked = [command.line() for runner in runners.values() for command in runner.ran]
        assert ran.plans == [] and all("command -v" in line for line in asked)
        raise KeyboardInterrupt
    assert opened[0].closed


def test_a_command_that_cannot_be_prepared_closes_its_connections(opened: list[Session], ran: Ran) -> None:
    with pytest.raises(NotReady, match="GPU"):
        cluster(world.HOSTS.replace("address: 10.77.0.2", "address: 10.77.0.2\n    gpus: 9")).prepare_run(
            replace(REQUEST, only=("gpu1",)), check=False
        )
    assert opened[0].closed
    with pytest.raises(BadInput, match="data: contains no data set"):
        cluster().data.prepare_remove()
    assert len(opened) == 1, "no host was contacted"


def test_hosts_that_the_layout_refuses_are_in_the_report(opened: list[Session], ran: Ran) -> None:
    text = world.HOSTS.replace("address: 10.77.0.3", "address: 10.77.0.3\n    gpus: 9")
    heard: list[Outcome] = []

    def listen(event: object) -> None:
        if isinstance(event, StepEnded):
            heard.append(event.outcome)

    with cluster(text).prepare_up(check=False) as prepared:
        assert "gpu2" not in {step.host for step in prepared.plan.steps}
        report = prepared.execute(listen)
    (failed,) = report.failures
    assert (failed.host, failed.phase, heard) == ("gpu2", "connect", [failed])
    with pytest.raises(PlanFailed):
        cluster(text).up(check=False)


@pytest.mark.parametrize("name", ["up", "image send"])
def test_a_host_is_refused_if_no_machine_can_send_the_image_to_it(
    name: str, opened: list[Session], ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.cluster.session.local_image", lambda *_: None)
    with COMMANDS[name](cluster()) as prepared:
        report = prepared.execute(lambda event: None)
    assert {step.host for step in ran.plans[-1].steps} == {"gpu1", "gpu2"}
    (failed,) = report.failures
    assert (failed.host, failed.phase) == ("cpu3", "connect")
    assert failed.detail == (
        "the image toolkit:cpu is missing, and the engine of your machine has no copy to send"
    )
    assert failed.fix.startswith("toolkit image build --flavor cpu  #")
    assert failed.fix.endswith("or load the image on cpu3: docker load -i FILE")


def test_no_host_is_left_without_the_image(opened: list[Session]) -> None:
    observed = Observed(world.facts_when_up(), local_silence="the Docker engine gave no answer")
    layout = world_layout()
    alone = replace(layout, places=tuple(place for place in layout.places if place.name == "cpu3"))
    with pytest.raises(NotReady, match="cpu3: the image toolkit:cpu is missing, and the Docker engine gave"):
        refuse_unsendable(alone, observed)
    assert refuse_unsendable(alone, replace(observed, local_image=world.IMAGE)) == alone


def test_a_pull_is_the_plan_and_the_rest_is_planned_after_it(
    opened: list[Session], ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = world.HOSTS.replace("image: toolkit:cpu", "image: {name: toolkit:cpu, pull: always}")
    brought = {name: replace(f, images=(world.NAMED,)) for name, f in world.facts_when_up().items()}
    monkeypatch.setattr(Session, "_ask", lambda session, name: brought[name])
    told: list[Notice] = []
    for name in ("up", "image send"):
        with COMMANDS[name](cluster(text, notice=told.append)) as prepared:
            assert prepared.plan.title.startswith("pull") and prepared.planned_later  # type: ignore[attr-defined]
            prepared.execute(lambda event: None)
        assert ran.plans[-2] is prepared.plan and ran.plans[-1].title.startswith(name)
        assert prepared.notes == (f"gpu1, gpu2, cpu3: {prepared.plan.title}",)
    assert [notice.topic for notice in told] == [Topic.PULL, Topic.PULL]


def test_what_keeps_a_plan_from_being_made_is_raised_where_it_is_looked_at(
    opened: list[Session], ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def fail(session: Session) -> None:
        asked.append(session)
        raise ImageError("the engine cannot inspect image it is", "docker images")

    monkeypatch.setattr(Session, "find_local_image", fail)
    with cluster().prepare_up(check=False) as prepared:
        for _ in range(2):
            with pytest.raises(ImageError):
                _ = prepared.plan
        with pytest.raises(ImageError):
            prepared.execute(lambda event: None)
    assert len(asked) == 1 and ran.plans == []


# Problems of the hosts


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    found = [WARNING, ERROR]
    for verb in ("up", "run"):
        monkeypatch.setattr(f"toolkit.api.{verb}.preflight", lambda session, hosts, **_: tuple(found))
    return found


@pytest.mark.parametrize("verb", ["up", "run"])
def test_errors_keep_a_command_from_running_and_not_from_being_looked_at(
    verb: str, opened: list[Session], ran: Ran, problems: list[Finding]
) -> None:
    def prepare(one: Cluster) -> Prepared[Any]:
        return one.prepare_up() if verb == "up" else one.prepare_run(REQUEST)

    warned: list[Finding] = []
    with prepare(cluster(warn=warned.append)) as prepared:
        assert prepared.plan.steps
        with pytest.raises(NotReady, match=r"(?s)1 error on gpu1.*gpu1: is broken.*check=False"):
            prepared.execute(lambda event: None)
    assert warned == [WARNING] and ran.plans == []
    shown: list[Notice] = []
    with (
        prepare(cluster(notice=shown.append)) as prepared,
        pytest.raises(NotReady, match=r"1 error on gpu1 [^\n]*\n.*--no-check"),
    ):
        prepared.execute(lambda event: None)
    assert [notice.findings for notice in shown if notice.topic is Topic.HOSTS] == [(WARNING, ERROR)]
    assert prepared.findings_about(Topic.HOSTS) == prepared.findings == (WARNING, ERROR)


def test_a_warning_names_the_line_that_asked(
    opened: list[Session], ran: Ran, problems: list[Finding]
) -> None:
    problems.remove(ERROR)
    with pytest.warns(ToolkitWarning, match="is late") as warned:
        Cluster(world.inventory()).up()
    assert warned[0].filename == __file__


# What a layout is made of


def test_a_layout_depends_on_what_was_observed_and_on_nothing_else(
    opened: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session.open(world.inventory())
    session.errors = {"gpu9": Unreachable("no answer", "", "gpu9")}
    observed = session.observe()
    before, made = repr(observed), make_layout(session.inventory, observed)
    session.facts.clear()
    session.errors.clear()
    assert make_layout(session.inventory, observed) == made == world_layout()
    assert repr(observed) == before and "no answer" in before


def world_layout() -> object:
    return make_layout(world.inventory(), Observed(world.facts_when_up()))


def test_the_image_that_is_meant() -> None:
    session = Session(world.inventory())
    session.facts = world.facts_when_up()
    asked: list[ImageFacts] = []

    def find() -> ImageFacts:
        asked.append(world.IMAGE)
        return world.IMAGE

    session.find_local_image = find  # type: ignore[method-assign]
    assert session.observe().local_image == world.IMAGE and len(asked) == 1
    running = session.observe(running=True)
    assert (running.local_image, running.by_name, len(asked)) == (None, False, 1)
    pulling = Session(replace(session.inventory, pull="always"))
    pulling.facts, pulling.find_local_image = session.facts, find  # type: ignore[method-assign]
    seen = pulling.observe()
    assert (seen.local_image, seen.by_name, len(asked)) == (None, True, 1)


def test_no_getter_of_a_session_asks_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*words: object, **more: object) -> None:
        raise AssertionError("it asks")

    monkeypatch.setattr(HostHere, "run", ask)
    monkeypatch.setattr("toolkit.cluster.session.try_networks", ask)
    monkeypatch.setattr("toolkit.cluster.session.local_image", ask)
    session = Session(world.inventory())
    session.facts = world.facts_when_up()
    session.runners = {name: HostHere(name) for name in session.facts}  # type: ignore[misc]
    getters = [name for name, kind in vars(Session).items() if isinstance(kind, property)]
    assert {"is_up", "main", "settled"} <= set(getters)
    for name in getters:
        getattr(session, name)
    with pytest.raises(AssertionError, match="it asks"):
        session.observe()


def test_connections_between_hosts_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(
        "toolkit.cluster.session.try_networks", lambda *words: tried.append(words) or Observed({}).evidence
    )
    session = Session(world.inventory())
    session.facts = world.facts_when_up()
    observe_layout(session, running=True)
    observe_layout(session, running=True)
    assert len(tried) == 1


# Decided once


@pytest.mark.parametrize("name", ["up", "run", "smoke", "image send"])
def test_the_layout_of_a_command_is_made_once(
    name: str, opened: list[Session], ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def count(*words: Any) -> Any:
        made.append(words)
        return make_layout(*words)

    for module in ("cluster.session", "api.prepared", "lifecycle.port_retry"):
        monkeypatch.setattr(f"toolkit.{module}.make_layout", count)
    with COMMANDS[name](cluster()) as prepared:
        _ = prepared.plans
        try:
            prepared.execute(lambda event: None)
        except ToolkitError:  # the all-reduce of `smoke` has no end
            assert name == "smoke"
    assert len(made) == 1 and ran.plans


def test_the_launcher_is_decided_once_by_the_sources_as_they_were(
    opened: list[Session], ran: Ran, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed\n")
    request = replace(REQUEST, launcher="auto")
    decided: list[object] = []
    real = toolkit.jobs.request.how_to_start

    def count(*words: Any) -> Any:
        decided.append(words)
        return real(*words)

    monkeypatch.setattr(toolkit.jobs.request, "how_to_start", count)
    with cluster().prepare_run(request, check=False) as prepared:
        assert prepared.job.launcher == "torchrun" and len(decided) == 1
        assert prepared.notes == ("launcher torchrun: train.py imports torch",)
        prepared.execute(lambda event: None)
    assert len(decided) == 1
    checked = check_request(world.inventory(), request)
    (tmp_path / "train.py").write_text("import horovod.torch\n")
    with toolkit.api.run.prepare_run(cluster(), checked, str, check=False) as later:
        assert later.job.launcher == "torchrun"


# Read while hosts answer


def test_code_is_read_while_hosts_answer(
    opened: list[Session], ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, met = threading.Event(), threading.Event()
    read, meet = toolkit.api.run.read_code, Session.open

    def slow(*words: Any) -> Any:
        reading.set()
        assert met.wait(PATIENCE_S)
        return read(*words)

    def answer(*words: Any) -> Session:
        assert reading.wait(PATIENCE_S)
        met.set()
        return meet(*words)

    monkeypatch.setattr(toolkit.api.run, "read_code", slow)
    monkeypatch.setattr(Session, "open", answer)
    with cluster().prepare_run(REQUEST, check=False) as prepared:
        tree = prepared.plan.steps[0].tree  # type: ignore[union-attr]
        assert [entry.path for entry in tree.entries] == ["train.py"]


def test_what_is_wrong_with_the_cluster_is_told_before_what_is_wrong_with_the_code(
    opened: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: Any) -> Any:
        raise ToolkitError("the code cannot be read", "look at it")

    monkeypatch.setattr(toolkit.api.run, "read_code", fail)
    with pytest.raises(ToolkitError, match="the code cannot be read"):
        cluster().prepare_run(REQUEST, check=False)
    monkeypatch.setattr(world, "facts_when_up", world.cluster_facts)
    with pytest.raises(NotReady, match="toolkit up"):
        cluster().prepare_run(REQUEST, check=False)
    assert all(session.closed for session in opened)


def test_ctrl_c_before_the_start_of_a_job_is_no_job(
    opened: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*words: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(toolkit.api.run, "preflight", press)
    with cluster().prepare_run(REQUEST) as prepared:
        with pytest.raises(KeyboardInterrupt):
            prepared.execute(lambda event: None)
        assert not prepared.begun
        monkeypatch.setattr(toolkit.api.run, "preflight", lambda *words, **named: ())
        monkeypatch.setattr(toolkit.api.run, "start", press)
        with pytest.raises(KeyboardInterrupt):
            prepared.execute(lambda event: None)
        assert prepared.begun
