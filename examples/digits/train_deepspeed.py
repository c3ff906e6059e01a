"""Handwritten digits with DeepSpeed's ZeRO, in an image that has it (`image build --with deepspeed`).

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

    # 1. Join the other ranks, by the variables that every launcher's ranks have.
    deepspeed.init_distributed()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)  # a model this small is slower with more
    torch.manual_seed(1)

    # 2. What is split among the ranks: with stage 2 the optimizer's state and the gradients.
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "gradient_clipping": 5.0,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,  # SGD, as in the other scripts here
    }
    model = digits.make_model()
    # A step now sees `size` times as many pictures, so it may be that much longer.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    pictures, labels, test_pictures, test_labels = digits.load(engine.device)
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
    total, save_every = args.epochs * steps, args.save_every or steps

    # 3. Every rank writes its part, and rank 0 the name of the newest one: the folder must be shared by all
    # hosts. If it is not, a restarted rank 1 finds nothing; better an error than a model half new.
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
        # 4. Each rank learns from its own part of the pictures.
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
