"""A byte-level language model with rotary position embeddings, trained with DistributedDataParallel.

toolkit run --launcher torchrun train_rotary.py --precision bf16 --compile

A batched matrix product computes the angles of the rotation, as in the Llama, Qwen and Mistral models of
Transformers. It is an outer product of frequencies and positions. On GPUs, torch 2.13 and later compile a
kernel for it with Triton, unless TORCH_DISABLE_NATIVE_JIT=1 is set
(https://github.com/pytorch/pytorch/issues/196977).
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import checkpoint
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu
from torch.nn.parallel import DistributedDataParallel

BYTES, LENGTH = 256, 128  # values of a byte, and bytes that the model reads at once
TEST_EVERY = 10  # every tenth piece of the text belongs to the test set
BASE = 10000.0  # base of the wavelengths of the rotations


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate after the warm-up")
    parser.add_argument("--batch-size", type=int, default=8, help="pieces of text per rank and step")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="precision of the forward pass"
    )
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument(
        "--checkpoints",
        metavar="DIR",
        type=Path,
        default=Path("checkpoints"),
        help="folder in which rank 0 writes checkpoints, and from which it resumes",
    )
    parser.add_argument("--save-every", metavar="STEPS", type=int, default=50)
    return parser.parse_args()


def load() -> tuple[Tensor, Tensor]:
    """Return the text for training and for the test, as pieces of LENGTH + 1 bytes, equal on all ranks."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    numbers = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    pieces = numbers[: len(numbers) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    test = torch.arange(len(pieces)) % TEST_EVERY == 0
    return pieces[~test], pieces[test]


def batch(pieces: Tensor, number: int, size: int) -> Tensor:
    """Return the pieces of one rank in one step.

    The pieces depend only on the number, so a resumed run reads the same pieces as an uninterrupted run.
    """
    draw = torch.Generator().manual_seed(number)
    return pieces[torch.randint(len(pieces), (size,), generator=draw)]


class Rotary(nn.Module):
    """Cosines and sines of the angle of each pair of features at each position."""

    frequencies: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        exponents = torch.arange(0, features, 2, dtype=torch.float32) / features
        self.register_buffer("frequencies", BASE**-exponents, persistent=False)

    @torch.no_grad()
    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return two tensors of shape (batch, length, features) for positions of shape (batch, length)."""
        # Half precision cannot represent large angles.
        with torch.autocast(positions.device.type, enabled=False):
            column = self.frequencies[None, :, None].expand(len(positions), -1, 1)
            angles = torch.bmm(column, positions[:, None, :].float()).transpose(1, 2)
            angles = torch.cat((angles, angles), dim=-1)
            return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair of features, of which one is in the first half of a vector and one in the second half.

    Args:
        vectors: shape (batch, heads, length, features).
    """
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosines[:, None] + torch.cat((-second, first), dim=-1) * sines[:, None]


class Block(nn.Module):
    """Causal attention with rotated queries and keys, then a gated network; both with a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gated = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        split = self.attention(rms_norm(x, x.shape[-1:], self.before)).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        queries, keys = rotate(queries, cosines, sines), rotate(keys, cosines, sines)
        mixed = scaled_dot_product_attention(queries, keys.to(queries.dtype), values, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gated(rms_norm(x, x.shape[-1:], self.between)).chunk(2, dim=-1)
        result: Tensor = x + self.down(silu(gate) * up)
        return result


class Model(nn.Module):
    """A decoder of a few layers; its input and its output share the vectors of the bytes."""

    def __init__(self, width: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.rotary = Rotary(width // heads)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.Parameter(torch.ones(width))
        nn.init.normal_(self.bytes.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """Return scores of each value of the next byte, of shape (batch, length, BYTES)."""
        positions = torch.arange(text.shape[1], device=text.device).expand(len(text), -1)
        x = self.bytes(text)
        cosines, sines = self.rotary(positions, x.dtype)
        for block in self.blocks:
            x = block(x, cosines, sines)
        scores: Tensor = rms_norm(x, x.shape[-1:], self.last) @ self.bytes.weight.T
        return scores


def loss_of(model: Callable[[Tensor], Tensor], pieces: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next byte, in nats."""
    scores = model(pieces[:, :-1])
    return cross_entropy(scores.flatten(0, 1).float(), pieces[:, 1:].flatten())


def test_loss(model: Callable[[Tensor], Tensor], pieces: Tensor, device: torch.device) -> float:
    """Return the mean loss of the pieces for the test."""
    with torch.no_grad():
        parts = [loss_of(model, part.to(device)) * len(part) for part in pieces[:256].split(32)]
    return torch.stack(parts).sum().item() / len(pieces[:256])


def main() -> None:
    args = arguments()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)

    train, test = load()
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    # All ranks resume from the checkpoint of rank 0, which alone writes checkpoints.
    found = checkpoint.latest(args.checkpoints) if rank == 0 else None
    held = [found.path.read_bytes() if found else None]
    dist.broadcast_object_list(held, src=0, device=device)
    first = 0
    if held[0] is not None:
        state = torch.load(io.BytesIO(held[0]), map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        if rank == 0:
            print(f"resumes after step {first} of {args.steps}")
    if args.compile:
        model.compile()  # in place: the names of the weights in checkpoints stay the same
    parallel = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    warmup = max(1, args.steps // 10)
    began = time.monotonic()

    for step in range(first, args.steps):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, (step + 1) / warmup)
        pieces = batch(train, step * size + rank, args.batch_size).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
            loss = loss_of(parallel, pieces)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
        optimizer.step()
        done = step + 1
        if rank == 0 and (done % 50 == 0 or done == args.steps):
            print(f"step {done}/{args.steps}: loss {loss.item():.3f}")
        if rank == 0 and (done % args.save_every == 0 or done == args.steps):
            state = {"step": done, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint.save(args.checkpoints, done, lambda file, state=state: torch.save(state, file))

    seconds = time.monotonic() - began
    # The method itself is not compiled; the compiled model would compile once more for this batch size.
    print(f"rank {rank}: test loss {test_loss(model.forward, test, device):.4f}")
    if rank == 0:
        count = (args.steps - first) * args.batch_size * LENGTH * size
        print(f"{count / seconds:.0f} bytes/s on {size} ranks")
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    # Delete the DDP object before the interpreter exits, as in examples/digits/train_ddp.py.
    del parallel
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
