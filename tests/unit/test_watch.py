"""What Ctrl-C means while a job is watched, at moments no terminal can be made to hit."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any, cast

import pytest

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
