"""Many hosts behind one jump host, played by SSH servers of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import paramiko
import pytest

from tests.unit.container_world import wait_for
from toolkit.core.command import command
from toolkit.errors import Unreachable
from toolkit.remote.connect import Gateways
from toolkit.remote.ssh import MARK, SshRunner
from toolkit.remote.ssh_config import Target

HOSTS = 12


class Server(paramiko.ServerInterface):
    """Accepts the key, answers every command with `ok`, and connects to where it is asked to."""

    def __init__(self) -> None:
        self.transport: paramiko.Transport | None = None

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, line: bytes) -> bool:
        def answer() -> None:
            channel.recv(1)  # the end of its input, which comes after the reply to this request
            channel.sendall(f"{MARK}\nok\n".encode())
            channel.sendall_stderr(f"{MARK}\n".encode())
            channel.send_exit_status(0)
            channel.close()

        threading.Thread(target=answer, daemon=True).start()
        return True

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        transport = self.transport
        assert transport is not None

        def forward() -> None:
            there = socket.create_connection(destination)
            # Another thread can be first, which returns None before the time is over.
            while (channel := transport.accept(10)) is None:
                if not transport.is_active():
                    return
            back = threading.Thread(target=copy, args=(there.recv, channel.sendall, channel, there))
            with there:
                back.start()
                copy(channel.recv, there.sendall, channel, there)
                back.join()

        threading.Thread(target=forward, daemon=True).start()
        return paramiko.common.OPEN_SUCCEEDED


def copy(
    take: Callable[[int], bytes],
    give: Callable[[bytes], object],
    channel: paramiko.Channel,
    there: socket.socket,
) -> None:
    with suppress(OSError, EOFError):
        while data := take(2**15):
            give(data)
    with suppress(OSError, EOFError):  # the connection of the channel can be gone
        channel.close()
    with suppress(OSError):
        there.shutdown(socket.SHUT_RDWR)


class Sshd:
    """An SSH server on a port of this machine; counts the connections that were made to it.

    Args:
        key: its host key; without one it closes each connection as soon as ``refuse`` is set.
    """

    def __init__(self, key: paramiko.PKey | None) -> None:
        self.key, self.accepted, self.refuse = key, 0, threading.Event()
        self.transports: list[paramiko.Transport] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                self.accepted += 1
                if self.key is None:
                    assert self.refuse.wait(30)
                    sock.close()
                    continue
                transport = paramiko.Transport(sock)
                transport.add_server_key(self.key)
                server = Server()
                server.transport = transport
                self.transports.append(transport)
                with suppress(EOFError, paramiko.SSHException):
                    transport.start_server(server=server, event=threading.Event())

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for transport in self.transports:
            transport.close()


@contextmanager
def sshd(key: paramiko.PKey | None) -> Iterator[Sshd]:
    server = Sshd(key)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def key() -> paramiko.PKey:
    return paramiko.ECDSAKey.generate()


def targets(folder: Path, key: paramiko.PKey, gate: Sshd, host: Sshd) -> list[Target]:
    """Hosts with different names behind one jump host; one server plays all of them."""
    key_file, known = folder / "key", folder / "known_hosts"
    key.write_private_key_file(str(key_file))
    known.write_text(
        "".join(f"[127.0.0.1]:{s.port} {key.get_name()} {key.get_base64()}\n" for s in (gate, host))
    )

    def target(name: str, port: int, *jump: Target) -> Target:
        return Target(
            name,
            "127.0.0.1",
            "alice",
            port,
            (str(key_file),),
            identities_only=True,
            agent="none",
            known_hosts=(str(known),),
            jump=jump,
        )

    names = [f"gpu{number}" for number in range(HOSTS)]
    return [target(name, host.port, target(f"{name} (jump host gate)", gate.port)) for name in names]


def test_hosts_behind_a_jump_host_share_one_connection_to_it(tmp_path: Path, key: paramiko.PKey) -> None:
    with sshd(key) as gate, sshd(key) as host, ThreadPoolExecutor(HOSTS) as pool:
        gateways: Gateways = {}
        runners = [SshRunner(one, gateways=gateways) for one in targets(tmp_path, key, gate, host)]
        list(pool.map(SshRunner.open, runners))
        assert [runner.run(command("true"), 20).stdout for runner in runners] == ["ok\n"] * HOSTS
        assert (gate.accepted, host.accepted) == (1, HOSTS)
        # The connection stays as long as one host uses it, and closes with the last.
        for runner in runners[1:]:
            runner.close()
        assert runners[0].run(command("true"), 20).ok and gate.transports[0].is_active()
        runners[0].close()
        gate.transports[0].join(10)
        assert not gate.transports[0].is_active()


def test_a_lost_connection_to_a_jump_host_is_made_again(tmp_path: Path, key: paramiko.PKey) -> None:
    with sshd(key) as gate, sshd(key) as host:
        gateways: Gateways = {}
        first, second, *_ = (SshRunner(one, gateways=gateways) for one in targets(tmp_path, key, gate, host))
        first.open()
        gate.transports[0].close()
        with pytest.raises(Unreachable, match="the connection was lost"):
            first.run(command("true"), 20)
        second.open()
        first.close()
        assert second.run(command("true"), 20).ok
        assert gate.accepted == 2
        second.close()


def test_all_hosts_behind_a_jump_host_share_its_refusal(tmp_path: Path, key: paramiko.PKey) -> None:
    with sshd(None) as gate, sshd(key) as host, ThreadPoolExecutor(HOSTS) as pool:
        gateways = Gateways()
        runners = [SshRunner(one, gateways=gateways) for one in targets(tmp_path, key, gate, host)]

        def refusal(runner: SshRunner) -> Unreachable:
            with pytest.raises(Unreachable) as caught:
                runner.open()
            return caught.value

        refused = [pool.submit(refusal, runner) for runner in runners]
        wait_for(lambda: sum(gateway.users for gateway in list(gateways.values())) == HOSTS)
        gate.refuse.set()
        errors = [one.result() for one in refused]
        assert {error.what for error in errors} == {errors[0].what}
        assert [error.host for error in errors] == [f"gpu{n} (jump host gate)" for n in range(HOSTS)]
        assert gate.accepted == 1
        for runner in runners:
            runner.close()
