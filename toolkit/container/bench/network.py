"""Measurement of a cluster's network as one job: every ordered pair of hosts, then all-reduce over all ranks.

Bandwidth and latency of a pair are measured with plain TCP; a host is in one pair at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from toolkit.container.job_file import load_host
from toolkit.protocol.bench import result_lines

PINGS = 200
PING_BYTES = 64
BUFFER = bytes(1 << 20)
MOST_UNSENT = 1 << 17  # bytes that a connection buffers and has not sent
WARM_S = 0.1  # TCP's slow start and a shaper's bucket distort the first moments
LIMIT_S = 30.0  # a peer that is silent for this time is gone
HELLO_S = 5.0  # a client that is silent for this time after it has connected is not the peer
HELLO = struct.Struct("!i")


class Link(NamedTuple):
    """Measurement from one host to another: bit/s, and half a round trip in seconds."""

    rate: float
    latency: float


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return pairs of 0..count-1 in rounds without repeated members (the circle method)."""
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
    """Return a listener at this address on a port that the kernel chooses."""
    listener = socket.create_server((address, 0), backlog=64)
    listener.settimeout(LIMIT_S)
    return listener


def accept(listener: socket.socket, peer: int, streams: int) -> list[socket.socket]:
    """Accept the peer's connections; reject those of other clients."""
    found: list[socket.socket] = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < streams:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the peer did not connect within {LIMIT_S:.0f} s")
        connection, _ = listener.accept()
        connection.settimeout(HELLO_S)
        try:
            is_peer = HELLO.unpack(exactly(connection, HELLO.size))[0] == peer
        except OSError:  # a port scanner, for example
            is_peer = False
        if is_peer:
            _prepare(connection)
            found.append(connection)
        else:
            connection.close()
    return found


def connect(address: str, port: int, me: int, streams: int) -> list[socket.socket]:
    """Open connections to a peer's listener."""
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
    # A slow link must send what is buffered within LIMIT_S: meanwhile the peer sends nothing.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MOST_UNSENT)


