"""The check after each unit test: each kind of thing that a test can leave is found, named and put back."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import left_behind
from tests.left_behind import Before, children, is_library, open_files

ROOT = Path(__file__).resolve().parents[2]
SLEEPS = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]


def import_program() -> None:
    folder = tempfile.mkdtemp()
    Path(folder, "of_a_test.py").touch()
    sys.path.insert(0, folder)
    importlib.import_module("of_a_test")
    shutil.rmtree(folder)


def replace_module() -> None:
    sys.modules["toolkit.errors"] = types.ModuleType("toolkit.errors")


def remove_module() -> None:
    del sys.modules["toolkit.errors"]


def change_variables() -> None:
    os.environ.update(LEFT="1", PATH="/left")
    del os.environ["HOME"]


def remove_folder() -> None:
    Path("left").mkdir()
    os.chdir("left")
    Path.cwd().rmdir()


def start_process() -> None:
    with subprocess.Popen(SLEEPS, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        # As a Popen object that is dropped: nothing waits for the process.
        process.returncode = 0


def start_orphan() -> None:
    subprocess.run(["sh", "-c", 'exec 3>&1; "$@" > /dev/null 3>&- & echo', "sh", *SLEEPS], check=True)


LEAVES: dict[str, tuple[Callable[[], object], list[str]]] = {
    "module": (import_program, ["module of_a_test in sys.modules", "sys.path is ["]),
    "replaced module": (replace_module, ["another module toolkit.errors, or none"]),
    "removed module": (remove_module, ["another module toolkit.errors, or none"]),
    "argument": (lambda: sys.argv.append("left"), ["sys.argv is ["]),
    "variables": (
        change_variables,
        ["variable HOME is None", "variable LEFT is '1', was None", "variable PATH is '/left'"],
    ),
    "folder": (lambda: os.chdir("/"), ["working directory is /, was "]),
    "folder that is gone": (remove_folder, ["working directory is "]),
    "handler": (lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN), ["handler of SIGUSR2 is "]),
    "umask": (lambda: os.umask(0o027), ["umask is 027, was 0"]),
    "collector": (gc.disable, ["garbage collection is off"]),
}
ON_LINUX: dict[str, tuple[Callable[[], object], list[str]]] = {
    "file": (lambda: os.open("/dev/null", os.O_RDONLY), [" of /dev/null"]),
    "pipe": (os.pipe, [" of pipe:", " of pipe:"]),
    "process": (start_process, ["time.sleep(600)"]),
    "orphan": (start_orphan, ["time.sleep(600)"]),
}  # fmt: skip


if sys.platform == "linux":
    LEAVES |= ON_LINUX


@pytest.mark.parametrize("kind", LEAVES)
def test_what_is_left_is_named_and_put_back(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(left_behind, "ENDING_S", 0.0)
    leave, lines = LEAVES[kind]
    before = Before()
    leave()
    left = before.left()
    assert len(left) == len(lines)
    assert all(part in line for part, line in zip(lines, left, strict=True)), left
    assert Before().left() == [] and vars(Before()) == vars(before)


def test_a_thread_that_goes_on_is_named_and_one_that_ends_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before, over = Before(), threading.Event()
    waits = threading.Thread(target=over.wait, name="left", daemon=True)
    waits.start()
    with monkeypatch.context() as patch:
        patch.setattr(left_behind, "ENDING_S", 0.0)
        (line,) = before.left()
    assert line.startswith("thread left, ")
    over.set()
    assert before.left() == [] and not waits.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_process_that_ends_is_not_named_and_its_status_is_read() -> None:
    before = Before()
    if not os.fork():
        os._exit(3)
    assert len(children() - before.children) == 1
    assert before.left() == [] and children() == before.children


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_files_that_only_a_cycle_holds_are_closed() -> None:
    before = Before()
    cycle = [Path(os.devnull).open()]  # noqa: SIM115
    cycle.append(cycle)  # type: ignore[arg-type]
    assert len(open_files()) == len(before.files) + 1
    del cycle
    assert before.left() == []


CONFTEST = """
import sys
from pathlib import Path

import tests.conftest
from tests.conftest import *

tests.conftest.UNIT = Path(__file__).parent
"""
TESTS = """
import os, sys, pytest

def test_first():
    os.environ["LEFT"] = "1"

@pytest.fixture(scope="module")
def shared():
    os.environ["SHARED"] = "1"
    yield
    del os.environ["SHARED"]

def test_second(shared, monkeypatch, tmp_path):
    assert "LEFT" not in os.environ
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OWN", "1")
    monkeypatch.syspath_prepend("/own")
"""


def test_the_test_that_left_something_fails_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    words = ["-p", "no:randomly", "-p", "no:cacheprovider", "-rA", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ERROR test_it.py::test_first - Failed: the test left behind:" in done.stdout
    assert "variable LEFT is '1', was None" in done.stdout
    assert "2 passed, 1 error" in done.stdout


@pytest.mark.parametrize(("folder", "library"), [(sysconfig.get_path("purelib"), True), ("/tmp/own", False)])
def test_a_namespace_package_is_a_library_by_its_folder(folder: str, library: bool) -> None:
    package = types.ModuleType("backports")
    package.__path__ = [f"{folder}/backports"]
    assert is_library("backports", package) == library
