"""Fixtures of several unit tests: the command line, called as a shell does, and a folder for programs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import toolkit.cluster.session
from tests.unit import docs_check
from tests.unit.container_world import World
from toolkit.cli import app as cli

Run = Callable[..., tuple[int, str, str]]
# Imports all verbs, which a command does when it is called: in a test that takes its time, and some libraries
# open a socket when they are imported, or make modules that have no file.
docs_check.verbs()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest waits first, whatever the order of the others."""
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put back the handler of Ctrl-C: the command replaces it when it ends, as its process does too."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, on_interrupt)


@pytest.fixture
def free_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make all file systems report a number of free bytes."""
    real = os.fstatvfs

    def limit(count: int) -> None:
        def almost_full(descriptor: int) -> os.statvfs_result:
            values = list(real(descriptor))
            values[0], values[1], values[2], values[4] = 1, 1, 1000, count
            return os.statvfs_result(values)

        monkeypatch.setattr(os, "fstatvfs", almost_full)

    return limit


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Call the command in an empty folder: status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def contacted(*args: object, **kwargs: object) -> None:
        raise AssertionError("a host was contacted")

    monkeypatch.setattr(toolkit.cluster.session.Session, "open", contacted)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["toolkit", *words])
        try:
            with handlers_kept():
                cli.main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of the test the one that programs of toolkit/container take for /run/toolkit."""
    monkeypatch.setenv("TOOLKIT_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One host for the programs of toolkit/container; what they started ends with the test."""
    made = World(tmp_path / "root")
    yield made
    made.close()
