"""The caller's side of a container session: queried, lost, reopened, closed."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import toolkit.remote.container_session
from tests.unit.code_here import HOST, ContainerHere
from toolkit.core.command import Command, Result
from toolkit.core.runner import ContainerRunner, LocalRunner, Sink
from toolkit.errors import ToolkitError
from toolkit.protocol.session import ENDED, Heard
from toolkit.remote.container_session import Desk, Desks

CONTAINER = f"{HOST}-container"
NO_JOBS = Heard(jobs=())


@pytest.fixture
def host(tmp_path: Path) -> ContainerHere:
    (tmp_path / "jobs").mkdir()
    return ContainerHere(tmp_path)


@pytest.fixture
def desks() -> Iterator[Desks]:
    desks = Desks()
    yield desks
    desks.leave()


def test_one_desk_for_all_that_is_asked(host: ContainerHere, desks: Desks) -> None:
    desk = desks.open(host, CONTAINER)
    assert desks.open(host, CONTAINER) is desk
    assert desks.ask("other", {"do": "jobs"}, "jobs") == ENDED and desks.take("other") is None
    assert desks.ask(HOST, {"do": "jobs"}, "jobs") == NO_JOBS == desks.ask(HOST, {"do": "jobs"}, "jobs")
    desk.leave()
    assert desk.finish().ok and desk.hear("x") == ENDED == desk.hear("x")


def test_nobody_answers_where_no_desk_is(host: ContainerHere, desks: Desks) -> None:
    assert desks.ask(HOST, {"do": "jobs"}, "jobs") == ENDED and desks.take(HOST) is None


def test_a_desk_that_is_gone_is_opened_anew(host: ContainerHere, desks: Desks) -> None:
    host.kill_after = 0.0
    first = desks.open(host, CONTAINER)
    assert not first.finish().ok
    assert desks.ask(HOST, {"do": "jobs"}, "jobs") == ENDED
    host.kill_after = None
    assert desks.open(host, CONTAINER) is not first
    assert desks.ask(HOST, {"do": "jobs"}, "jobs") == NO_JOBS


def test_who_takes_a_desk_has_it_alone(host: ContainerHere, desks: Desks) -> None:
    desk = desks.open(host, CONTAINER)
    assert desks.take(HOST) is desk
    assert desks.take(HOST) is None and desks.open(host, CONTAINER) is not desk
    assert desk.finish().ok


def test_all_but_one_are_left(host: ContainerHere, desks: Desks) -> None:
    desk = desks.open(host, CONTAINER)
    desks.leave(but=HOST)
    assert not desk.has_ended and desks.take(HOST) is desk
    assert desk.finish().ok
    other = desks.open(host, CONTAINER)
    desks.leave()
    assert other.finish().ok and desks.take(HOST) is None


# Deadlines


@pytest.fixture
def stuck(host: ContainerHere, desks: Desks) -> Iterator[Desk]:
    """A session whose program on the host hangs, as if it read from a lost server."""
    desk = desks.open(host, CONTAINER)
    assert desks.ask(HOST, {"do": "jobs"}, "jobs") == NO_JOBS
    host.running[-1].send_signal(signal.SIGSTOP)
    yield desk
    host.running[-1].send_signal(signal.SIGCONT)


def test_a_host_that_does_not_answer_is_named_with_what_was_waited_for(
    desks: Desks, stuck: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkit.remote.container_session, "ANSWER_S", 0.2, raising=False)
    desk = stuck
    for _ in range(2):  # at once the second time
        with pytest.raises(ToolkitError) as late:
            desk.say({"do": "jobs"})
            desk.hear("the list of its jobs")
        assert late.value.host == HOST and "waited for the list of its jobs" in late.value.what
        assert "has not answered for 0.2 s" in late.value.what and "toolkit check" in late.value.fix
    assert desk.has_ended and desks.ask(HOST, {"do": "jobs"}, "jobs") == ENDED, "it is of no further use"


class Clock:
    """Moves when something is waited for; what happens meanwhile is the test's."""

    def __init__(self, meanwhile: Callable[[float], object]) -> None:
        self.now, self.meanwhile = 0.0, meanwhile

    def __call__(self) -> float:
        return self.now

    def get(self, timeout: float) -> Heard:
        self.now += min(timeout, 9.0)
        if answer := self.meanwhile(self.now):
            return Heard(done=bool(answer))
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
            desk._take(b"\n")
        return now > 105

    clock = Clock(moves)
    desk = Desk(ContainerRunner(nothing, CONTAINER), clock)
    desk.give(b"x" for _ in range(100))
    words = desk._words()
    next(words)
    desk._heard = clock  # type: ignore[assignment]
    assert desk.hear("the code", 10.0) == Heard(done=True) and clock.now > 100
    quiet = Clock(lambda now: None)
    desk._clock, desk._heard = quiet, quiet  # type: ignore[assignment]
    with pytest.raises(ToolkitError, match="has not answered for 10 s; toolkit waited for the code"):
        desk.hear("the code", 10.0)
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
    desk = Desk(ContainerRunner(nothing, CONTAINER))
    desk._take(b'{"working":true}\n{"done":true}\n')
    assert desk.hear("x") == Heard(done=True)


def test_what_feeds_a_program_that_has_ended_ends_too(nothing: Nothing) -> None:
    desk = Desk(ContainerRunner(nothing, CONTAINER))
    nothing.left.set()
    assert desk.hear("its end") == ENDED and desk._told.get(timeout=30) is None
