"""Handwritten digits with Ray Train, in an image with Ray (`toolkit image build --with ray`).

toolkit run train_ray.py --epochs 10
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import digits
import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.nn.functional import cross_entropy


def work(config: dict[str, Any]) -> None:
    args = argparse.Namespace(**config)

    # 1. Ray has connected the workers to each other, and has assigned a device to each worker.
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    device = train.torch.get_device()
    torch.set_num_threads(1)  # such a small model is slower with more threads
    torch.manual_seed(1)

    pictures, labels, test_pictures, test_labels = digits.load(device)
    model = digits.make_model().to(device)
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
    total, save_every = args.epochs * steps, args.save_every or steps

    # 2. Scale the learning rate, because a step now processes `size` times as many pictures.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9)

    # 3. All ranks resume from the checkpoint of rank 0, because only rank 0 writes checkpoints.
    held = [digits.read(args.checkpoints) if rank == 0 else None]
    dist.broadcast_object_list(held, src=0)
    first = digits.restore(held[0], len(pictures), steps, model, optimizer)
    if rank == 0 and first:
        print(f"continues after step {first} of {total}")

    # 4. DDP sends the weights of rank 0 to all ranks, and averages the gradients in every step.
    parallel = train.torch.prepare_model(model)

    for step in range(first, total):
        # 5. Each rank trains on its own part of the pictures.
        batch = digits.batch(len(pictures), step, args.batch_size, rank, size).to(device)
        optimizer.zero_grad()
        loss = cross_entropy(parallel(pictures[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        done = step + 1
        if rank == 0 and done % steps == 0:
            print(f"epoch {done // steps}/{args.epochs}, step {done}: loss {loss.item():.4f}")
        if rank == 0 and (done % save_every == 0 or done == total):
            digits.save(args.checkpoints, len(pictures), steps, done, model, optimizer)

    result = digits.accuracy(model, test_pictures, test_labels)
    print(f"rank {rank}: test accuracy {result:.4f}")
    if rank == 0:
        print(f"test accuracy {result:.4f} on {size} ranks")
        digits.keep(model)


def main() -> None:
    args = digits.arguments()
    args.checkpoints = args.checkpoints.absolute()  # best in a folder that all hosts share
    # Start one worker for each of the WORLD_SIZE slots of the job.
    workers = ScalingConfig(num_workers=int(os.environ["WORLD_SIZE"]), use_gpu=torch.cuda.is_available())
    ray.init()  # reads the variable RAY_ADDRESS
    results = RunConfig(name="digits", storage_path=str(args.checkpoints / "ray"))
    TorchTrainer(work, train_loop_config=vars(args), scaling_config=workers, run_config=results).fit()


if __name__ == "__main__":
    main()
