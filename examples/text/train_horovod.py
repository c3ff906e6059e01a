"""A small BERT with Horovod: accumulation, mixed precision, clipping, fusion, compression.

toolkit run --env HOROVOD_FUSION_THRESHOLD=33554432 train_horovod.py --precision bf16 --compress fp16
"""

from __future__ import annotations

import time

import horovod.torch as hvd
import masked
import torch

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def main() -> None:
    parser = masked.arguments()
    parser.add_argument(
        "--compress", choices=("none", "fp16"), default="none", help="compression of gradients"
    )
    args = parser.parse_args()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    torch.manual_seed(1)

    text = masked.read()
    model = masked.Model(text.vocabulary).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = masked.schedule(optimizer, args.steps)
    # Weights and gradients stay fp32, because Horovod has no bfloat16. The passes can still use bf16.
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.compress == "fp16" else hvd.Compression.none,
        backward_passes_per_step=args.accumulate,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")
    began = time.monotonic()

    for step in range(args.steps):
        total = torch.zeros((), device=device)
        for part in range(args.accumulate):
            number = (step * args.accumulate + part) * size + rank
            seen, wanted = (each.to(device) for each in masked.batch(text.train, number, args.batch_size))
            with torch.autocast(device.type, TYPES[args.precision], enabled=args.precision != "fp32"):
                loss = masked.loss_of(model(seen), wanted) / args.accumulate
            scaler.scale(loss).backward()
            total += loss.detach()
        # Clip the averaged gradients, so first wait for the all-reduce.
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        with optimizer.skip_synchronize():
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
    hvd.shutdown()


if __name__ == "__main__":
    main()
