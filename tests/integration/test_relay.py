"""relay.py over real sockets of this machine: hosts with addresses of their own, engines on paper."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import waiting
from tests.unit.container_world import INSIDE
from tests.unit.hosts_here import execute
from tests.unit.images_here import LAYERS, MIB, STORES, Host, Sender, arrived, config, engines, use
from toolkit.core.command import Command, Result
from toolkit.core.report import Outcome
from toolkit.core.runner import Sink
from toolkit.errors import Unreachable
from toolkit.image.layers import digest
from toolkit.plan.steps import Phase, Plan, SendImage
from toolkit.transfer import relay as chain


class Streaming(Host):
    """A host whose programs run while they are spoken with."""

    def __init__(self, name: str, folder: Path, store: str) -> None:
        super().__init__(name, folder, store)
        self.address = f"127.0.0.{int(name[3:]) + 10}"
        self.relays: list[subprocess.Popen[bytes]] = []
        self.python = True
        self.cut = False
        self.fed = 0
        self.on_bytes: Callable[[int], None] = lambda count: None

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        if "load" in command.argv or source is None:
            return super().stream(command, sink, source)
        folder = self.state.parent / "bin"
        path = f"{folder}:{os.environ['PATH']}" if self.python else str(folder)
        argv = command.within("/usr/bin/env", f"FAKE_DOCKER={self.state}", f"PATH={path}").argv
        words = ["/bin/sh" if word == "sh" else str(word) for word in argv]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # What could not be written to a program that has died is written once more at the end.
        with (
            contextlib.suppress(BrokenPipeError),
            subprocess.Popen(words, **pipes) as process,  # type: ignore[call-overload]
        ):
            self.relays.append(process)
            feeder = threading.Thread(target=self._feed, args=(process, source), daemon=True)
            feeder.start()
            while data := process.stdout.read1(65536):
                sink(data)
            error = process.stderr.read().decode()
        if self.cut:
            raise Unreachable("the connection was lost", "again", self.name)
        return Result(process.returncode, "", error)

    def _feed(self, process: subprocess.Popen[bytes], source: Iterable[bytes]) -> None:
        assert process.stdin is not None
        try:
            for piece in source:
                process.stdin.write(piece)
                process.stdin.flush()
                self.fed += len(piece)
                self.on_bytes(self.fed)
            process.stdin.close()
        except (OSError, ValueError):
            pass

    def die(self) -> None:
        """End without closing connections, as when the host loses power."""
        self.cut = True
        for process in self.relays:
            process.kill()


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Sender:
    return use(Sender(), monkeypatch)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Streaming]]:
    with engines(tmp_path) as make:
        yield lambda number, store="overlay2": make(f"box{number}", store, Streaming)


def send(sender: Sender, *hosts: Streaming) -> dict[str, Outcome]:
    steps = tuple(
        SendImage(host.name, "send", "toolkit:cpu", sender.identity, address=host.address) for host in hosts
    )
    runners: Any = {host.name: host for host in hosts}
    report = execute(Plan("p", (Phase("image", steps),)), runners)
    waiting.until(
        "every relay ends with its transfer",
        lambda: [p.args for host in hosts for p in host.relays if p.poll() is None],
        lambda left: not left,
        pause=0.01,
    )
    return {outcome.host: outcome for outcome in report.outcomes}


def giver(outcome: Outcome) -> str:
    """From whom a host had it, empty for this machine."""
    found = re.search("from (box[0-9]+)", outcome.detail)
    return found[1] if found else ""


def noise(size: int) -> bytes:
    return os.urandom(size)


def test_this_machine_sends_once_and_hosts_of_both_stores_have_it(sender: Sender, make: Any) -> None:
    hosts = [make(n, STORES[n % 2]) for n in range(1, 6)]
    found = send(sender, *hosts)
    assert {o.status for o in found.values()} == {"ok"}, found
    assert all(arrived(sender, host) for host in hosts)
    whole = sum(map(len, LAYERS))
    assert sum(host.fed for host in hosts) < whole + 200_000
    givers = [giver(outcome) for outcome in found.values()]
    assert len(set(givers)) == len(hosts) and "" in givers, "each gives to one other"


def test_many_hosts_that_join_one_after_another_are_in_one_chain(
    sender: Sender, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "_MEET", 2.5)  # less than all hosts need, more than two in a row
    hosts = [make(n) for n in range(1, 5)]
    turn = threading.Semaphore(1)

    def one_by_one(self: Streaming, command: Command, sink: Sink, *more: Any) -> Result:
        if "load" not in command.argv:
            with turn:
                time.sleep(1.1)
        return Streaming.stream(self, command, sink, *more)

    late = type("Late", (Streaming,), {"stream": one_by_one})
    for host in hosts:
        host.__class__ = late
    found = send(sender, *hosts)
    assert all(arrived(sender, host) for host in hosts), found
    assert len({giver(outcome) for outcome in found.values()}) == len(hosts), "each gives to one other"


def test_callers_without_a_certificate_do_no_harm(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """A relay listens on the data address, where others may connect as often as they like."""
    sender = use(Sender([noise(8 * MIB) for _ in range(3)]), monkeypatch)
    hosts = [make(n) for n in (1, 2)]
    callers: list[socket.socket] = []
    most: list[int] = []

    def call(count: int) -> None:
        """Connect to each relay that listens, far more often than it may have threads for."""
        if callers or count < MIB:
            return
        for host in hosts:
            pid = host.relays[-1].pid
            for port in listening(pid):
                for _ in range(300):
                    callers.append(socket.create_connection((host.address, port)))
            most.append(sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()))

    hosts[0].on_bytes = call
    try:
        found = send(sender, *hosts)
    finally:
        for caller in callers:
            caller.close()
    assert all(arrived(sender, host) for host in hosts), found
    assert callers and max(most) < 60, most


def listening(pid: int) -> set[int]:
    """The ports on which a process listens, by its own descriptors."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(entry.readlink()))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(row[1].split(":")[1], 16) for row in lines if row[3] == "0A" and f"socket:[{row[9]}]" in inodes
    }


