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

    # 1. Join the other ranks; each takes the GPU with its number on its host.
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)
    torch.set_num_threads(1)  # a model this small is slower with more
    torch.manual_seed(1)

    pictures, labels, test_pictures, test_labels = digits.load(device)
    model = digits.make_model().to(device)
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
    total, save_every = args.epochs * steps, args.save_every or steps

    # 2. A step now sees `size` times as many pictures, so it may be that much longer.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9)

    # 3. Every step averages the gradients of all ranks.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # 4. All ranks go on from what rank 0 has: it alone writes, and other hosts may be new.
    held = hvd.broadcast_object(digits.read(args.checkpoints) if rank == 0 else None, root_rank=0)
    first = digits.restore(held, len(pictures), steps, model, optimizer)
    if rank == 0 and first:
        print(f"continues after step {first} of {total}")

    # 5. All ranks begin with rank 0's weights and optimizer state.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for step in range(first, total):
        # 6. Each rank learns from its own part of the pictures.
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

    # The ranks hold the same weights, so each finds the same accuracy on the whole test set.
    result = digits.accuracy(model, test_pictures, test_labels)
    print(f"rank {rank}: test accuracy {result:.4f}")
    mean = hvd.allreduce(torch.tensor(result, dtype=torch.float64)).item()
    if rank == 0:
        print(f"test accuracy {mean:.4f} on {size} ranks")
        digits.keep(model)
    hvd.shutdown()


if __name__ == "__main__":
    main()
