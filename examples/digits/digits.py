"""Data, model and checkpoints that the training scripts of this folder share."""

from __future__ import annotations

import argparse
import gzip
import io
import math
from pathlib import Path

import checkpoint
import torch
from torch import Tensor, nn

DATA = Path(__file__).with_name("digits.csv.gz")
TEST_EVERY = 5  # every fifth picture belongs to the test set, in every run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--batch-size", type=int, default=32, help="pictures per rank and step")
    parser.add_argument(
        "--checkpoints",
        metavar="DIR",
        type=Path,
        default=Path("checkpoints"),
        help="folder of the checkpoints, from which the script resumes",
    )
    parser.add_argument("--save-every", metavar="STEPS", type=int, default=0, help="0 saves after each epoch")
    return parser.parse_args()


def load(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training pictures and labels, test pictures and labels; a picture has 64 values from 0 to 1."""
    with gzip.open(DATA, "rt") as file:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in file])
    rows = rows.to(device)
    pictures, labels = rows[:, :64] / 16, rows[:, 64].long()
    test = torch.arange(len(rows), device=device) % TEST_EVERY == 0
    return pictures[~test], labels[~test], pictures[test], labels[test]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def steps_per_epoch(count: int, batch_size: int, size: int) -> int:
    return math.ceil(count // size / batch_size)


def batch(count: int, step: int, batch_size: int, rank: int, size: int) -> Tensor:
    """Return the numbers of the pictures of a rank in a step, of `count` pictures in total.

    The pictures depend only on the step, so a run that continues from a checkpoint receives the pictures of
    an uninterrupted run. All ranks shuffle with the epoch as seed, and each takes every size-th picture. All
    parts have the same length, because a rank with one step more would wait for the other ranks forever.
    """
    epoch, number = divmod(step, steps_per_epoch(count, batch_size, size))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    part = order[: count // size * size][rank::size]
    return part[number * batch_size : (number + 1) * batch_size]


def accuracy(model: nn.Module, pictures: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return (model(pictures).argmax(dim=1) == labels).float().mean().item()


def read(folder: Path) -> bytes | None:
    """Return the newest complete checkpoint, for rank 0: other hosts can have other checkpoints."""
    found = checkpoint.latest(folder)
    return found.path.read_bytes() if found else None


def restore(
    data: bytes | None, count: int, steps: int, model: nn.Module, optimizer: torch.optim.Optimizer
) -> int:
    """Load a checkpoint if one exists, and return the step at which training continues.

    The position of a run is a number of pictures, because the steps per epoch depend on the number of ranks.
    The learning rate also depends on the number of ranks, so it is not restored from the checkpoint.
    """
    if data is None:
        return 0
    state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state["optimizer"])
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return round(state["seen"] * steps / count)


def save(
    folder: Path,
    count: int,
    steps: int,
    done: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Write a checkpoint for `restore`, without seeds: only the first weights are random."""
    seen = done * count // steps
    state = {"seen": seen, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    checkpoint.save(folder, seen, lambda file: torch.save(state, file))


def keep(model: nn.Module) -> None:
    """Write the trained model completely or not at all."""
    unfinished = Path("digits.pt.new")
    torch.save(model.state_dict(), unfinished)
    unfinished.replace("digits.pt")
