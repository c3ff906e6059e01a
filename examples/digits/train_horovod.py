"""Handwritten digits with Horovod: five additions to a training loop for one GPU.

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

    # 2. A step now sees `size` times as many pictures, so it may be that much longer.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9)

    # 3. Every step averages the gradients of all ranks.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # 4. All ranks begin with rank 0's weights and optimizer state.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(args.epochs):
        # 5. Each rank learns from its own part of the pictures.
        part = digits.shard(len(pictures), epoch, rank, size).to(device)
        for batch in part.split(args.batch_size):
            optimizer.zero_grad()
            loss = cross_entropy(model(pictures[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs}: loss {loss.item():.4f}")
            digits.save(args.checkpoint_dir, epoch + 1, model, optimizer)

    # The ranks hold the same weights, so each finds the same accuracy on the whole test set.
    result = digits.accuracy(model, test_pictures, test_labels)
    print(f"rank {rank}: test accuracy {result:.4f}")
    mean = hvd.allreduce(torch.tensor(result, dtype=torch.float64)).item()
    if rank == 0:
        print(f"test accuracy {mean:.4f} on {size} ranks")
    hvd.shutdown()


if __name__ == "__main__":
    main()
