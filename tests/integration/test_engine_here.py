"""This machine's engine, where a socket stands for one that hangs."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from docker import DockerClient
from docker.models.containers import Container
from docker.models.volumes import Volume

from toolkit.errors import LabError
from toolkit.lab.engine import Found, LabEngine
from toolkit.lab.lifecycle import _remove
from toolkit.remote import engine
from toolkit.remote.engine import Engine


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


def test_an_engine_that_takes_too_long_is_told_in_a_sentence(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "engine"))
        mute.listen()
        client = DockerClient(f"unix://{tmp_path}/engine", version="1.41", timeout=0.2)
        lab = object.__new__(LabEngine)
        lab.client = client
        volume = Volume({"Name": "toolkit-lab-demo-box1"}, client)
        with pytest.raises(LabError, match="cannot remove practice cluster demo completely") as late:
            _remove(
                engine,
                "demo",
                Found({"box1": Container({"Id": "1", "Image": "i"})}, (), (), (volume,)),
                ["1"],
            )
        assert late.value.fix == "toolkit lab down --name demo"
        with pytest.raises(
            LabError, match="cannot list the containers, networks and volumes of practice cluster demo"
        ):
            lab.find("demo")
        client.close()
