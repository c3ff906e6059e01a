"""Deadlines of commands over SSH, held by this machine against an sshd that does not hold them."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest

import toolkit.remote.ssh
from toolkit.core.command import TIMED_OUT, Result, command
from toolkit.errors import ToolkitError, Unreachable
from toolkit.remote.ssh import MARK, SshRunner
from toolkit.remote.ssh_config import Target


class Sshd(paramiko.ServerInterface):
    """Takes commands and leaves them to the test: no `timeout` ends them."""

    def __init__(self) -> None:
        self.asked: queue.Queue[paramiko.Channel] = queue.Queue()

    def check_auth_none(self, username: str) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "none"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, line: bytes) -> bool:
        self.asked.put(channel)
        return True


@pytest.fixture
def sshd(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SshRunner, Sshd]]:
    monkeypatch.setattr(toolkit.remote.ssh, "_LATE_S", 0.2, raising=False)
    here, there = socket.socketpair()
    server, host = paramiko.Transport(there), Sshd()
    server.add_server_key(paramiko.ECDSAKey.generate())
    client = paramiko.Transport(here)
    try:
        server.start_server(threading.Event(), host)
        client.connect()
        client.auth_none("me")
        runner = SshRunner(Target("gpu1", "127.0.0.1"))
        link: Any = SimpleNamespace(
            transport=client,
            connection=SimpleNamespace(create_session=client.open_session),
            lost="",
            close=client.close,
        )
        runner._link = link
        yield runner, host
    finally:
        client.close()
        server.close()
        client.join(10)
        server.join(10)


def _in_thread(runner: SshRunner) -> tuple[threading.Thread, list[Result]]:
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(runner.run(command("x"), 0.3)), daemon=True)
    thread.start()
    return thread, found


def test_a_command_that_prints_all_the_time_is_late_too(sshd: tuple[SshRunner, Sshd]) -> None:
    runner, host = sshd
    thread, found = _in_thread(runner)
    channel = host.asked.get(timeout=10)
    channel.sendall(f"{MARK}\n".encode())
    # More often than the limit: no single wait for output is long.
    for _ in range(200):
        thread.join(0.05)
        if not thread.is_alive():
            break
        with contextlib.suppress(OSError):  # the runner has closed the channel
            channel.sendall(b"x")
    assert [result.status for result in found] == [TIMED_OUT]
    assert found[0].stderr == "the command did not finish within 0.3 s"


def test_a_session_that_sshd_refuses_is_not_a_lost_connection(
    sshd: tuple[SshRunner, Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSH answers "connect failed" to more sessions than its MaxSessions."""
    runner, host = sshd
    refuse = paramiko.common.OPEN_FAILED_CONNECT_FAILED
    monkeypatch.setattr(host, "check_channel_request", lambda kind, chanid: refuse)
    with pytest.raises(ToolkitError) as caught:
        runner.run(command("x"), 5)
    assert not isinstance(caught.value, Unreachable)
    assert caught.value.what == "sshd on the host allows no more sessions on this connection"
    assert caught.value.fix.startswith("on gpu1: set MaxSessions 10 in /etc/ssh/sshd_config")
    assert caught.value.host == "gpu1"


def test_a_status_that_does_not_come_is_waited_for_no_longer(sshd: tuple[SshRunner, Sshd]) -> None:
    runner, host = sshd
    thread, found = _in_thread(runner)
    channel = host.asked.get(timeout=10)
    channel.sendall(f"{MARK}\n".encode())
    channel.shutdown_write()
    thread.join(10)
    assert [result.status for result in found] == [TIMED_OUT]


def test_a_command_that_has_ended_does_not_wait_for_what_feeds_it(
    sshd: tuple[SshRunner, Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkit.remote.ssh, "_DRAIN_S", 60.0, raising=False)
    runner, host = sshd
    more, found = threading.Event(), []

    def source() -> Iterator[bytes]:
        yield b"x"
        more.wait(60)

    def work() -> None:
        found.append(runner.stream(command("x"), lambda data: None, source()))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    channel = host.asked.get(timeout=10)
    channel.sendall(f"{MARK}\n".encode())
    channel.send_exit_status(3)
    channel.close()
    thread.join(30)
    assert [result.status for result in found] == [3]
    more.set()


def test_a_connection_that_this_side_has_closed_is_not_lost(sshd: tuple[SshRunner, Sshd]) -> None:
    runner, host = sshd
    found: list[Exception] = []

    def work() -> None:
        try:
            runner.run(command("x"))
        except Unreachable as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    host.asked.get(timeout=10).sendall(f"{MARK}\n".encode())
    runner.close()
    thread.join(10)
    assert [str(error).splitlines()[0] for error in found] == [
        "gpu1: toolkit closed the connection to the host"
    ]
