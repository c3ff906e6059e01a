"""A small BERT with DistributedDataParallel: accumulation, mixed precision, clipping, buckets, compression.

toolkit run train_ddp.py --precision bf16 --compress bf16
"""

from __future__ import annotations

import contextlib
import gc
import os
import time

import masked
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def main() -> None:
    parser = masked.arguments()
    parser.add_argument("--bucket-mb", type=float, default=25, help="size of a gradient bucket")
    parser.add_argument("--compress", choices=("none", "fp16", "bf16", "powersgd"), default="none")
    args = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)

    text = masked.read()
    model = masked.Model(text.vocabulary).to(device)
    parallel = DistributedDataParallel(model, bucket_cap_mb=args.bucket_mb, gradient_as_bucket_view=True)
    if args.compress == "bf16" and device.type == "cpu":
        parser.error("--compress bf16 needs NCCL; fp16 works with Gloo as well")
    # A hook compresses gradients to half the size, or to low rank, before ranks add them.
    if args.compress == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=10)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif args.compress != "none":
        hook = getattr(default_hooks, f"{args.compress}_compress_hook")
        parallel.register_comm_hook(None, hook)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=args.lr)
    schedule = masked.schedule(optimizer, args.steps)
    # Scale the loss, because fp16 cannot represent very small gradients.
    scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")
    began = time.monotonic()

    for step in range(args.steps):
        total = torch.zeros((), device=device)
        for part in range(args.accumulate):
            last = part == args.accumulate - 1
            number = (step * args.accumulate + part) * size + rank
            seen, wanted = (each.to(device) for each in masked.batch(text.train, number, args.batch_size))
            # Ranks send gradients once per step, in the last pass.
            with contextlib.nullcontext() if last else parallel.no_sync():
                with torch.autocast(device.type, TYPES[args.precision], enabled=args.precision != "fp32"):
                    loss = masked.loss_of(parallel(seen), wanted) / args.accumulate
                scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parallel.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}/{args.steps}: loss {total.item():.3f}")

    seconds = time.monotonic() - began
    if rank == 0:
        result = masked.accuracy(model, text, device)
        pieces = args.steps * args.accumulate * args.batch_size * size
        print(f"{result:.3f} of the hidden words found; {pieces / seconds:.0f} pieces/s on {size} ranks")
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    # Delete the DDP object before the interpreter exits, as in examples/digits/train_ddp.py.
    del parallel
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
