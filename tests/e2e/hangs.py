"""A training that hangs on purpose, in one way after another; each ends when a file `go-WAY` appears.

Runs in the containers, started by test_why.py: `hangs.py all`, `hangs.py early`, `hangs.py mpi`.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The tests read the table below without being a rank.
RANK = int(os.environ.get("RANK", "-1"))
# Way -> the rank that it happens to.
WAYS = {
    "sleeps": 1,
    "loops": 2,
    "queue": 0,
    "fifo": 1,
    "checkpoint": 2,
    "loader": 1,
    "handler": 0,
    "stopped": 2,
}


def is_over(way: str) -> bool:
    return Path(f"go-{way}").exists()


def later(way: str, act: Callable[[], Any]) -> None:
    """Do it once the way is to end, beside what hangs."""

    def wait() -> None:
        while not is_over(way):
            time.sleep(0.1)
        act()

    threading.Thread(target=wait, daemon=True).start()


def sleeps() -> None:
    while not is_over("sleeps"):
        time.sleep(0.2)


def loops() -> None:
    number = 0
    while number % 5_000_000 or not is_over("loops"):
        number += 1


def waits_on_a_queue() -> None:
    box: queue.Queue[int] = queue.Queue()
    later("queue", lambda: box.put(1))
    box.get()


def reads_a_fifo() -> None:
    os.mkfifo("batches")
    later("fifo", lambda: Path("batches").write_text("x"))
    with Path("batches").open() as batches:
        batches.read()


def save_checkpoint() -> None:
    os.mkfifo("model.pt")
    reader = os.open("model.pt", os.O_RDONLY | os.O_NONBLOCK)

    def drain() -> None:
        os.set_blocking(reader, True)
        while os.read(reader, 1 << 20):
            pass

    later("checkpoint", drain)
    with Path("model.pt").open("wb", buffering=0) as file:
        file.write(bytes(1 << 20))


def waits_for_a_dead_loader() -> None:
    context = multiprocessing.get_context("fork")
    batches = context.SimpleQueue()
    loader = context.Process(target=time.sleep, args=(600,), daemon=True)
    loader.start()
    os.kill(loader.pid or 0, signal.SIGKILL)
    later("loader", lambda: batches.put(1))
    batches.get()


def fails_and_cleans_up() -> None:
    told = threading.Event()
    later("handler", told.set)
    try:
        raise ValueError("a batch of no size")
    except ValueError:
        told.wait()


def is_stopped() -> None:
    wake = f"while [ ! -e go-stopped ]; do sleep 0.1; done; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", wake])
    os.kill(os.getpid(), signal.SIGSTOP)


DO: dict[str, Callable[[], None]] = {
    "sleeps": sleeps,
    "loops": loops,
    "queue": waits_on_a_queue,
    "fifo": reads_a_fifo,
    "checkpoint": save_checkpoint,
    "loader": waits_for_a_dead_loader,
    "handler": fails_and_cleans_up,
    "stopped": is_stopped,
}


def train() -> None:
    """All ways in turn, then steps without an end."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    gradients = torch.zeros(1 << 16)
    for way, rank in WAYS.items():
        if rank == RANK:
            print("way", way, flush=True)
            DO[way]()
        dist.all_reduce(gradients)
    print("steps", flush=True)
    while True:
        dist.all_reduce(gradients)
        time.sleep(0.2)


def leave_early() -> None:
    """Rank 1 thinks that it is done before the others have met it."""
    if RANK == 1:
        print("done early", flush=True)
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")


def part() -> None:
    """Rank 2 calls a different collective than the other ranks."""
    from mpi4py import MPI

    # It polls while it waits, and should leave the processors to those who look.
    os.nice(19)
    world = MPI.COMM_WORLD
    world.Barrier()
    print("parts", flush=True)
    if RANK == 2:
        world.allreduce(RANK)
    else:
        world.Barrier()


if __name__ == "__main__":
    {"all": train, "early": leave_early, "mpi": part}[sys.argv[1]]()
