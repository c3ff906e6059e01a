"""This machine's engine, where a socket stands for one that hangs."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from toolkit.effects import engine
from toolkit.effects.engine import Engine


def test_an_engine_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and never says a word, as a daemon does that waits for a dead disk."""
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "docker.sock"))
        mute.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        monkeypatch.setattr(engine, "_SAYS_S", 1.0)
        start = time.monotonic()
        assert Engine.find() is None
        assert 0.9 < time.monotonic() - start < 60, "not by the client's own deadline"
