"""Bandwidth and latency between two hosts over plain TCP, one pair at a time per host."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

PINGS = 200
PING_BYTES = 64
BUFFER = bytes(1 << 20)
WARM_S = 0.1  # TCP's slow start and a shaper's bucket make the first moments tell a lie
LIMIT_S = 30.0  # a peer that is silent for so long is gone
HELLO = struct.Struct("!i")


class Link(NamedTuple):
    """What was measured from one host to another: bit/s, and half a round trip in seconds."""

    rate: float
    latency: float


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Pairs of 0..count-1 in rounds in which nobody is in two pairs (the circle method)."""
    ring: list[int | None] = list(range(count))
    if count % 2:
        ring.append(None)
    made = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        made.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return made


def listen(address: str) -> socket.socket:
    """A listener on a port of the kernel's choice at this address."""
    listener = socket.create_server((address, 0), backlog=64)
    listener.settimeout(LIMIT_S)
    return listener


def accept(listener: socket.socket, peer: int, streams: int) -> list[socket.socket]:
    """The peer's connections; strangers are turned away."""
    found: list[socket.socket] = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < streams:
        if time.monotonic() > deadline:
            raise TimeoutError(f"peer {peer} did not connect within {LIMIT_S:.0f} s")
        connection, _ = listener.accept()
        _prepare(connection)
        if HELLO.unpack(exactly(connection, HELLO.size))[0] == peer:
            found.append(connection)
        else:
            connection.close()
    return found


def connect(address: str, port: int, me: int, streams: int) -> list[socket.socket]:
    """Connections to a peer's listener."""
    made = []
    for _ in range(streams):
        connection = socket.create_connection((address, port), timeout=LIMIT_S)
        _prepare(connection)
        connection.sendall(HELLO.pack(me))
        made.append(connection)
    return made


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(LIMIT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def exactly(connection: socket.socket, size: int) -> bytes:
    """`size` bytes, or ConnectionError when the peer has closed."""
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the peer closed the connection")
        data += piece
    return bytes(data)


def ping(connection: socket.socket) -> float:
    """Half of the median round trip, in seconds."""
    times = []
    for _ in range(PINGS):
        start = time.perf_counter()
        connection.sendall(BUFFER[:PING_BYTES])
        exactly(connection, PING_BYTES)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] / 2


def pong(connection: socket.socket) -> None:
    for _ in range(PINGS):
        connection.sendall(exactly(connection, PING_BYTES))


def send(connections: Sequence[socket.socket], seconds: float) -> None:
    """Send on all of them for so long, then end each direction."""
    until = time.monotonic() + seconds

    def push(connection: socket.socket) -> None:
        while time.monotonic() < until:
            connection.sendall(BUFFER)
        connection.shutdown(socket.SHUT_WR)

    _together(push, connections)


def receive(connections: Sequence[socket.socket]) -> float:
    """Read until the peer has ended; return bit/s after the warm-up."""
    lock = threading.Lock()
    seen: list[tuple[float, int]] = []

    def pull(connection: socket.socket) -> None:
        into = bytearray(1 << 20)
        while size := connection.recv_into(into):
            with lock:
                seen.append((time.perf_counter(), size))

    _together(pull, connections)
    return rate_of(sorted(seen))


def rate_of(seen: Sequence[tuple[float, int]]) -> float:
    """bit/s of arrivals (time in seconds, bytes), those of the warm-up left out."""
    if not seen:
        return 0.0
    begin = seen[0][0]
    late = [(at, size) for at, size in seen if at >= begin + WARM_S]
    if len(late) < 2:
        span = seen[-1][0] - begin
        return 8 * sum(size for _, size in seen[1:]) / span if span else 0.0
    return 8 * sum(size for _, size in late[1:]) / (late[-1][0] - late[0][0])


def _together(work: object, connections: Sequence[socket.socket]) -> None:
    assert callable(work)
    failed: list[Exception] = []

    def guarded(connection: socket.socket) -> None:
        try:
            work(connection)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(c,)) for c in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def measure(
    me: int,
    peer: int,
    addresses: Sequence[tuple[str, int]],
    listener: socket.socket,
    seconds: float,
    streams: int,
) -> tuple[float, float]:
    """Measure with one peer, both ways at their own time.

    Both sides call it. Returns what came in here: bit/s from the peer, and half a round trip in
    seconds as the lower-numbered side saw it (0 on the other side).
    """
    first = me < peer
    opened = []
    try:
        # A direction that has been ended cannot send again, so each way has connections of its own.
        for _ in range(2):
            opened.append(
                connect(*addresses[peer], me, streams) if first else accept(listener, peer, streams)
            )
        latency = 0.0
        if first:
            latency = ping(opened[0][0])
            send(opened[0], seconds)
            rate = receive(opened[1])
        else:
            pong(opened[0][0])
            rate = receive(opened[0])
            send(opened[1], seconds)
        return rate, latency
    finally:
        for connections in opened:
            for connection in connections:
                connection.close()
