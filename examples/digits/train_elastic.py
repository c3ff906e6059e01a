"""Handwritten digits with Elastic Horovod: hosts can join and leave while the script runs.

toolkit run --elastic --max-restarts 3 train_elastic.py --epochs 10
"""

from __future__ import annotations

import digits
import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy


def main() -> None:
    args = digits.arguments()
    hvd.init()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)
    torch.set_num_threads(1)  # such a small model is slower with more threads
    torch.manual_seed(1)

    pictures, labels, test_pictures, test_labels = digits.load(device)
    model = digits.make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # 1. State that all ranks share. Remaining ranks keep the state in memory and send it to new ranks.
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, seen=0)

    # 2. Scale the learning rate when a change of hosts changes the number of ranks.
    def resized() -> None:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()

    state.register_reset_callbacks([resized])

    # 3. Horovod calls the function again after each change of hosts, with the state of the last commit.
    @hvd.elastic.run  # type: ignore[untyped-decorator, unused-ignore]
    def train(state: hvd.elastic.TorchState) -> None:
        rank, size = hvd.rank(), hvd.size()
        steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
        first, total = round(state.seen * steps / len(pictures)), args.epochs * steps
        if rank == 0 and first:
            print(f"continues after step {first} of {total} on {size} ranks")
        for step in range(first, total):
            batch = digits.batch(len(pictures), step, args.batch_size, rank, size).to(device)
            optimizer.zero_grad()
            loss = cross_entropy(model(pictures[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            done = step + 1
            state.seen = done * len(pictures) // steps
            if rank == 0 and done % steps == 0:
                print(f"epoch {done // steps}/{args.epochs}, step {done}: loss {loss.item():.4f}")
            # 4. After a failure, training resumes from the last commit. A commit copies the weights.
            if done % (args.save_every or steps) == 0:
                state.commit()

    train(state)
    result = digits.accuracy(model, test_pictures, test_labels)
    mean = hvd.allreduce(torch.tensor(result, dtype=torch.float64)).item()
    if hvd.rank() == 0:
        print(f"test accuracy {mean:.4f} on {hvd.size()} ranks")
        digits.keep(model)
    hvd.shutdown()


if __name__ == "__main__":
    main()
