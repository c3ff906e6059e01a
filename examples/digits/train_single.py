"""Handwritten digits on one GPU or on the CPU, as the start of the other scripts.

python train_single.py --epochs 10
"""

from __future__ import annotations

import digits
import torch
from torch.nn.functional import cross_entropy


def main() -> None:
    args = digits.arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # such a small model is slower with more threads
    torch.manual_seed(1)

    pictures, labels, test_pictures, test_labels = digits.load(device)
    model = digits.make_model().to(device)
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, 1)
    total, save_every = args.epochs * steps, args.save_every or steps

    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    first = digits.restore(digits.read(args.checkpoints), len(pictures), steps, model, optimizer)
    if first:
        print(f"continues after step {first} of {total}")

    for step in range(first, total):
        batch = digits.batch(len(pictures), step, args.batch_size, 0, 1).to(device)
        optimizer.zero_grad()
        loss = cross_entropy(model(pictures[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        done = step + 1
        if done % steps == 0:
            print(f"epoch {done // steps}/{args.epochs}, step {done}: loss {loss.item():.4f}")
        if done % save_every == 0 or done == total:
            digits.save(args.checkpoints, len(pictures), steps, done, model, optimizer)

    result = digits.accuracy(model, test_pictures, test_labels)
    print(f"test accuracy {result:.4f}")
    digits.keep(model)


if __name__ == "__main__":
    main()
