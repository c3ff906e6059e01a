"""Measures Open MPI's all-reduce algorithms, or NCCL with its current settings, within a few seconds.

All algorithms are measured in one job: parameters that Open MPI reads when a communicator is created
can be set at run time through the tools interface of MPI (MPI_T, chapter 15 of MPI 4.0).
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
from collections.abc import Callable
from typing import Any

from toolkit.container.bench.network import ending_all, mpi_allreduce, print_result, torch_allreduce

RESULT = "@algorithms"  # mark of the lines that the command reads from the job's output
DEFAULT = "0:0"
ROUNDS, MOST_ROUNDS = 3, 25
LEAST_S = 0.1  # minimum of one algorithm at one size: short calls are repeated more often
SHORT_S = 0.1  # shorter calls are warmed up once: connections are created and buffers touched then


def write_parameter(name: str, value: int) -> None:
    """Write one of Open MPI's integer parameters; raise OSError if the library does not know it."""
    library = ctypes.CDLL(None)  # mpi4py has loaded it
    index, count = ctypes.c_int(), ctypes.c_int()
    handle, number = ctypes.c_void_p(), ctypes.c_int(value)
    if library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
        raise OSError(f"this MPI library has no parameter {name}")
    if library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)):
        raise OSError(f"this MPI library does not allow changes of {name}")
    failed = library.MPI_T_cvar_write(handle, ctypes.byref(number))
    library.MPI_T_cvar_handle_free(ctypes.byref(handle))
    if failed:
        raise OSError(f"this MPI library does not accept {value} for {name}")


def with_algorithm(comm: Any, word: str) -> Any:
    """Return a communicator that uses one algorithm, ``NUMBER:SEGMENT``, for every all-reduce."""
    number, segment = map(int, word.split(":"))
    write_parameter("coll_tuned_allreduce_algorithm", number)
    write_parameter("coll_tuned_allreduce_algorithm_segmentsize", segment)
    return comm.Dup()


def time_once(comm: Any, once: Callable[[], None]) -> float:
    """Return the seconds of one all-reduce on the slowest rank, the same value on all ranks."""
    from mpi4py import MPI

    comm.Barrier()
    start = time.perf_counter()
    once()
    return float(comm.allreduce(time.perf_counter() - start, op=MPI.MAX))


def worst(expected: dict[str, float]) -> str:
    """Return the algorithm to drop next: the slowest, the last of equally slow ones; never the first."""
    words = list(expected)[1:]
    # Values within 10 % count as equal.
    return max(words, key=lambda word: (round(math.log(expected[word], 1.1)), words.index(word)))


def time_all(
    comm: Any, ways: dict[str, Callable[[int], Callable[[], None]]], sizes: list[int], budget: float
) -> list[dict[str, Any]]:
    """Return median seconds by algorithm and size, smallest size first.

    Algorithms take turns, so that a disturbance affects all of them. Before a larger size the slowest are
    dropped, so that half of the remaining time is left for later sizes; the first algorithm is never dropped.
    """
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + budget
    last = dict.fromkeys(ways, 0.0)
    before = sizes[0]
    for size in sizes:
        left = float(comm.bcast(end - time.monotonic()))
        if left <= 0:
            break
        expected = {word: seconds * size / before for word, seconds in last.items()}
        while len(expected) > 2 and ROUNDS * sum(expected.values()) > left / 2:
            del expected[worst(expected)]
        while len(expected) > 1 and sum(expected.values()) > left:
            del expected[worst(expected)]
        turn = sum(expected.values())
        if turn > left:
            break
        calls = {word: ways[word](size) for word in expected}
        if max(expected.values()) < SHORT_S:
            for once in calls.values():
                once()
        times: dict[str, list[float]] = {word: [] for word in calls}
        while True:
            for word, once in calls.items():
                times[word].append(time_once(comm, once))
            done = min(map(len, times.values()))
            enough = done >= ROUNDS and min(map(sum, times.values())) >= LEAST_S
            late = bool(comm.bcast(time.monotonic() + turn > end))
            if enough or done >= MOST_ROUNDS or late:
                break
        last = {word: sorted(times[word])[len(times[word]) // 2] for word in calls}
        rows += [{"algorithm": word, "bytes": size, "seconds": last[word]} for word in calls]
        before = size
    return rows


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=("mpi", "nccl", "gloo"), required=True)
    parser.add_argument("--algorithms", nargs="+", default=[DEFAULT], metavar="NUMBER:SEGMENT")
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--budget", type=float, required=True, help="seconds for the complete measurement")
    asked = parser.parse_args()
    from mpi4py import MPI

    with ending_all(MPI.COMM_WORLD):
        run(MPI.COMM_WORLD, asked)
    return 0


def run(comm: Any, asked: argparse.Namespace) -> None:
    """Measure what was requested; rank 0 prints the result."""
    ways: dict[str, Callable[[int], Callable[[], None]]] = {}
    if asked.engine == "mpi":
        ctypes.CDLL(None).MPI_T_init_thread(0, ctypes.byref(ctypes.c_int()))
        ways = {word: mpi_allreduce(with_algorithm(comm, word)) for word in asked.algorithms}
    else:
        ways[DEFAULT] = torch_allreduce(asked.engine)
        # The first call loads the library and connects all ranks, which can take longer than the budget.
        ways[DEFAULT](asked.sizes[0])()
    rows = time_all(comm, ways, asked.sizes, asked.budget)
    if comm.rank == 0:
        print_result(RESULT, rows)
