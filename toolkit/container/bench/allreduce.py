"""One all-reduce over all ranks with a check of its result on each: NCCL on GPUs, otherwise Gloo."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

ELEMENTS = 2**22  # 16 MiB of float32: long enough to measure the link, short enough for a slow one
ROUNDS = 5
LEAVE_S = 10.0  # rank 0 waits at most this time until the other ranks know that they must exit


def result_line(size: int, total: float, seconds: float, backend: str) -> str:
    """Return the line that rank 0 prints.

    Args:
        total: the sum of an element over all ranks.
        seconds: duration of the fastest all-reduce.
    """
    if size == 1:
        return f"all-reduce over 1 rank: sum {total:.0f} correct, no data sent ({backend})"
    # Bus bandwidth as nccl-tests define it: algorithm bandwidth x 2 (n - 1) / n.
    busbw = ELEMENTS * 4 / seconds / 1e9 * 2 * (size - 1) / size
    return (
        f"all-reduce over {size} ranks: sum {total:.0f} correct on all ranks, "
        f"16 MiB in {seconds * 1e3:.1f} ms, busbw {busbw:.3f} GB/s ({backend})"
    )


def agree(store: Any, rank: int, size: int, gpu: bool) -> bool:
    """Return whether all ranks see a GPU, or none: ranks with different backends wait for each other.

    Gloo cannot be used for it: without ``GLOO_SOCKET_IFNAME``, Gloo needs a name of the host that can be
    resolved, which NCCL does not need.
    """
    store.set(f"gpu/{rank}", str(int(gpu)))
    if rank == 0:
        store.set("gpus", str(sum(int(store.get(f"gpu/{other}")) for other in range(size))))
    gpus = int(store.get("gpus"))
    if gpus in (0, size):
        return True
    if not gpu:
        where = f"rank {rank} on {os.uname().nodename}"
        print(f"{where} sees no GPU, but {gpus} of {size} ranks see a GPU", file=sys.stderr, flush=True)
    until = time.monotonic() + LEAVE_S
    left = store.add("left", 1)
    while rank == 0 and left < size and time.monotonic() < until:  # the store ends with rank 0
        time.sleep(0.05)
        left = store.add("left", 0)
    return False


def main() -> int:
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = torch.cuda.is_available()
    store = next(rendezvous("env://"))[0]
    if not agree(store, rank, size, gpu):
        return 1
    device = torch.device("cpu")
    if gpu:
        # Each rank sees only its own MIG device.
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", store=store, rank=rank, world_size=size)
    expected = size * (size + 1) / 2
    fastest = float("inf")
    for _ in range(ROUNDS):
        tensor = torch.full((ELEMENTS,), float(rank + 1), device=device)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        if gpu:
            torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - start)
        wrong = int((tensor != expected).sum().item())
        if wrong:
            print(
                f"rank {rank}: {wrong} of {ELEMENTS} elements differ from the expected sum {expected}",
                file=sys.stderr,
            )
            return 1
    dist.barrier()  # fails if another rank has found a wrong sum
    if rank == 0:
        print(result_line(size, expected, fastest, dist.get_backend()))
    dist.destroy_process_group()
    return 0
