"""Removal of a practice cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound
from requests.exceptions import ReadTimeout

from tests.unit.conftest import Run
from tests.unit.container_world import PATIENCE_S
from toolkit.core.command import Result
from toolkit.core.report import Report
from toolkit.errors import LabError
from toolkit.lab import files, lifecycle
from toolkit.lab.build import Book, Builder
from toolkit.lab.engine import Found, LabEngine
from toolkit.lab.spec import LabSpec
from toolkit.lab.topology import LABEL_LAB_FOLDER


def engine() -> Any:
    return SimpleNamespace(lab_image=lambda: "", do=lambda command: None)


def thing(name: str, error: Exception | None, removed: list[str], folder: str = "") -> Any:
    def remove(**options: bool) -> None:
        if error:
            raise error
        removed.append(name)

    labels = {LABEL_LAB_FOLDER: folder}
    attrs = {"Image": "", "Labels": labels, "Config": {"Labels": labels}}
    return SimpleNamespace(id=name, name=name, remove=remove, attrs=attrs, labels=labels, status="exited")


def found(error: Exception | None, removed: list[str], folder: str = "") -> Found:
    def made(name: str, error: Exception | None) -> Any:
        return thing(name, error, removed, folder)

    return Found(
        hosts={"box1": made("box1", error), "box2": made("box2", None)},
        helpers=(),
        networks=(made("net", error),),
        volumes=(made("disk1", error), made("disk2", None)),
    )


@pytest.fixture(autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hold no lock that other processes of the machine could wait for."""
    folder = tmp_path_factory.mktemp("locks")
    monkeypatch.setattr(lifecycle, "_LOCKS", folder)
    return folder


def test_objects_that_another_removal_has_removed_are_no_error() -> None:
    removed: list[str] = []
    gone = NotFound("no such volume")
    lifecycle._remove(engine(), "lab", found(gone, removed), set())
    assert sorted(removed) == ["box2", "disk2"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (APIError("device is busy"), "{} {}: device is busy"),
        (ReadTimeout("Read timed out. (read timeout=120)"), "Docker did not remove {} {} in time"),
    ],
)
def test_objects_that_cannot_be_removed_are_named_and_the_others_are_removed(
    error: Exception, reason: str
) -> None:
    removed: list[str] = []
    with pytest.raises(LabError) as caught:
        lifecycle._remove(engine(), "lab", found(error, removed), set())
    objects = (("container", "box1"), ("network", "net"), ("volume", "disk1"))
    reasons = "; ".join(reason.format(*each) for each in objects)
    assert caught.value.what == f"cannot remove practice cluster lab completely: {reasons}"
    assert caught.value.fix == "toolkit lab down --name lab"
    assert sorted(removed) == ["box2", "disk2"]


def test_a_network_that_docker_counts_as_used_needs_a_restart_of_docker() -> None:
    """Docker 20.10 can lose the end of a connection when it removes several containers at a time."""
    with pytest.raises(LabError) as caught:
        lifecycle._remove(engine(), "lab", found(APIError("network x has active endpoints"), []), set())
    assert caught.value.fix.startswith("sudo systemctl restart docker")
    assert caught.value.fix.endswith("\ntoolkit lab down --name lab")


