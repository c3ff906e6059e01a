"""Handwritten digits with PyTorch's own DistributedDataParallel.

toolkit run train_ddp.py --epochs 10
"""

from __future__ import annotations

import gc
import os

import digits
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    args = digits.arguments()

    # 1. Join the other ranks; each takes the GPU with its number on its host.
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.set_num_threads(1)  # a model this small is slower with more
    torch.manual_seed(1)

    pictures, labels, test_pictures, test_labels = digits.load(device)
    model = digits.make_model().to(device)
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
    total, save_every = args.epochs * steps, args.save_every or steps

    # 2. The wrapper hands rank 0's weights to all, and averages the gradients in every step.
    parallel = DistributedDataParallel(model)

    # 3. A step now sees `size` times as many pictures, so it may be that much longer.
    optimizer = torch.optim.SGD(parallel.parameters(), lr=args.lr * size, momentum=0.9)

    # 4. All ranks go on from what rank 0 has: it alone writes, and other hosts may be new.
    held = [digits.read(args.checkpoints) if rank == 0 else None]
    dist.broadcast_object_list(held, src=0)
    first = digits.restore(held[0], len(pictures), steps, model, optimizer)
    if rank == 0 and first:
        print(f"continues after step {first} of {total}")

    for step in range(first, total):
        # 5. Each rank learns from its own part of the pictures.
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

    # The ranks hold the same weights, so each finds the same accuracy on the whole test set.
    result = digits.accuracy(model, test_pictures, test_labels)
    print(f"rank {rank}: test accuracy {result:.4f}")
    mean = torch.tensor(result, dtype=torch.float64, device=device)
    dist.all_reduce(mean)
    if rank == 0:
        print(f"test accuracy {mean.item() / size:.4f} on {size} ranks")
        digits.keep(model)
    # DDP sits in reference cycles and owns threads. Collected here, they end before the interpreter does;
    # left to its end, a run is now and then aborted there ("terminate called …").
    del parallel
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