def test_zeros_travel_compressed_once_the_link_is_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    sender = use(Sender([b"\0" * 40 * MIB]), monkeypatch)
    hosts = [make(n) for n in (1, 2)]
    hosts[0].on_bytes = lambda count: time.sleep(0.02)
    found = send(sender, *hosts)
    assert all(arrived(sender, host) for host in hosts), found
    assert dict(found["box2"].amounts)["bytes"] < 20 * MIB


def test_hosts_that_hold_different_beginnings(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    layers = [noise(2 * MIB) for _ in range(4)]
    sender = use(Sender(layers), monkeypatch)
    hosts = [make(n) for n in (1, 2, 3)]
    for host, held in zip(hosts, (2, 0, 1), strict=True):
        other = Sender([*layers[:held], b"another"])
        host.put("sha256:other", other.config, "mine:1")
    found = send(sender, *hosts)
    assert all(arrived(sender, host) for host in hosts), found
    assert [dict(found[h.name].amounts)["layers"] for h in hosts] == [2, 4, 3]
    assert [giver(found[name]) for name in ("box2", "box3", "box1")] == ["", "box2", "box3"]


def test_a_host_without_python_is_sent_to_from_here(sender: Sender, make: Any) -> None:
    hosts = [make(n) for n in (1, 2, 3)]
    hosts[1].python = False
    found = send(sender, *hosts)
    assert all(arrived(sender, host) for host in hosts), found
    assert "not from other hosts: the host has no python3" in found["box2"].detail
    assert giver(found["box3"]) == "box1"


@pytest.mark.parametrize(
    "dies", [1, pytest.param(2, marks=pytest.mark.rare), pytest.param(3, marks=pytest.mark.rare)]
)
def test_a_host_that_dies_is_left_out_and_resumes_with_the_rest(
    monkeypatch: pytest.MonkeyPatch, make: Any, dies: int
) -> None:
    layers = [noise(4 * MIB) for _ in range(4)]
    sender = use(Sender(layers), monkeypatch)
    hosts = [make(n) for n in (1, 2, 3)]
    victim, once = hosts[dies - 1], threading.Lock()

    def watch(count: int) -> None:
        time.sleep(0.01)
        # Of all hosts: measured speed decides which one this machine feeds, and a busy one is passed over.
        with once:
            if sum(host.fed for host in hosts) > 12 * MIB and not victim.cut:
                loads = victim.state.with_suffix(".loads")
                waiting.until("the host that dies has a layer", loads.is_file, pause=0.01)
                victim.die()

    for host in hosts:
        host.on_bytes = watch
    found = send(sender, *hosts)
    for host in hosts:
        if host is victim:
            assert found[host.name].status == "failed" and "connection was lost" in found[host.name].detail
        else:
            assert arrived(sender, host), found
    victim.cut = False
    for host in hosts:
        host.on_bytes = lambda count: None
    sender.read.clear()
    again = send(sender, victim)
    assert arrived(sender, victim), again
    assert dict(again[victim.name].amounts)["layers"] < 4


def test_a_frozen_host_is_passed_over(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    sender = use(Sender([noise(16 * MIB)]), monkeypatch)
    hosts = [make(n) for n in (1, 2, 3, 4)]
    frozen: list[threading.Thread] = []
    had_by: list[str] = []

    def thaw() -> None:
        """Not before the others have it all; they would wait for longer than this if they waited."""
        until = time.monotonic() + 60
        try:
            while len(had_by) < 2 and time.monotonic() < until:
                time.sleep(0.1)
                with contextlib.suppress(ValueError):  # its engine is writing what it has
                    had_by[:] = [host.name for host in hosts[2:] if arrived(sender, host)]
        finally:
            hosts[1].relays[0].send_signal(18)

    one_at_a_time = threading.Lock()

    def watch(count: int) -> None:
        time.sleep(0.05)
        with one_at_a_time:
            if sum(host.fed for host in hosts) > 4 * MIB and not frozen:
                hosts[1].relays[0].send_signal(19)
                frozen.append(threading.Thread(target=thaw))
                frozen[0].start()

    for host in hosts:
        host.on_bytes = watch
    found = send(sender, *hosts)
    frozen[0].join()
    assert had_by == ["box3", "box4"], "nobody waits for it"
    assert all(arrived(sender, host) for host in hosts), found
    assert "box2" not in found["box3"].detail


def test_one_engine_that_refuses_does_not_stop_the_line(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    sender = use(Sender([noise(3 * MIB), noise(3 * MIB)]), monkeypatch)
    hosts = [make(n) for n in (1, 2, 3)]
    (hosts[1].state.parent / "bin2").mkdir()
    docker = hosts[1].state.parent / "bin" / "docker"
    text = docker.read_text()
    full = 'case "$FAKE_DOCKER $1" in *box2.json\\ load) echo "no space left on device" >&2; exit 1;; esac\n'
    docker.write_text(text.replace("\n", "\n" + full, 1))
    found = send(sender, *hosts)
    assert found["box2"].status == "failed" and "no space left" in found["box2"].detail
    assert arrived(sender, hosts[0]) and arrived(sender, hosts[2]), found


def test_layers_that_were_taken_away_meanwhile_are_sent_after_all(
    monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    layers = [noise(2 * MIB) for _ in range(3)]
    sender = use(Sender(layers), monkeypatch)
    hosts = [make(n) for n in (1, 2)]
    host = hosts[1]
    host.put("sha256:other", config(layers[:1]), "mine:1")
    asked, seen = host.run, []

    def run(command: Command, timeout: float | None = None) -> Result:
        result = asked(command, timeout)
        if "DriverStatus" in command.line() and not seen:
            seen.append(1)
            host.state.write_text('{"store": "overlay2", "images": {}, "blobs": []}')
        return result

    host.run = run
    found = send(sender, *hosts)
    assert all(arrived(sender, host) for host in hosts), found


def test_a_stranger_is_given_nothing_and_can_give_nothing(tmp_path: Path) -> None:
    """Another client that reaches the port has no certificate of this transfer."""
    import ssl

    from toolkit.protocol.chunks import HEAD
    from toolkit.transfer.keys import RelayKeys

    keys, others = RelayKeys(), RelayKeys()
    (tmp_path / "docker").write_text(f"#!/bin/sh\ncat >{tmp_path}/loaded; echo done\n")
    (tmp_path / "docker").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = [sys.executable, "-S", str(INSIDE / "run.py"), "transfer.relay", "127.0.0.9"]
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout

        def order(**what: object) -> None:
            text = json.dumps(what).encode()
            process.stdin.write(HEAD.pack(b"J", 0, 0, len(text)) + text)
            process.stdin.flush()

        def hear(word: str) -> dict[str, Any]:
            while True:
                what: dict[str, Any] = json.loads(process.stdout.readline())
                if word in what:
                    return what

        mine = keys.of("box1")
        order(do="begin", loads=[[0, 1]], key=mine.key, cert=mine.cert, ca=mine.ca)
        port = hear("port")["port"]
        order(do="take", host="box2")
        chunk = b"x" * 1000
        process.stdin.write(HEAD.pack(b"D", 0, 0, 32) + bytes.fromhex(digest(chunk)[7:]))
        process.stdin.flush()

        def call(key: Any, data: bytes, until: str = "") -> bytes:
            """Return what the relay answers, or its greeting once it has said the word `until`."""
            (tmp_path / "key").write_text(f"{key.key}{key.cert}")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(cadata=mine.ca)
            context.load_cert_chain(tmp_path / "key")
            import socket

            with socket.create_connection(("127.0.0.9", port)) as plain, context.wrap_socket(plain) as link:
                try:
                    hello = link.recv(100)
                    link.sendall(HEAD.pack(b"C", 0, 0, len(data)) + data)
                    if until:
                        assert hear(until)["status"] == 0
                        return hello
                    link.settimeout(60)
                    return hello + link.recv(100)
                except (OSError, ssl.SSLError):
                    return b""

        assert call(others.of("box2"), chunk) == b"", "another authority"
        assert call(keys.of("box3"), chunk) == b"", "not whom it was told to expect"
        assert call(keys.of("box2"), b"y" * 1000) and "damaged" in hear("refused")["why"]
        assert not (tmp_path / "loaded").is_file() or (tmp_path / "loaded").stat().st_size == 0
        assert call(keys.of("box2"), chunk, until="loaded")
        assert (tmp_path / "loaded").read_bytes() == chunk
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_thread_that_fails_ends_the_relay_with_the_reason() -> None:
    from toolkit.protocol.chunks import HEAD
    from toolkit.transfer.keys import RelayKeys

    words = [sys.executable, "-S", str(INSIDE / "run.py"), "transfer.relay", "127.0.0.9"]
    env = {**os.environ, "TOOLKIT_LOAD": "/no/such/engine load"}
    key = RelayKeys().of("box1")
    begin = {"do": "begin", "loads": [[0, 1]], "key": key.key, "cert": key.cert, "ca": key.ca}
    text = json.dumps(begin).encode()
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, env=env, **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write(HEAD.pack(b"J", 0, 0, len(text)) + text)
        process.stdin.flush()
        assert process.wait(60) == 3  # with its input still open
        assert process.stderr.read() == b"No such file or directory\n"
