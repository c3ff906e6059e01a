"""The caller's side of a container session: queried, lost, reopened, closed."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import toolkit.protocol.decode
import toolkit.remote.container_session
from tests.unit.code_here import HOST, ContainerHere
from toolkit.core.command import Command, Result
from toolkit.core.runner import ContainerRunner, LocalRunner, Sink
from toolkit.errors import ToolkitError
from toolkit.protocol.jobs import ENDED, SessionAnswer
from toolkit.remote.container_session import ContainerSession, ContainerSessions

CONTAINER = f"{HOST}-container"
NO_JOBS = SessionAnswer(jobs=())


@pytest.fixture
def host(tmp_path: Path) -> ContainerHere:
    (tmp_path / "jobs").mkdir()
    return ContainerHere(tmp_path)


@pytest.fixture
def container_sessions() -> Iterator[ContainerSessions]:
    container_sessions = ContainerSessions()
    yield container_sessions
    container_sessions.leave()


def test_one_session_answers_all_requests(host: ContainerHere, container_sessions: ContainerSessions) -> None:
    container_session = container_sessions.open(host, CONTAINER)
    assert container_sessions.open(host, CONTAINER) is container_session
    assert (
        container_sessions.ask("other", {"do": "jobs"}, "jobs") == ENDED
        and container_sessions.take("other") is None
    )
    assert (
        container_sessions.ask(HOST, {"do": "jobs"}, "jobs")
        == NO_JOBS
        == container_sessions.ask(HOST, {"do": "jobs"}, "jobs")
    )
    container_session.leave()
    assert container_session.finish().ok and container_session.receive(
        "x"
    ) == ENDED == container_session.receive("x")


def test_ask_without_a_session_returns_ended(
    host: ContainerHere, container_sessions: ContainerSessions
) -> None:
    assert (
        container_sessions.ask(HOST, {"do": "jobs"}, "jobs") == ENDED
        and container_sessions.take(HOST) is None
    )


def test_open_replaces_an_ended_session(host: ContainerHere, container_sessions: ContainerSessions) -> None:
    host.kill_after = 0.0
    first = container_sessions.open(host, CONTAINER)
    assert not first.finish().ok
    assert container_sessions.ask(HOST, {"do": "jobs"}, "jobs") == ENDED
    host.kill_after = None
    assert container_sessions.open(host, CONTAINER) is not first
    assert container_sessions.ask(HOST, {"do": "jobs"}, "jobs") == NO_JOBS


def test_take_hands_the_session_over(host: ContainerHere, container_sessions: ContainerSessions) -> None:
    container_session = container_sessions.open(host, CONTAINER)
    assert container_sessions.take(HOST) is container_session
    assert (
        container_sessions.take(HOST) is None
        and container_sessions.open(host, CONTAINER) is not container_session
    )
    assert container_session.finish().ok


def test_all_but_one_are_left(host: ContainerHere, container_sessions: ContainerSessions) -> None:
    container_session = container_sessions.open(host, CONTAINER)
    container_sessions.leave(but=HOST)
    assert not container_session.has_ended and container_sessions.take(HOST) is container_session
    assert container_session.finish().ok
    other = container_sessions.open(host, CONTAINER)
    container_sessions.leave()
    assert other.finish().ok and container_sessions.take(HOST) is None


# Deadlines


@pytest.fixture
def stuck(host: ContainerHere, container_sessions: ContainerSessions) -> Iterator[ContainerSession]:
    """A session whose program on the host hangs, as if it read from a lost server."""
    container_session = container_sessions.open(host, CONTAINER)
    assert container_sessions.ask(HOST, {"do": "jobs"}, "jobs") == NO_JOBS
    host.running[-1].send_signal(signal.SIGSTOP)
    yield container_session
    host.running[-1].send_signal(signal.SIGCONT)


def test_a_host_that_does_not_answer_is_named_with_what_was_waited_for(
    container_sessions: ContainerSessions, stuck: ContainerSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkit.remote.container_session, "ANSWER_S", 0.2, raising=False)
    container_session = stuck
    for _ in range(2):  # at once the second time
        with pytest.raises(ToolkitError) as late:
            container_session.send({"do": "jobs"})
            container_session.receive("the job list")
        assert late.value.host == HOST and "waited for the job list" in late.value.what
        assert "has not answered for 0.2 s" in late.value.what and "toolkit check" in late.value.fix
    assert container_session.has_ended and container_sessions.ask(HOST, {"do": "jobs"}, "jobs") == ENDED, (
        "it is of no further use"
    )


class Clock:
    """Moves when something is waited for; what happens meanwhile is the test's."""

    def __init__(self, meanwhile: Callable[[float], object]) -> None:
        self.now, self.meanwhile = 0.0, meanwhile

    def __call__(self) -> float:
        return self.now

    def get(self, timeout: float) -> SessionAnswer:
        self.now += min(timeout, 9.0)
        if answer := self.meanwhile(self.now):
            return SessionAnswer(done=bool(answer))
        raise queue.Empty

    def put(self, heard: object) -> None:
        """The end of the process."""


