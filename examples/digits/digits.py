"""The handwritten digits, the model and the checkpoint that both training scripts share."""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import torch
from torch import Tensor, nn

DATA = Path(__file__).with_name("digits.csv.gz")
TEST_EVERY = 5  # every fifth picture is for the test, the same ones in every run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--batch-size", type=int, default=32, help="pictures per rank and step")
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


def load(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training pictures and labels, test pictures and labels; a picture is 64 values in 0..1."""
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


def shard(count: int, epoch: int, rank: int, size: int) -> Tensor:
    """This rank's part of `count` pictures in this epoch.

    All ranks shuffle alike (the epoch is the seed) and each takes every size-th picture. The parts
    have the same length: a rank with one step more would wait for the others for ever.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    return order[: count // size * size][rank::size]


def accuracy(model: nn.Module, pictures: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return (model(pictures).argmax(dim=1) == labels).float().mean().item()


def save(folder: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint so that a crash leaves the last one whole."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "digits.pt.new"
    torch.save(
        {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
        unfinished,
    )
    unfinished.replace(folder / "digits.pt")
