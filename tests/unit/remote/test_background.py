"""A value that is made in the background."""

from __future__ import annotations

import threading

import pytest

from tests.unit.container_world import PATIENCE_S
from toolkit.remote.fanout import Background


def test_the_function_runs_while_its_owner_does_something_else() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def make() -> int:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return 7

    value = Background("seven", make)
    assert begun.wait(PATIENCE_S)
    go_on.set()
    assert value.result() == 7 and value.result() == 7


@pytest.mark.parametrize("error", [OSError("no engine"), KeyboardInterrupt()])
def test_its_owner_gets_the_error_and_nobody_else(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unheard: list[object] = []
    monkeypatch.setattr(threading, "excepthook", unheard.append)

    def fail() -> None:
        raise error

    value = Background("fails", fail)
    with pytest.raises(type(error)) as caught:
        value.result()
    assert caught.value is error
    assert unheard == [] and capsys.readouterr().err == ""
