"""A training job for the picture: one rank is killed on the first attempt, one hangs on the second."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]

rank, attempt = int(os.environ["RANK"]), int(os.environ["TOOLKIT_RESTART"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
if rank == 1:
    Path("/tmp/rank.pid").write_text(str(os.getpid()))


def next_batch(step: int) -> torch.Tensor:
    if attempt == 1 and rank == 2 and step == 200:
        time.sleep(3600)  # a data loader that hangs
    return torch.randn(64, 256)


for step in range(100 * attempt, 1000):
    loss = model(next_batch(step)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
    if step % 20 == 0 and rank == 0:
        print(f"step {step:3}: loss {loss.item():.3f}", flush=True)
