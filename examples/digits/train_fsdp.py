"""Handwritten digits with fully sharded data parallel of PyTorch: each rank stores a part of the model.

toolkit run train_fsdp.py --epochs 10
"""

from __future__ import annotations

import io
import os

import checkpoint
import digits
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def main() -> None:
    args = digits.arguments()

    # 1. Connect to the other ranks, and select the GPU by the local rank.
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.set_num_threads(1)  # such a small model is slower with more threads
    torch.manual_seed(1)

    pictures, labels, test_pictures, test_labels = digits.load(device)
    model = digits.make_model().to(device)
    steps = digits.steps_per_epoch(len(pictures), args.batch_size, size)
    total, save_every = args.epochs * steps, args.save_every or steps

    # 2. Each rank stores a shard of each layer's weights. FSDP gathers the shards while a layer computes.
    mesh = init_device_mesh(device.type, (size,))
    for layer in model.children():
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    # 3. Scale the learning rate, because a step now processes `size` times as many pictures.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9)

    # 4. All ranks resume from the checkpoint of rank 0, and each rank loads its own shard.
    held = [digits.read(args.checkpoints) if rank == 0 else None]
    dist.broadcast_object_list(held, src=0)
    first = 0
    if held[0] is not None:
        state = torch.load(io.BytesIO(held[0]), weights_only=True)
        weights, momentum = state["model"], state["optimizer"]
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=momentum, options=WHOLE)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * size  # depends on the number of ranks
        first = round(state["seen"] * steps / len(pictures))
    if rank == 0 and first:
        print(f"continues after step {first} of {total}")

    for step in range(first, total):
        # 5. Each rank trains on its own part of the pictures.
        batch = digits.batch(len(pictures), step, args.batch_size, rank, size).to(device)
        optimizer.zero_grad()
        loss = cross_entropy(model(pictures[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        done = step + 1
        if rank == 0 and done % steps == 0:
            print(f"epoch {done // steps}/{args.epochs}, step {done}: loss {loss.item():.4f}")
        if done % save_every == 0 or done == total:
            # 6. All ranks send their shards to rank 0, which writes the checkpoint.
            weights, momentum = get_state_dict(model, optimizer, options=WHOLE)
            if rank == 0:
                state = {"seen": done * len(pictures) // steps, "model": weights, "optimizer": momentum}
                data = io.BytesIO()
                torch.save(state, data)
                checkpoint.save(args.checkpoints, state["seen"], data.getvalue())

    # All ranks compute with the same weights, so each rank computes the same accuracy on the test set.
    result = digits.accuracy(model, test_pictures, test_labels)
    print(f"rank {rank}: test accuracy {result:.4f}")
    weights, _ = get_state_dict(model, (), options=WHOLE)
    if rank == 0:
        print(f"test accuracy {result:.4f} on {size} ranks")
        whole = digits.make_model()
        whole.load_state_dict(weights)
        digits.keep(whole)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
