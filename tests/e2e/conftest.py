"""One practice cluster for all end-to-end tests: three hosts, three kinds of engine and image store."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.care import CARE, practice_cluster
from tests.e2e.world import CARDS, LAB, LASTING, Toolkit, containers
from toolkit.lab.spec import LabSpec

# Host by host: engine 26 with overlay2, engine 20.10 with overlay2, engine 26 with the containerd store.
ENGINES = ("new", "old", "containerd")


# Two shares of the files run side by side, each on labs of its own: see scripts/test.sh. A file that is not
# named here belongs to the first share, which has the cluster `two` up nearly all the time.
BESIDE = (
    *("test_beside", "test_care", "test_check", "test_check_network", "test_engines", "test_fault_matrix"),
    *(
        "test_faults",
        "test_images",
        "test_init",
        "test_install",
        "test_lab",
        "test_network_choice",
        "test_pods",
    ),
    *("test_cables", "test_podman", "test_slurm", "test_stalled_disk"),
)


def in_share(path: Path, share: str) -> bool:
    """Return whether a file of tests belongs to the share `first` or `beside`; with no name, to any."""
    return not share or (share == "beside") == (path.stem in BESIDE or path.parent.name == "integration")


def pytest_configure() -> None:
    """Accept Ctrl-C, which a shell turns off for what it runs in its background."""
    if os.environ.get("TOOLKIT_TEST_SHARE"):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = os.environ.get("TOOLKIT_TEST_SHARE", "")
    left = [item for item in items if not in_share(item.path, share)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if in_share(item.path, share)]


# After a test that failed: see care.py

_REPAIRS: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """Record whether the fixture is one that several tests share."""
    LASTING.append(fixturedef.scope != "function")
    try:
        return (yield)
    finally:
        LASTING.pop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give first aid after a failure, before fixtures end on hosts that do not answer."""
    report = yield
    if report.failed and item.get_closest_marker("lab"):
        CARE.needed = item.nodeid
        if call.when != "teardown":
            _note(f"first aid after {item.nodeid} ({call.when})", CARE.first_aid)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Repair the labs before the test that follows a failed one."""
    if not item.get_closest_marker("lab"):
        return
    if CARE.needed and not CARE.broken:
        _note(f"after {CARE.needed}", CARE.restore)
    if CARE.broken:
        # It would fail as well, and show nothing about itself.
        pytest.skip(f"no healthy practice cluster: {CARE.broken}")


def _note(title: str, act: Callable[[], list[str]]) -> None:
    try:
        _REPAIRS.append(f"{title}: {'; '.join(act()) or 'everything was healthy'}")
    except Exception as error:
        done = "; ".join(CARE.done)
        _REPAIRS.append(f"{title}: {done}; FAILED: {error!r}")
        if act == CARE.restore:
            CARE.broken = f"{title}: {error!r}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _REPAIRS:
        terminalreporter.section("practice clusters after failed tests")
        for line in _REPAIRS:
            terminalreporter.line(line)


@contextmanager
def tended(spec: LabSpec, keep: bool) -> Iterator[None]:
    """Bring up a practice cluster whose hosts are repaired after a failed test."""
    with practice_cluster(spec, keep):
        CARE.adopt(spec)
        try:
            yield
        finally:
            CARE.release(spec.name)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a lab of three hosts; TOOLKIT_KEEP_LAB=1 leaves it for the next run."""
    keep = os.environ.get("TOOLKIT_KEEP_LAB") == "1"
    folder = Path(".lab", LAB).resolve() if keep else tmp_path_factory.mktemp("lab")
    with tended(LabSpec(LAB, str(folder), hosts=3, engines=ENGINES), keep):
        yield folder


@pytest.fixture(scope="session")
def cards(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Toolkit]:
    """A cluster on a lab of its own: two cards a host, and ssh comes in by the slow one."""
    keep = os.environ.get("TOOLKIT_KEEP_LAB") == "1"
    place = Path(".lab", CARDS).resolve() if keep else tmp_path_factory.mktemp("cards")
    spec = LabSpec(CARDS, str(place), hosts=2, engines=("new", "old"), management="100mbit")
    with tended(spec, keep):
        yield Toolkit(place / "hosts.yaml", folder)


def hosts_file(
    lab: Path, to: Path, cluster: str, names: tuple[str, ...], launcher: str = "horovodrun"
) -> Path:
    """Write a hosts file with some of the lab's hosts; the first is main.

    Args:
        launcher: for jobs that name none. It is not the default, auto: jobs of many tests import no library,
            and Horovod's launcher starts more processes that a test can find.
    """
    data = yaml.safe_load((lab / "hosts.yaml").read_text())
    data |= {"cluster": cluster, "main": names[0], "launcher": launcher}
    data["hosts"] = {name: data["hosts"][name] for name in names}
    path = to / f"{cluster}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder in which the commands under test run, with the examples as a user has them."""
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
