"""One rank of bench_allreduce.py and bench_containers.py: all-reduces of float32, timed.

    allreduce_rounds.py ENGINE SECONDS BYTES…

ENGINE is mpi (Open MPI through mpi4py) or gloo (torch.distributed). Each size is repeated for about
SECONDS, at least three times. Rank 0 prints `rounds {"BYTES": MEDIAN_SECONDS, …}`; a round lasts as long as
its slowest rank takes.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

# The number of the rank, and functions that prepare an all-reduce of N bytes, wait for all ranks, and return
# the largest value of all ranks.
Backend = tuple[int, Callable[[int], Callable[[], None]], Callable[[], None], Callable[[float], float]]


def mpi() -> Backend:
    import numpy
    from mpi4py import MPI

    comm = MPI.COMM_WORLD

    def prepare(size: int) -> Callable[[], None]:
        mine, total = numpy.ones(size // 4, "float32"), numpy.empty(size // 4, "float32")
        return lambda: comm.Allreduce(mine, total)

    return comm.rank, prepare, comm.Barrier, lambda value: comm.allreduce(value, op=MPI.MAX)


def gloo() -> Backend:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def prepare(size: int) -> Callable[[], None]:
        tensor = torch.zeros(size // 4)
        return lambda: dist.all_reduce(tensor)

    def most(value: float) -> float:
        slowest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return float(slowest)

    return dist.get_rank(), prepare, dist.barrier, most


def main() -> None:
    engine, seconds, *sizes = sys.argv[1:]
    rank, prepare, barrier, most = {"mpi": mpi, "gloo": gloo}[engine]()
    found: dict[str, float] = {}
    for size in map(int, sizes):
        once = prepare(size)
        once()  # connections are made and buffers touched here
        times: list[float] = []
        while len(times) < 3 or sum(times) < float(seconds):
            barrier()
            start = time.perf_counter()
            once()
            times.append(most(time.perf_counter() - start))
        found[str(size)] = statistics.median(times)
    if engine == "gloo":
        import torch.distributed as dist

        dist.destroy_process_group()  # its threads otherwise end the process now and then
    if rank == 0:
        print("rounds " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
