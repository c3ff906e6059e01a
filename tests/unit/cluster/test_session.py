"""A session's commands in containers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit import cluster_world as world
from toolkit.cluster.session import MOST_OUTPUT, Session
from toolkit.core.command import Command, Result
from toolkit.core.runner import LocalRunner
from toolkit.errors import Unreachable
from toolkit.remote.local_image import LateEngine


def test_the_output_of_a_command_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """All hosts can print without end at the same time."""

    def follow(runner: object, command: object, out: Any, err: Any, timeout: object) -> Result:
        for _ in range(3):
            out(b"x" * (MOST_OUTPUT // 2))
        err(b"its own words")
        return Result(3)

    session = Session(world.inventory())
    session.runners = {"gpu1": None}  # type: ignore[dict-item]
    monkeypatch.setattr(session, "container", lambda host: SimpleNamespace(follow=follow))
    done = session.run_inside("gpu1", ["ls"], None)
    assert (done.status, len(done.stdout)) == (3, MOST_OUTPUT)
    assert done.stderr == (
        "its own words\n"
        "toolkit: the command on gpu1 printed 2.1 MB more than toolkit keeps in memory; "
        "to print the complete output: toolkit exec gpu1 -- COMMAND\n"
    )
    passed: list[bytes] = []
    whole = session.run_inside("gpu1", ["ls"], None, passed.append, passed.append)
    assert (whole.stdout, sum(map(len, passed))) == ("", 3 * (MOST_OUTPUT // 2) + 13)


def test_a_missing_program_is_named_with_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(runner: object, command: Command, out: Any, err: Any, timeout: object) -> Result:
        done = LocalRunner().run(command.limited(60))
        out(done.stdout.encode())
        err(done.stderr.encode())
        return Result(done.status)

    session = Session(world.inventory())
    session.runners = {"gpu1": None}  # type: ignore[dict-item]
    monkeypatch.setattr(session, "container", lambda host: SimpleNamespace(follow=follow))
    missing = session.run_inside("gpu1", ["no-such-program", "x"], None)
    assert (missing.status, missing.stderr) == (127, "no-such-program: not found on gpu1\n")
    done = session.run_inside("gpu1", ["printf", "%s,", "a b", "", "-c"], None)
    assert (done.status, done.stdout, done.stderr) == (0, "a b,,-c,", "")
    assert session.run_inside("gpu1", ["sh", "-c", "exit 7"], None).status == 7


def test_a_lost_connection_and_a_failed_one_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each try leaves a proxy, and a place at a jump host, which then stays connected."""

    class Runner:
        def __init__(self, error: Exception | None = None, is_open: bool = True) -> None:
            self.error, self.is_open, self.closed = error, is_open, False

        def open(self) -> None:
            if self.error:
                raise self.error

        def close(self) -> None:
            self.closed = True

    lost, failed, found = Runner(is_open=False), Runner(Unreachable("no route", "")), Runner()
    session: Any = Session(world.inventory())
    session.runners = {"gpu1": lost}
    coming = iter([failed, found])
    monkeypatch.setattr(session, "runner", lambda name: next(coming))
    with pytest.raises(Unreachable):
        session.reconnect("gpu1")
    assert lost.closed and failed.closed
    assert session.reconnect("gpu1") is found is session.runners["gpu1"] and not found.closed
    session.close()
    assert found.closed


def test_a_session_that_was_closed_meanwhile_connects_to_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C can come while `ssh -G` runs for a host, whose runner `close` does not know yet."""
    session: Any = Session(world.inventory())

    def runner(name: str) -> SimpleNamespace:
        session.close()
        return SimpleNamespace(name=name, open=lambda: pytest.fail("connected"), close=lambda: None)

    monkeypatch.setattr(session, "runner", runner)
    session.meet(["gpu1"])
    error = session.errors["gpu1"]
    assert isinstance(error, Unreachable) and error.what == "toolkit closed the connection to the host"


def test_a_local_engine_that_does_not_respond_stops_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts can have the image; messages about a missing image contain the reason."""

    def late(reference: str, engine: str) -> None:
        raise LateEngine("image inspect")

    monkeypatch.setattr("toolkit.cluster.session.local_image", late)
    with Session(world.inventory()) as session:
        session.facts = dict(world.cluster_facts())
        monkeypatch.setattr(session, "try_networks", lambda: session.settled)
        assert session.find_local_image() is None
        observed = session.observe()
        assert observed.local_silence.endswith("did not answer `docker image inspect` within 30 s")
        assert session.observe(running=True).local_silence == ""
