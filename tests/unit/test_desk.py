"""The caller's side of the desk: asked, gone, opened anew, left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.code_here import HOST, ContainerHere
from toolkit.effects.desk import Desks

CONTAINER = f"{HOST}-container"


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
    assert desks.ask(HOST, {"do": "jobs"}) == {"jobs": []} == desks.ask(HOST, {"do": "jobs"})
    desk.leave()
    assert desk.finish().ok and desk.hear() == {} == desk.hear()


def test_nobody_answers_where_no_desk_is(host: ContainerHere, desks: Desks) -> None:
    assert desks.ask(HOST, {"do": "jobs"}) == {} and desks.take(HOST) is None


def test_a_desk_that_is_gone_is_opened_anew(host: ContainerHere, desks: Desks) -> None:
    host.kill_after = 0.0
    first = desks.open(host, CONTAINER)
    assert not first.finish().ok
    assert desks.ask(HOST, {"do": "jobs"}) == {}
    host.kill_after = None
    assert desks.open(host, CONTAINER) is not first
    assert desks.ask(HOST, {"do": "jobs"}) == {"jobs": []}


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
