"""Handwritten digits with Horovod: six additions to a training loop for one GPU.

toolkit run train_horovod.py --epochs 10
"""

from __future__ import annotations

import digits
import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy


def main() -> None:
    args = digits.arguments()

    # 1. Connect to the other ranks, and select the GPU by the local rank.
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)
    torch.set_num_threads(1)  # such a small model is slower with more threads
    torch.manual_seed(1)

    pictures, labels, test_pictures, test_labels = digits.load(device)
    model = digits.make_model().to(device)
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
    total, save_every = args.epochs * steps, args.save_every or steps

    # 2. Scale the learning rate, because a step now processes `size` times as many pictures.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9)

    # 3. The optimizer averages the gradients of all ranks in every step.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # 4. All ranks resume from the checkpoint of rank 0, because only rank 0 writes checkpoints.
    held = hvd.broadcast_object(digits.read(args.checkpoints) if rank == 0 else None, root_rank=0)
    first = digits.restore(held, len(pictures), steps, model, optimizer)
    if rank == 0 and first:
        print(f"continues after step {first} of {total}")

    # 5. All ranks start with the weights and the optimizer state of rank 0.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for step in range(first, total):
        # 6. Each rank trains on its own part of the pictures.
        batch = digits.batch(len(pictures), step, args.batch_size, rank, size).to(device)
        optimizer.zero_grad()
        loss = cross_entropy(model(pictures[batch]), labels[batch])
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
    mean = hvd.allreduce(torch.tensor(result, dtype=torch.float64)).item()
    if rank == 0:
        print(f"test accuracy {mean:.4f} on {size} ranks")
        digits.keep(model)
    hvd.shutdown()


if __name__ == "__main__":
    main()
