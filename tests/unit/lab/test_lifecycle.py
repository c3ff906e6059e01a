"""Removal of a practice cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound
from requests.exceptions import ReadTimeout

from tests.unit.container_world import PATIENCE_S
from toolkit.errors import LabError
from toolkit.lab import lifecycle
from toolkit.lab.build import Builder
from toolkit.lab.engine import Found, LabEngine
from toolkit.lab.spec import LabSpec


def engine() -> Any:
    return SimpleNamespace(lab_image=lambda: "", do=lambda command: None)


def thing(name: str, error: Exception | None, removed: list[str]) -> Any:
    def remove(**options: bool) -> None:
        if error:
            raise error
        removed.append(name)

    return SimpleNamespace(id=name, name=name, remove=remove, attrs={"Image": ""})


def found(error: Exception | None, removed: list[str]) -> Found:
    return Found(
        hosts={"box1": thing("box1", error, removed), "box2": thing("box2", None, removed)},
        helpers=(),
        networks=(thing("net", error, removed),),
        volumes=(thing("disk1", error, removed), thing("disk2", None, removed)),
    )


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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    nothing = Found({}, (), (), ())
    world: dict[str, Any] = {"found": nothing}
    events: list[str] = []
    waits = threading.Event()

    def go(builder: Builder, before: Found) -> Any:
        if before is not nothing:
            raise LabError("the second one fails")
        thread.start()
        assert waits.wait(PATIENCE_S)
        world["found"] = found(None, events)
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


def test_a_down_waits_for_an_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
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
        (lambda lab: lab.labs(), "cannot list the practice clusters of this machine"),
        (
            lambda lab: lab.find("lab"),
            "cannot list the containers, networks and volumes of practice cluster lab",
        ),
        (lambda lab: lab.subnets(), "cannot list the networks of this machine's Docker engine"),
        (lambda lab: lab.lab_image(), "cannot list the images of practice hosts"),
        (lambda lab: lab.has_image("x:1"), "cannot inspect image x:1"),
        (lambda lab: LabEngine(), "cannot read the properties of the Docker engine"),
    ],
    ids=["labs", "find", "subnets", "lab_image", "has_image", "info"],
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
