"""The step of `lab up` that connects to a new host, against a server on this machine."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from toolkit.errors import LabError
from toolkit.lab.build import greet
from toolkit.lab.spec import LabSpec
from toolkit.lab.topology import LabHost, lab_hosts


@pytest.fixture
def host() -> LabHost:
    """A host whose address is one of this machine."""
    return lab_hosts(LabSpec("lab", "/tmp/lab", hosts=1), "127.0.0.0/24")[0]


@pytest.fixture
def server(host: LabHost) -> Iterator[socket.socket]:
    """A server that refuses connections until it listens."""
    with contextlib.closing(socket.socket()) as server:
        server.bind((host.address, 0))
        yield server


def answer(server: socket.socket, words: bytes) -> None:
    """Listen, and answer one connection."""

    def once() -> None:
        with server.accept()[0] as link:
            link.sendall(words)

    server.listen()
    Thread(target=once, daemon=True).start()


def test_a_host_that_refuses_at_first_is_asked_again(
    host: LabHost, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            answer(server, b"SSH-2.0-x\r\n")

    monkeypatch.setattr("toolkit.lab.build.time.sleep", pause)
    greet(host, server.getsockname()[1])
    assert len(pauses) == 2


def test_a_host_that_is_not_an_sshd_cannot_be_reached(host: LabHost, server: socket.socket) -> None:
    answer(server, b"220 smtp\r\n")
    with pytest.raises(LabError, match="your machine cannot reach"):
        greet(host, server.getsockname()[1])
