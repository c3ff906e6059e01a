"""What Ctrl-C means while a job is watched, at moments no terminal can be made to hit."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any, cast

import pytest

from toolkit.cli import watch
from toolkit.cli.signals import Signals
from toolkit.cli.watch import _ask
from toolkit.errors import Detached


class _Screen(io.StringIO):
    """A terminal on which Ctrl-C is pressed once the question is on it, before flush() has come back."""

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        raise KeyboardInterrupt


class _Held:
    held = threading.Lock()


def _pressed_at_once(monkeypatch: pytest.MonkeyPatch) -> _Screen:
    screen = _Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdin", screen)
    return screen


def test_a_second_ctrl_c_while_the_question_is_written_stops_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = Signals()
    screen = _pressed_at_once(monkeypatch)
    assert _ask("the-job", cast(Any, _Held()), signals) == "stop"
    assert "the-job is running" in screen.getvalue()
    assert not _Held.held.locked()


def test_a_signal_while_the_question_is_written_detaches(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = Signals()
    signals.got = 15
    _pressed_at_once(monkeypatch)
    with pytest.raises(Detached) as told:
        _ask("the-job", cast(Any, _Held()), signals)
    assert told.value.exit_code == 128 + 15


def test_a_ctrl_c_while_the_offer_to_kill_is_written_kills_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[object, ...]] = []

    def say(text: str) -> None:
        done.append((text,))
        if "stopping" in text:
            raise KeyboardInterrupt

    def stop(session: Any, job: str, interrupt: bool = False, grace: float | None = None) -> None:
        done.append(("stop", job, grace))

    monkeypatch.setattr(watch, "say", say)
    monkeypatch.setattr("toolkit.jobs.stop", stop)
    monkeypatch.setattr("toolkit.jobs.kill", lambda session, job: done.append(("kill", job)))
    try:
        watch._stop(cast(Any, None), "the-job", Signals())
    except KeyboardInterrupt:
        pytest.fail("the key ended the command, and the job goes on")
    assert done[1:] == [("\nkilling the-job on all hosts",), ("kill", "the-job"), ("stop", "the-job", 0)]