def exactly(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes; raise ConnectionError if the peer has closed the connection."""
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the peer closed the connection")
        data += piece
    return bytes(data)


def ping(connection: socket.socket) -> float:
    """Return half of the median round trip in seconds."""
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
    """Send on all connections for this time, then close each direction."""

    def push(connection: socket.socket) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # Not sendall: its time limit is for the complete buffer, which a slow link can exceed.
            connection.send(BUFFER)
        connection.shutdown(socket.SHUT_WR)

    _together(push, connections)


def receive(connections: Sequence[socket.socket]) -> float:
    """Read until the peer has closed; return bit/s after the warm-up."""
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
    """Return the bit/s of arrivals (time in seconds, bytes) without those of the warm-up."""
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
    """Measure with one peer, one direction after the other.

    Both sides call it. Returns the incoming rate, bit/s from the peer, and half a round trip in
    seconds as measured by the lower-numbered side (0 on the other side).
    """
    first = me < peer
    opened = []
    try:
        # A closed direction cannot send again, so each direction has connections of its own.
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


RESULT = "@network"  # mark of the lines that the command reads from the job's output
LEAST_S, MOST_ROUNDS = 0.2, 50
LEAST_RATE = 1000.0  # bit/s


@contextmanager
def ending_all(comm: Any) -> Iterator[None]:
    """Print an exception and end all ranks: mpi4py waits for the others when the interpreter exits."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        comm.Abort(1)
        raise


def print_result(mark: str, result: object) -> None:
    """Print a result for the command."""
    for line in result_lines(mark, json.dumps(result)):
        print(line)
    sys.stdout.flush()


def wait_for_all(comm: Any) -> None:
    """Wait at a barrier that sleeps: Open MPI's own spins, and would use cores of the measuring ranks."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def measure_pairs(comm: Any, seconds: float, streams: int) -> dict[str, Any]:
    """Measure rates and latencies between the hosts; one rank per host takes part, the others wait."""
    host = load_host()
    leader = int(os.environ["LOCAL_RANK"]) == 0
    listener = listen(host["address"]) if leader else None
    port = listener.getsockname()[1] if listener else 0
    table = comm.allgather((host["host"], host["address"], port, leader))
    hosts = [(name, address, port) for name, address, port, leads in table if leads]
    names = [name for name, _, _ in hosts]
    addresses = [(address, port) for _, address, port in hosts]
    me = names.index(host["host"])
    found: list[tuple[int, int, float, float]] = []
    faults: list[str] = []
    for meeting in rounds(len(names)):
        wait_for_all(comm)
        mine = [pair for pair in meeting if me in pair]
        if listener is None or not mine:
            continue
        ((low, high),) = mine
        peer = high if me == low else low
        try:
            rate, latency = measure(me, peer, addresses, listener, seconds, streams)
            found.append((peer, me, rate, latency))
            if rate < LEAST_RATE:
                too_little = f"{names[me]} received too little data from {names[peer]} to measure the rate"
                faults.append(too_little)
        except OSError as error:
            faults.append(f"{names[me]} with {names[peer]}: {error}")
    wait_for_all(comm)
    if listener:
        listener.close()
    gathered = [item for items in comm.allgather(found) for item in items]
    latencies = {frozenset((a, b)): latency for a, b, _, latency in gathered if latency}
    return {
        "hosts": names,
        "pairs": [
            {
                "from": names[a],
                "to": names[b],
                "mbit": round(rate / 1e6, 3),
                "latency_us": round(latencies.get(frozenset((a, b)), 0.0) * 1e6, 1),
            }
            for a, b, rate, _ in sorted(gathered)
            if rate >= LEAST_RATE
        ],
        "faults": [fault for some in comm.allgather(faults) for fault in some],
    }


def mpi_allreduce(comm: Any) -> Callable[[int], Callable[[], None]]:
    """Return an all-reduce of float32 by Open MPI, as Horovod performs it on CPUs."""
    import numpy

    def prepare(size: int) -> Callable[[], None]:
        mine, total = numpy.ones(size // 4, "float32"), numpy.empty(size // 4, "float32")

        def once() -> None:
            comm.Allreduce(mine, total)
            for found in (total[0], total[-1]):
                if found != comm.size:
                    raise ArithmeticError(f"the all-reduce returned the sum {found}, not {comm.size}")

        return once

    return prepare


def torch_allreduce(backend: str) -> Callable[[int], Callable[[], None]]:
    """Return an all-reduce of float32 by torch.distributed with Gloo or NCCL."""
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    if backend == "nccl":
        # Each rank sees only its own MIG device.
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(backend)

    def prepare(size: int) -> Callable[[], None]:
        tensor = torch.ones(size // 4, device=device)

        def once() -> None:
            tensor.fill_(1)
            dist.all_reduce(tensor)
            if backend == "nccl":
                torch.cuda.synchronize()
            if float(tensor[-1]) != dist.get_world_size():
                raise ArithmeticError(
                    f"the all-reduce returned the sum {float(tensor[-1])}, not {dist.get_world_size()}"
                )

        return once

    return prepare


def sweep(
    comm: Any, prepare: Callable[[int], Callable[[], None]], sizes: list[int], budget: float
) -> list[dict[str, Any]]:
    """Return median seconds of an all-reduce by size on the slowest rank, as far as the budget allows."""
    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    last = 0.0
    for size in sizes:
        growth = size / rows[-1]["bytes"] if rows else 1.0
        left = budget - (time.monotonic() - begin)
        if comm.bcast(bool(rows) and 2 * last * growth > left):
            break
        once = prepare(size)
        once()  # creates connections and touches buffers
        times: list[float] = []
        while True:
            comm.Barrier()
            start = time.perf_counter()
            once()
            times.append(comm.allreduce(time.perf_counter() - start, op=_max()))
            spent = sum(times)
            over = spent >= LEAST_S and len(times) >= 3
            if comm.bcast(over or len(times) >= MOST_ROUNDS or time.monotonic() - begin > budget):
                break
        last = sorted(times)[len(times) // 2]
        rows.append({"bytes": size, "ranks": comm.size, "seconds": last, "rounds": len(times)})
    return rows


def _max() -> Any:
    from mpi4py import MPI

    return MPI.MAX


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True, help="seconds per direction of a host pair")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--engine", choices=("auto", "mpi", "gloo", "nccl"), required=True)
    parser.add_argument("--sizes", type=int, nargs="*", required=True)
    parser.add_argument("--budget", type=float, required=True, help="seconds for all all-reduces")
    asked = parser.parse_args()
    from mpi4py import MPI

    with ending_all(MPI.COMM_WORLD):
        run(MPI.COMM_WORLD, asked)
    return 0


def run(comm: Any, asked: argparse.Namespace) -> None:
    """Measure what was requested; rank 0 prints the result."""
    names = dict.fromkeys(comm.allgather(load_host()["host"]))
    result: dict[str, Any] = {"hosts": list(names), "pairs": [], "faults": []}
    if asked.seconds:
        result = measure_pairs(comm, asked.seconds, asked.streams)
        if comm.rank == 0:
            print_result(RESULT, result)  # in case the all-reduce fails
    engine = asked.engine
    if engine == "auto":
        engine = "nccl" if min(comm.allgather(_gpu())) else "mpi"
    result |= {"engine": engine, "allreduce": []}
    if asked.sizes and comm.size > 1:
        prepare = mpi_allreduce(comm) if engine == "mpi" else torch_allreduce(engine)
        result["allreduce"] = sweep(comm, prepare, asked.sizes, asked.budget)
        if engine != "mpi":
            import torch.distributed as dist

            # The threads of a Gloo group abort about one in ten ranks that exit with the group.
            dist.destroy_process_group()
    if comm.rank == 0:
        print_result(RESULT, result)


def _gpu() -> bool:
    try:
        import torch
    except ImportError:  # Open MPI needs no PyTorch
        return False
    return bool(torch.cuda.is_available())
