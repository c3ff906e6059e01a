"""The job of bench_failure.py: an all-reduce every 50 ms; one rank fails on request and prints the time."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    how, victim, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TOOLKIT_RESTART"])
    for step in range(100_000):
        dist.all_reduce(torch.ones(1024))
        if rank == 0:
            print(f"step {step} of attempt {attempt} at {time.time():.3f}", flush=True)
        if step == at and rank == victim and attempt == 0 and how != "nothing":
            print(f"fails at {time.time():.3f}", flush=True)
            if how == "exit":
                os._exit(3)
            os.kill(os.getpid(), getattr(signal, how))
        if attempt and step == at:
            dist.destroy_process_group()
            return
        time.sleep(0.05)


if __name__ == "__main__":
    main()
