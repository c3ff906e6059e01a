"""Removal of a practice cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound
from requests.exceptions import ReadTimeout

from toolkit.errors import LabError
from toolkit.lab import lifecycle
from toolkit.lab.build import Builder
from toolkit.lab.engine import Found, LabEngine


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