@pytest.mark.parametrize("way", ["sent", "came"])
def test_a_deadline_counts_from_the_last_byte_either_way(nothing: Nothing, way: str) -> None:
    """Sending goes on for 100 s, and the answer takes no longer than 10 s from then."""

    def moves(now: float) -> bool:
        if now < 100 and way == "sent":
            next(words)
        elif now < 100:
            container_session._take(b"\n")
        return now > 105

    clock = Clock(moves)
    container_session = ContainerSession(ContainerRunner(nothing, CONTAINER), clock)
    container_session.send_bytes(b"x" for _ in range(100))
    words = container_session._words()
    next(words)
    container_session._answers = clock  # type: ignore[assignment]
    assert container_session.receive("the code", 10.0) == SessionAnswer(done=True) and clock.now > 100
    quiet = Clock(lambda now: None)
    container_session._clock, container_session._answers = quiet, quiet  # type: ignore[assignment]
    with pytest.raises(ToolkitError, match="has not answered for 10 s; toolkit waited for the code"):
        container_session.receive("the code", 10.0)
    assert quiet.now == 10.0


class Nothing(LocalRunner):
    """A host on which the program says nothing, and ends when it is left."""

    def __init__(self) -> None:
        self.left = threading.Event()

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        self.left.wait(60)
        return Result(0)


@pytest.fixture
def nothing() -> Iterator[Nothing]:
    runner = Nothing()
    yield runner
    runner.left.set()


def test_signs_of_life_are_no_answer(nothing: Nothing) -> None:
    container_session = ContainerSession(ContainerRunner(nothing, CONTAINER))
    container_session._take(b'{"working":true}\n{"done":true}\n')
    assert container_session.receive("x") == SessionAnswer(done=True)


def test_an_answer_that_is_too_large_is_no_output_of_the_engine(
    nothing: Nothing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a command would wait for it until its deadline."""
    monkeypatch.setattr(toolkit.protocol.decode, "_MOST_ITEMS", 20)
    container_session = ContainerSession(ContainerRunner(nothing, CONTAINER))
    container_session._take(b"Error response from daemon: " + b"," * 10 + b"\n")
    with pytest.raises(ToolkitError, match=r"an answer of the container session .* more than 20 items"):
        container_session._take(b'{"needs": [' + b"[1,2]," * 20 + b"[1,2]]}\n")


def test_what_feeds_a_program_that_has_ended_ends_too(nothing: Nothing) -> None:
    container_session = ContainerSession(ContainerRunner(nothing, CONTAINER))
    nothing.left.set()
    assert (
        container_session.receive("its end") == ENDED and container_session._outgoing.get(timeout=30) is None
    )


@pytest.mark.parametrize("line", [b'{"done":true}\n', b'{"done":true,"command":"%s"}\n' % (b"x" * (1 << 21))])
def test_answers_that_were_not_requested_are_not_kept_without_end(nothing: Nothing, line: bytes) -> None:
    container_session = ContainerSession(ContainerRunner(nothing, CONTAINER))
    for _ in range(50):  # received one after another, they have no limit
        container_session._take(line)
        assert container_session.receive("x").done
    with pytest.raises(ToolkitError, match="more answers than toolkit requested") as error:
        for _ in range(100):
            container_session._take(line)
    assert error.value.host == nothing.name


def test_signs_of_life_are_not_kept(nothing: Nothing) -> None:
    container_session = ContainerSession(ContainerRunner(nothing, CONTAINER))
    for _ in range(1000):
        container_session._take(b'{"working":true}\n')
    assert container_session._answers.empty()
