"""One practice cluster for all end-to-end tests: three hosts, three kinds of engine and image store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import CARDS, LAB, Toolkit, containers
from toolkit.lab.manage import lab_down, lab_up
from toolkit.lab.spec import LabSpec

# Host by host: engine 26 with overlay2, engine 20.10 with overlay2, engine 26 with the containerd store.
ENGINES = ("new", "old", "containerd")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a lab of three hosts; TOOLKIT_KEEP_LAB=1 leaves it for the next run."""
    keep = os.environ.get("TOOLKIT_KEEP_LAB") == "1"
    folder = Path(".lab", LAB).resolve() if keep else tmp_path_factory.mktemp("lab")
    lab_up(LabSpec(LAB, str(folder), hosts=3, engines=ENGINES), print)
    try:
        yield folder
    finally:
        if not keep:
            lab_down(LAB)


@pytest.fixture(scope="session")
def cards(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Toolkit]:
    """A cluster on a lab of its own: two cards a host, and ssh comes in by the slow one."""
    keep = os.environ.get("TOOLKIT_KEEP_LAB") == "1"
    place = Path(".lab", CARDS).resolve() if keep else tmp_path_factory.mktemp("cards")
    lab_up(LabSpec(CARDS, str(place), hosts=2, engines=("new", "old"), management="100mbit"), print)
    try:
        yield Toolkit(place / "hosts.yaml", folder)
    finally:
        if not keep:
            lab_down(CARDS)


def hosts_file(lab: Path, to: Path, cluster: str, names: tuple[str, ...]) -> Path:
    """Write a hosts file with some of the lab's hosts; the first is main."""
    data = yaml.safe_load((lab / "hosts.yaml").read_text())
    data["cluster"], data["main"] = cluster, names[0]
    data["hosts"] = {name: data["hosts"][name] for name in names}
    path = to / f"{cluster}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands under test run; the examples stand there as a person would have them."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copytree(Path("examples"), folder / "examples")
    return folder


@pytest.fixture(scope="session")
def two(lab: Path, folder: Path) -> Toolkit:
    """A cluster of two hosts whose engines and interface names differ."""
    return Toolkit(hosts_file(lab, folder, "two", ("box1", "box2")), folder)


@pytest.fixture(scope="session")
def three(lab: Path, folder: Path) -> Toolkit:
    """A second cluster, on all three hosts, beside the first."""
    return Toolkit(hosts_file(lab, folder, "three", ("box3", "box1", "box2")), folder)


@pytest.fixture
def up(two: Toolkit) -> Toolkit:
    """The cluster of two hosts, up."""
    two.run("up", check=True)
    return two


@pytest.fixture
def standing(two: Toolkit) -> Toolkit:
    """The same for cases that change nothing about the cluster: the engines say sooner that it is there."""
    ours = [("box1", "toolkit-two-main"), ("box2", "toolkit-two-worker")]
    if any(containers(host, "two", running=True) != [name] for host, name in ours):
        two.run("up", check=True)
    return two