def test_a_second_up_waits_for_the_first_and_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one builds the image for minutes, so a user starts it again in another terminal."""
    nothing = Found({}, (), (), ())
    world: dict[str, Any] = {"found": nothing}
    events: list[str] = []
    waits = threading.Event()

    def go(builder: Builder, before: Found) -> Any:
        if before is not nothing:
            raise LabError("the second one fails")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache of another user"))
        thread.start()
        assert waits.wait(PATIENCE_S)
        world["found"] = found(None, events, spec.folder)
        events.append("first created its objects")
        return "report"

    def progress(line: str) -> None:
        events.append(line)
        waits.set()

    def second() -> None:
        with suppress(LabError):
            lifecycle.lab_up(spec, progress)

    monkeypatch.setattr(
        lifecycle,
        "LabEngine",
        lambda: SimpleNamespace(find=lambda name: world["found"], lab_image=lambda: ""),
    )
    monkeypatch.setattr(lifecycle, "refuse_other_settings", lambda spec, found: None)
    monkeypatch.setattr(Builder, "go", go)
    spec = LabSpec("lab", str(tmp_path / "lab"))
    thread = threading.Thread(target=second)
    assert lifecycle.lab_up(spec) == "report"  # type: ignore[comparison-overlap]
    thread.join(PATIENCE_S)
    waiting = "waiting for another command that creates or removes practice cluster lab"
    assert events[:2] == [waiting, "first created its objects"]
    assert [event for event in events if event in ("box1", "box2", "net", "disk1", "disk2")] == []
    assert (tmp_path / "lab").exists()


def test_a_failed_up_removes_no_practice_cluster_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a common lock, both find no cluster of this name, and build the image for minutes."""
    world = {"found": Found({}, (), (), ())}
    removed: list[str] = []

    def go(builder: Builder, before: Found) -> Any:
        other, own = found(None, removed, "/home/alice/.lab/lab"), found(None, removed, spec.folder)
        own_volume = thing("own disk", None, removed, spec.folder)
        world["found"] = replace(other, helpers=own.networks, volumes=(*other.volumes, own_volume))
        raise LabError("network with name toolkit-lab-lab already exists")

    lab = SimpleNamespace(find=lambda name: world["found"], lab_image=lambda: "", do=removed.append)
    monkeypatch.setattr(lifecycle, "LabEngine", lambda: lab)
    monkeypatch.setattr(Builder, "go", go)
    spec = LabSpec("lab", str(tmp_path / "lab"))
    with pytest.raises(LabError, match="already exists"):
        lifecycle.lab_up(spec)
    assert sorted(removed) == ["net", "own disk"], "only the objects of this folder"
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize("user", [1000, 0])
def test_the_practice_cluster_of_another_user_is_neither_removed_nor_taken(
    user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    world = [found(None, removed, "/home/alice/.lab/lab"), Found({}, (), (), ())]
    lab = SimpleNamespace(find=lambda name: world[0], lab_image=lambda: "", do=lambda line: None)
    monkeypatch.setattr(lifecycle, "LabEngine", lambda: lab)
    monkeypatch.setattr(files, "foreign_owner", lambda folder: "alice" if "alice" in folder else "")
    monkeypatch.setattr("os.geteuid", lambda: user)
    with pytest.raises(LabError) as caught:
        lifecycle.lab_up(LabSpec("lab", "/home/bob/.lab/lab"))
    assert caught.value.what == "practice cluster lab belongs to user alice"
    assert caught.value.fix.startswith("toolkit lab up --name NAME  #")
    if user == 0:
        assert lifecycle.lab_owner("lab") == "" and lifecycle.preview_down("lab", False)
        return
    assert lifecycle.lab_owner("lab") == "alice"
    for call in (lifecycle.lab_down, lambda name: lifecycle.preview_down(name, False)):
        with pytest.raises(LabError) as caught:
            call("lab")
        assert caught.value.what == "practice cluster lab belongs to user alice"
        assert caught.value.fix == "as user alice: toolkit lab down --name lab"
    assert removed == []


def test_down_of_all_practice_clusters_leaves_those_of_other_users(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    downs: list[str] = []

    def down(name: str, *rest: Any) -> Report:
        downs.append(name)
        return Report(f"lab down {name}", ())

    monkeypatch.setattr("toolkit.cli.lab.lab_names", lambda: ("lab", "mine"))
    monkeypatch.setattr("toolkit.cli.lab.lab_owner", lambda name: "alice" if name == "lab" else "")
    monkeypatch.setattr("toolkit.cli.lab.lab_down", down)
    status, _, err = run("lab", "down", "--all")
    assert (status, downs) == (0, ["mine"])
    assert "lab lab: not removed, because it belongs to user alice" in err


@pytest.mark.parametrize(
    ("networks", "status", "line", "note"),
    [
        (("net", "net-management"), "exited", "start box1: container lab-box1 (state: exited)", ""),
        (("net",), "exited", "recreate box1: ", "a network of the practice cluster was removed"),
        (("net-management",), "running", "recreate box1: ", "a network of the practice cluster was removed"),
        (("net", "net-management"), "created", "recreate box1: ", "the container has never started"),
    ],
)
def test_a_dry_run_reports_hosts_that_are_recreated(
    networks: tuple[str, ...], status: str, line: str, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's files outside its volumes are lost, such as the home of the SSH user."""
    removed: list[str] = []
    box = thing("lab-box1", None, removed)
    box.status = status
    here = [thing(name, None, removed) for name in networks]
    for network in here:
        network.attrs["IPAM"] = {"Config": [{"Subnet": "10.77.0.0/24"}]}
    there = Found({"box1": box}, (), tuple(here), ())
    host = SimpleNamespace(name="box1", container="lab-box1", engine="new", volumes=(), address="10.77.0.11")
    spec = SimpleNamespace(
        name="lab", hosts=1, networks=("net", "net-management"), folder="/nonexistent", engines=("new",)
    )
    monkeypatch.setattr(lifecycle, "lab_hosts", lambda *args: (host,))
    lines = lifecycle.missing(spec, there)  # type: ignore[arg-type]
    assert [each for each in lines if each.startswith("create network")] == [
        f"create network {name}" for name in spec.networks if name not in networks
    ]
    (about,) = (each for each in lines if "box1" in each)
    assert about.startswith(line) and note in about and ("deletes" in about) == bool(note)

    def stop(*args: object) -> None:
        raise LabError("far enough")

    lab = object.__new__(LabEngine)
    builder = Builder(lab, spec, Book(lambda line: None))  # type: ignore[arg-type]
    monkeypatch.setattr(lab, "subnets", lambda: (), raising=False)
    monkeypatch.setattr(lab, "ask", lambda line: Result(0), raising=False)
    monkeypatch.setattr("toolkit.lab.commands.network_command", lambda *args: None)
    monkeypatch.setattr("toolkit.lab.build.lab_hosts", lambda *args: (host,))
    monkeypatch.setattr("toolkit.lab.files.ensure_key", lambda folder: ("", False))
    monkeypatch.setattr(builder, "_images", dict)
    monkeypatch.setattr(builder, "_start", stop)
    with pytest.raises(LabError, match="far enough"):
        builder.go(there)
    notes = [outcome.step for outcome in builder.book.outcomes if outcome.host == "box1"]
    assert notes == ([f"container removed, because {note}"] if note else [])
    assert removed == (["lab-box1"] if note else [])


def test_a_down_waits_for_an_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    waits = threading.Event()
    thread = threading.Thread(
        target=lifecycle.lab_down, args=("lab",), kwargs={"progress": lambda line: waits.set()}
    )

    def up(*args: object) -> None:
        thread.start()
        waits.wait(PATIENCE_S)

    monkeypatch.setattr(lifecycle, "_down", lambda *args: events.append("down"))
    monkeypatch.setattr(lifecycle, "_up", up)
    lifecycle.lab_up(LabSpec("lab", str(tmp_path)))
    assert waits.is_set()
    thread.join(PATIENCE_S)
    assert events == ["down"]


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (lambda lab: lab.labs(), "cannot list the practice clusters of your machine"),
        (
            lambda lab: lab.find("lab"),
            "cannot list the containers, networks and volumes of practice cluster lab",
        ),
        (lambda lab: lab.subnets(), "cannot list the networks of your machine's Docker engine"),
        (lambda lab: lab.lab_image(), "cannot list the images of practice hosts"),
        (lambda lab: lab.has_image("x:1"), "cannot inspect image x:1"),
        (lambda lab: LabEngine(), "cannot read the properties of the Docker engine"),
        (
            lambda lab: lab.remove(thing("box1", APIError("no space left on device"), [])),
            "cannot remove container box1",
        ),
    ],
    ids=["labs", "find", "subnets", "lab_image", "has_image", "info", "remove"],
)
def test_an_engine_that_answers_but_refuses_requests_is_reported(
    request_: Callable[[LabEngine], object], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine does that is shutting down, or whose disk is full."""

    def refuse(*args: object, **options: object) -> None:
        raise APIError("no space left on device")

    things = SimpleNamespace(list=refuse, get=refuse)
    client = SimpleNamespace(containers=things, networks=things, volumes=things, images=things, info=refuse)
    monkeypatch.setattr("toolkit.lab.engine.connect_client", lambda timeout: client)
    monkeypatch.setattr("shutil.which", lambda name: name)
    lab = object.__new__(LabEngine)
    lab.client = client  # type: ignore[assignment]
    with pytest.raises(LabError) as caught:
        request_(lab)
    assert caught.value.what == f"{what}: no space left on device"
    assert caught.value.fix.startswith("docker ps -a  #")


class Engine:
    """An engine in which the user has a container and an image with the labels of a practice cluster."""

    def __init__(self) -> None:
        labels = {"toolkit.lab": "lab", "toolkit.lab.host": "box1"}
        names = ("mine", "toolkit-lab-lab-box1", "toolkit-lab-other-box1", "toolkit-lab-lab-helper-0123")
        self.all = [SimpleNamespace(name=name, labels=dict(labels)) for name in names]
        del self.all[3].labels["toolkit.lab.host"]
        self.all.append(SimpleNamespace(name="mine-too", labels={"toolkit.lab": "odd"}))
        self.containers = SimpleNamespace(list=self.listed)
        self.networks = self.volumes = SimpleNamespace(list=lambda filters: [])
        self.images = SimpleNamespace(list=self.listed_images)

    def listed(self, filters: dict[str, str], **options: bool) -> list[Any]:
        name, _, value = filters["label"].partition("=")
        return [c for c in self.all if name in c.labels and value in ("", c.labels[name])]

    def listed_images(self, name: str = "", filters: object = None) -> list[Any]:
        return [SimpleNamespace(id="own" if name == "toolkit-lab-host" else "foreign")]


def test_labels_of_an_image_make_no_container_one_of_a_practice_cluster() -> None:
    """`lab down` removes its containers, and runs their image as root with the control groups."""
    lab = object.__new__(LabEngine)
    lab.client = Engine()  # type: ignore[assignment]
    seen = lab.find("lab")
    assert [c.name for c in seen.hosts.values()] == ["toolkit-lab-lab-box1"]
    assert [c.name for c in seen.helpers] == ["toolkit-lab-lab-helper-0123"]
    assert lab.labs() == ("lab",) and lab.lab_image() == "own"
    assert lab.helper("lab") != lab.helper("lab")


def test_a_second_up_starts_stopped_hosts_and_unpauses_paused_ones() -> None:
    ran: list[str] = []
    lab = SimpleNamespace(
        spec=SimpleNamespace(), engine=SimpleNamespace(do=lambda line: ran.append(line.line()))
    )
    hosts = tuple(SimpleNamespace(name=f"box{n}", container=f"lab-box{n}") for n in (1, 2, 3))
    there = {"box1": "running", "box2": "exited", "box3": "paused"}
    changed = Builder._start(lab, hosts, there, {})  # type: ignore[arg-type]
    assert changed == {"box2", "box3"}
    assert sorted(ran) == ["docker start lab-box2", "docker unpause lab-box3"]
