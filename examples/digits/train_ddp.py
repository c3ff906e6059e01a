"""Handwritten digits with DistributedDataParallel of PyTorch.

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

    # 1. Connect to the other ranks, and select the GPU by the local rank.
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.set_num_threads(1)  # such a small model is slower with more threads
    torch.manual_seed(1)

    pictures, labels, test_pictures, test_labels = digits.load(device)
    model = digits.make_model().to(device)
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
    total, save_every = args.epochs * steps, args.save_every or steps

    # 2. The wrapper sends the weights of rank 0 to all ranks, and averages the gradients in every step.
    parallel = DistributedDataParallel(model)

    # 3. Scale the learning rate, because a step now processes `size` times as many pictures.
    optimizer = torch.optim.SGD(parallel.parameters(), lr=args.lr * size, momentum=0.9)

    # 4. All ranks resume from the checkpoint of rank 0, because only rank 0 writes checkpoints.
    held = [digits.read(args.checkpoints) if rank == 0 else None]
    dist.broadcast_object_list(held, src=0)
    first = digits.restore(held[0], len(pictures), steps, model, optimizer)
    if rank == 0 and first:
        print(f"continues after step {first} of {total}")

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

    # All ranks have the same weights, so each rank computes the same accuracy on the complete test set.
    result = digits.accuracy(model, test_pictures, test_labels)
    print(f"rank {rank}: test accuracy {result:.4f}")
    mean = torch.tensor(result, dtype=torch.float64, device=device)
    dist.all_reduce(mean)
    if rank == 0:
        print(f"test accuracy {mean.item() / size:.4f} on {size} ranks")
        digits.keep(model)
    # Delete the DDP object and its threads before the interpreter exits. Otherwise, some runs abort at the
    # exit ("terminate called …").
    del parallel
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
