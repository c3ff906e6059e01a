"""Measures a cluster's network as one job: every ordered pair of hosts, then all-reduce over all ranks."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

from toolkit.container.bench import pairs
from toolkit.container.job_file import load_host

RESULT = "@network "  # begins the line that the command reads from the job's output
LEAST_S, MOST_ROUNDS = 0.2, 50


def wait_for_all(comm: Any) -> None:
    """A barrier that sleeps: Open MPI's own spins, and would take the cores from who measures."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def measure_pairs(comm: Any, seconds: float, streams: int) -> dict[str, Any]:
    """Rates and latencies between the hosts; one rank per host takes part, the others wait."""
    host = load_host()
    leader = int(os.environ["LOCAL_RANK"]) == 0
    listener = pairs.listen(host["address"]) if leader else None
    port = listener.getsockname()[1] if listener else 0
    table = comm.allgather((host["host"], host["address"], port, leader))
    hosts = [(name, address, port) for name, address, port, leads in table if leads]
    names = [name for name, _, _ in hosts]
    addresses = [(address, port) for _, address, port in hosts]
    me = names.index(host["host"])
    found: list[tuple[int, int, float, float]] = []
    faults: list[str] = []
    for meeting in pairs.rounds(len(names)):
        wait_for_all(comm)
        mine = [pair for pair in meeting if me in pair]
        if listener is None or not mine:
            continue
        ((low, high),) = mine
        peer = high if me == low else low
        try:
            rate, latency = pairs.measure(me, peer, addresses, listener, seconds, streams)
            found.append((peer, me, rate, latency))
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
        ],
        "faults": [fault for some in comm.allgather(faults) for fault in some],
    }


def mpi_allreduce(comm: Any) -> Callable[[int], Callable[[], None]]:
    """All-reduce of float32 by Open MPI, as Horovod does it on CPUs."""
    import numpy

    def prepare(size: int) -> Callable[[], None]:
        mine, total = numpy.ones(size // 4, "float32"), numpy.empty(size // 4, "float32")

        def once() -> None:
            comm.Allreduce(mine, total)
            if total[0] != comm.size or total[-1] != comm.size:
                raise ArithmeticError(f"the sum is {total[0]}, not {comm.size}")

        return once

    return prepare


def torch_allreduce(backend: str) -> Callable[[int], Callable[[], None]]:
    """All-reduce of float32 by torch.distributed with Gloo or NCCL."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
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
                raise ArithmeticError(f"the sum is {float(tensor[-1])}, not {dist.get_world_size()}")

        return once

    return prepare


def sweep(
    comm: Any, prepare: Callable[[int], Callable[[], None]], sizes: list[int], budget: float
) -> list[dict[str, Any]]:
    """Median seconds of an all-reduce by size, the slowest rank's; sizes beyond the budget are left out."""
    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    last = 0.0
    for size in sizes:
        growth = size / rows[-1]["bytes"] if rows else 1.0
        left = budget - (time.monotonic() - begin)
        if comm.bcast(bool(rows) and 2 * last * growth > left):
            break
        once = prepare(size)
        once()  # connections are made and buffers touched here
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
    parser.add_argument("--seconds", type=float, required=True, help="per direction of a pair")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--engine", choices=("auto", "mpi", "gloo", "nccl"), required=True)
    parser.add_argument("--sizes", type=int, nargs="*", required=True)
    parser.add_argument("--budget", type=float, required=True, help="seconds for all all-reduces")
    asked = parser.parse_args()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    names = dict.fromkeys(comm.allgather(load_host()["host"]))
    result: dict[str, Any] = {"hosts": list(names), "pairs": [], "faults": []}
    if asked.seconds:
        result = measure_pairs(comm, asked.seconds, asked.streams)
    engine = asked.engine
    if engine == "auto":
        engine = "nccl" if comm.allreduce(int(_gpu()), op=MPI.MIN) else "mpi"
    result |= {"engine": engine, "allreduce": []}
    if asked.sizes and comm.size > 1:
        prepare = mpi_allreduce(comm) if engine == "mpi" else torch_allreduce(engine)
        result["allreduce"] = sweep(comm, prepare, asked.sizes, asked.budget)
    if comm.rank == 0:
        print(RESULT + json.dumps(result))
    return 0


def _gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())
