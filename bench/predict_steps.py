"""One rank of bench_predict.py: all-reduces and training steps with made-up gradients, timed.

Standard input of a run is closed, so the work is on the command line, as JSON:
{"points": [BYTES, …], "steps": [[COMPUTE_SECONDS, [BUCKET_BYTES, …], REPEATS], …]}
Computing is a sleep, so that hosts may outnumber cores. Rank 0 prints one JSON line.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

FORWARD = 1 / 3  # as toolkit/predict/model.py has it


def timed(work: Callable[..., None], *args: object) -> float:
    """Return the seconds of the slowest rank: a step ends when all ranks have finished."""
    dist.barrier()
    start = time.perf_counter()
    work(*args)
    slowest = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.item())


def reduce_all(buckets: Sequence[torch.Tensor]) -> None:
    for bucket in buckets:
        dist.all_reduce(bucket)


def plain(compute: float, buckets: Sequence[torch.Tensor]) -> None:
    """Compute, then send all buckets."""
    time.sleep(compute)
    reduce_all(buckets)


def hidden(compute: float, buckets: Sequence[torch.Tensor]) -> None:
    """Send each bucket as soon as the backward pass has filled it, as DistributedDataParallel does."""
    total = sum(bucket.numel() for bucket in buckets)
    start, ready, pending = time.perf_counter(), 0, []
    for bucket in buckets:
        ready += bucket.numel()
        due = start + compute * (FORWARD + (1 - FORWARD) * ready / total)
        time.sleep(max(0.0, due - time.perf_counter()))
        pending.append(dist.all_reduce(bucket, async_op=True))
    for work in pending:
        work.wait()


def main() -> None:
    task = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    reduce_all([torch.zeros(1024)])  # connections are made now
    points = []
    for size in task["points"]:
        tensor = torch.zeros(size // 4)
        seconds = [timed(reduce_all, [tensor]) for _ in range(3)]
        points.append({"bytes": size, "ranks": dist.get_world_size(), "seconds": statistics.median(seconds)})
    steps = []
    for compute, sizes, repeats in task["steps"]:
        buckets = [torch.zeros(size // 4) for size in sizes]
        ways = {}
        for way in (plain, hidden):
            seconds = [timed(way, compute, buckets) for _ in range(repeats)]
            ways[way.__name__] = statistics.median(seconds)
        steps.append(ways)
    if dist.get_rank() == 0:
        print("bench " + json.dumps({"points": points, "steps": steps}))
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
