"""Handwritten digits with Hugging Face Accelerate (`toolkit image build --with accelerate`).

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

    # 1. Connect to the other ranks and select a device, by the variables that every launcher sets.
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    torch.set_num_threads(1)  # such a small model is slower with more threads
    torch.manual_seed(1)

    pictures, labels, test_pictures, test_labels = digits.load(accelerator.device)
    model = digits.make_model()
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
    total, save_every = args.epochs * steps, args.save_every or steps

    # 2. Scale the learning rate, because a step now processes `size` times as many pictures.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9)

    # 3. All ranks resume from the checkpoint of rank 0, because only rank 0 writes checkpoints.
    held = [digits.read(args.checkpoints) if rank == 0 else None]
    broadcast_object_list(held)
    first = digits.restore(held[0], len(pictures), steps, model, optimizer)
    accelerator.print(f"continues after step {first} of {total}" if first else "begins")

    # 4. The settings select DDP, FSDP or DeepSpeed, and the precision.
    model, optimizer = accelerator.prepare(model, optimizer)

    for step in range(first, total):
        # 5. Each rank trains on its own part of the pictures.
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
