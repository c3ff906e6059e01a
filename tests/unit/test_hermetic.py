"""The ban of tests/conftest.py holds, and tests without an engine vanish nowhere."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_socket

from tests import conftest
from tests.conftest import KEPT, require_engine


@pytest.mark.filterwarnings("ignore:A test tried to use socket")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
def test_no_socket_can_be_opened(family: socket.AddressFamily) -> None:
    with pytest.raises(pytest_socket.SocketBlockedError):
        socket.socket(family)


def test_no_settings_and_no_home_of_the_person_who_runs_the_tests() -> None:
    assert [n for n in os.environ if n.startswith("TOOLKIT_") and n not in KEPT] == []
    assert [p.name for p in Path("~/.ssh").expanduser().iterdir()] == ["config"]


@pytest.mark.skipif(not shutil.which("ssh"), reason="there is no ssh program on this machine")
def test_ssh_reads_the_empty_home() -> None:
    config = Path.home() / ".ssh" / "config"
    config.write_text("Host probe\n  HostName 192.0.2.1\n")
    try:
        done = subprocess.run(["ssh", "-G", "--", "probe"], capture_output=True, text=True, check=True)
    finally:
        config.write_text("")
    assert "hostname 192.0.2.1" in done.stdout.splitlines()


@pytest.mark.parametrize("ci", ["true", "1", "yes"])
def test_without_an_engine_ci_fails(ci: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="no engine"):
        require_engine("no engine", ci)


@pytest.mark.parametrize("ci", ["", "false", "0"])
def test_without_an_engine_a_laptop_skips_visibly(ci: str) -> None:
    with pytest.raises(pytest.skip.Exception, match="no engine"):
        require_engine("no engine", ci)


def test_with_an_engine_the_test_runs() -> None:
    require_engine("", "true")


@pytest.mark.parametrize(
    ("words", "shuffled"),
    [
        (["tests/unit"], True),
        (["tests/unit/monitor/test_top.py::test_x", "tests/unit/checks"], True),
        (["tests"], False),
        (["tests/integration", "tests/e2e"], False),
        (["tests/unit", "tests/e2e/test_check.py"], False),
    ],
)
def test_only_a_run_of_unit_tests_alone_is_shuffled(words: list[str], shuffled: bool) -> None:
    option = SimpleNamespace(randomly_reorganize=True, randomly_reset_seed=True)
    folder = SimpleNamespace(dir=Path(conftest.__file__).parents[1])
    config: Any = SimpleNamespace(args=words, option=option, invocation_params=folder)
    conftest.pytest_configure(config)
    assert (option.randomly_reorganize, option.randomly_reset_seed) == (shuffled, shuffled)
