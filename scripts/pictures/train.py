"""A job for pictures: steps that take a little, and on its first attempt a rank that crashes."""

from __future__ import annotations

import os
import time

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
again = os.environ["TOOLKIT_RESTART"] != "0"
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(150 if again else 0, 500):
    began = time.monotonic()
    loss = model(torch.randn(64, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
    if step % 10 == 0:
        pace = 64 * size / (time.monotonic() - began)
        print(f"step {step}: loss {loss.item():.3f}, {pace:.0f} samples/s", flush=True)
    if step == 180 and rank == 2 and not again:
        os._exit(9)
dist.destroy_process_group()
