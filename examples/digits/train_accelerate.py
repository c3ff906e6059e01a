"""Handwritten digits with Hugging Face Accelerate, in an image that has it (`image build --with accelerate`).

toolkit run -- accelerate launch --mixed_precision bf16 train_accelerate.py --epochs 10
"""

from __future__ import annotations

import digits
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch.nn.functional import cross_entropy


def main() -> None:
    args = digits.arguments()

    # 1. Joins the other ranks and takes a device, by the variables that every launcher's ranks have.
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    torch.set_num_threads(1)  # a model this small is slower with more
    torch.manual_seed(1)

    pictures, labels, test_pictures, test_labels = digits.load(accelerator.device)
    model = digits.make_model()
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
    total, save_every = args.epochs * steps, args.save_every or steps

    # 2. A step now sees `size` times as many pictures, so it may be that much longer.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9)

    # 3. All ranks go on from what rank 0 has: it alone writes, and other hosts may be new.
    held = [digits.read(args.checkpoints) if rank == 0 else None]
    broadcast_object_list(held)
    first = digits.restore(held[0], len(pictures), steps, model, optimizer)
    accelerator.print(f"continues after step {first} of {total}" if first else "begins")

    # 4. What the settings ask for: DDP, FSDP, DeepSpeed; mixed precision.
    model, optimizer = accelerator.prepare(model, optimizer)

    for step in range(first, total):
        # 5. Each rank learns from its own part of the pictures.
        batch = digits.batch(len(pictures), step, args.batch_size, rank, size).to(accelerator.device)
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = cross_entropy(model(pictures[batch]), labels[batch])
        accelerator.backward(loss)
        optimizer.step()
        done = step + 1
        if done % steps == 0:
            accelerator.print(f"epoch {done // steps}/{args.epochs}, step {done}: loss {loss.item():.4f}")
        if accelerator.is_main_process and (done % save_every == 0 or done == total):
            bare = accelerator.unwrap_model(model)
            digits.save(args.checkpoints, len(pictures), steps, done, bare, optimizer)

    result = digits.accuracy(accelerator.unwrap_model(model), test_pictures, test_labels)
    print(f"rank {rank}: test accuracy {result:.4f}")
    accelerator.print(f"test accuracy {result:.4f} on {size} ranks")
    accelerator.end_training()


if __name__ == "__main__":
    main()
