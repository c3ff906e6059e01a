"""`toolkit exec` and the Python methods that do the same: how long a command may run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import Run
from toolkit.api.cluster import Cluster
from toolkit.cli.enter import _put_named
from toolkit.core.command import Result

HOSTS = "cluster: demo\nimage: toolkit:cpu\nhosts:\n  gpu1: {}\n  gpu2: {}\n"


class RecordingSession:
    """A session that records the time limit of each command in place of running it."""

    def __init__(self) -> None:
        self.limits: list[float | None] = []

    def require_own(self) -> None:
        """Accept the cluster."""

    def run_inside(self, host: str, argv: Sequence[str], timeout: float | None, *sinks: Any) -> Result:
        self.limits.append(timeout)
        return Result(127 if argv[0] == "all" else 0, "", "")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RecordingSession:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    recording = RecordingSession()

    @contextmanager
    def opened(*args: object, **kwargs: object) -> Iterator[RecordingSession]:
        yield recording

    monkeypatch.setattr("toolkit.cli.enter.connect", opened)
    monkeypatch.setattr(Cluster, "connect", opened)
    return recording


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        (("sleep", "900"), [None]),
        (("gpu2", "--", "sleep", "900"), [None]),
        (("--json", "sleep", "900"), [None]),
        (("--all", "sleep", "900"), [None, None]),
        (("--all", "--json", "sleep", "900"), [None, None]),
        (("--timeout", "5", "sleep", "900"), [5.0]),
        (("--all", "--timeout", "5", "sleep", "900"), [5.0, 5.0]),
    ],
)
def test_exec_sets_a_time_limit_only_if_timeout_is_given(
    run: Run, session: RecordingSession, words: tuple[str, ...], limits: list[float | None]
) -> None:
    assert run("exec", *words)[0] == 0
    assert session.limits == limits


def test_the_api_sets_a_time_limit_only_if_timeout_is_given(
    session: RecordingSession, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path / "hosts.yaml")
    cluster.execute("gpu2", "sleep", "900")
    cluster.on_all("sleep", "900")
    cluster.execute("gpu2", "sleep", "900", timeout=5.0)
    cluster.on_all("sleep", "900", timeout=5.0)
    assert session.limits == [None, None, None, 5.0, 5.0, 5.0]


def test_exec_names_the_hosts_if_there_is_no_such_program(run: Run, session: RecordingSession) -> None:
    status, _, err = run("exec", "all", "hostname")
    assert status == 127
    hint = "to run a command on every host, use --all"
    assert err == f"all is not a host in hosts.yaml, which lists gpu1, gpu2; {hint}\n"
    many = "".join(f"  gpu{number}: {{}}\n" for number in range(1, 65))
    Path("hosts.yaml").write_text(f"cluster: demo\nimage: toolkit:cpu\nhosts:\n{many}")
    assert "which lists gpu[1-64];" in run("exec", "all", "hostname")[2]
    assert run("exec", "gpu2", "--", "all")[2] == ""


def test_a_host_cannot_print_under_the_name_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    for odd in ("\b" * 9, "\r", "\x0b", "\x85", "\u2028", "\n"):
        _put_named("gpu1", f"a{odd}[gpu2] forged\n", False)
        lines = capsys.readouterr().out.split("\n")
        assert lines[-1] == "" and all(line.startswith("[gpu1] ") for line in lines[:-1])
        assert not any(set(line) & set("\b\r\x0b") for line in lines)
    _put_named("gpu1", "a\bb\n", True)
    assert capsys.readouterr().out == "[gpu1] a\bb\n"


def test_exec_on_all_hosts_names_the_hosts_on_which_the_command_failed(
    run: Run, session: RecordingSession
) -> None:
    assert run("exec", "--all", "all") == (1, "", "gpu1, gpu2: exit code 127\n")
    assert run("exec", "--all", "true") == (0, "", "")
