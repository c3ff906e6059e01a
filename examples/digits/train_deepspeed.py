"""Handwritten digits with DeepSpeed's ZeRO, in an image with DeepSpeed (`image build --with deepspeed`).

toolkit run train_deepspeed.py --epochs 10
"""

from __future__ import annotations

from typing import Any

import checkpoint
import deepspeed
import digits
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def main() -> None:
    args = digits.arguments()

    # 1. Connect to the other ranks, by the environment variables that every launcher sets.
    deepspeed.init_distributed()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)  # such a small model is slower with more threads
    torch.manual_seed(1)

    # 2. Stage 2 shards the optimizer state and the gradients over the ranks.
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "gradient_clipping": 5.0,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,  # SGD, as in the other scripts
    }
    model = digits.make_model()
    # Scale the learning rate, because a step now processes `size` times as many pictures.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    pictures, labels, test_pictures, test_labels = digits.load(engine.device)
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
    total, save_every = args.epochs * steps, args.save_every or steps

    # 3. Every rank writes its own part of a checkpoint, so all hosts must share the folder. Otherwise, a
    # restarted rank does not find its part, and the script fails.
    latest = args.checkpoints / "latest"
    mine = [int(latest.read_text().strip().removeprefix("global_step"))] if latest.exists() else []
    held: list[Any] = [None] * size
    dist.all_gather_object(held, mine)
    resume = checkpoint.agreed(held) is not None
    path, client = engine.load_checkpoint(str(args.checkpoints)) if resume else (None, {})
    first = client["step"] if path else 0
    if rank == 0 and first:
        print(f"continues after step {first} of {total}")

    for step in range(first, total):
        # 4. Each rank trains on its own part of the pictures.
        batch = digits.batch(len(pictures), step, args.batch_size, rank, size).to(engine.device)
        loss = cross_entropy(engine(pictures[batch]), labels[batch])
        engine.backward(loss)
        engine.step()
        done = step + 1
        if rank == 0 and done % steps == 0:
            print(f"epoch {done // steps}/{args.epochs}, step {done}: loss {loss.item():.4f}")
        if done % save_every == 0 or done == total:
            engine.save_checkpoint(str(args.checkpoints), client_state={"step": done})

    result = digits.accuracy(engine.module, test_pictures, test_labels)
    print(f"rank {rank}: test accuracy {result:.4f}")
    if rank == 0:
        print(f"test accuracy {result:.4f} on {size} ranks")
        digits.keep(engine.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
