"""Handwritten digits with PyTorch Lightning (`toolkit image build --with lightning`).

toolkit run train_lightning.py --epochs 10

Lightning requires the same number of ranks on every host.
"""

from __future__ import annotations

import argparse
import os

import digits
import lightning
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self, args: argparse.Namespace, size: int) -> None:
        super().__init__()
        self.rate = args.lr * size  # a step processes `size` times as many pictures
        self.model = digits.make_model()

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        pictures, labels = batch
        return cross_entropy(self.model(pictures), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)


def main() -> None:
    args = digits.arguments()
    size, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(1)  # such a small model is slower with more threads
    lightning.seed_everything(1, verbose=False)
    pictures, labels, test_pictures, test_labels = digits.load(torch.device("cpu"))
    module = Digits(args, size)
    # Under torchrun, the Trainer finds the other ranks and divides the pictures among them.
    trainer = lightning.Trainer(
        num_nodes=size // local,
        devices=local,
        strategy="ddp",
        max_epochs=args.epochs,
        default_root_dir=args.checkpoints,
        enable_progress_bar=False,
        enable_checkpointing=args.save_every > 0,
        logger=False,
    )
    loader = DataLoader(TensorDataset(pictures, labels), args.batch_size, shuffle=True)
    trainer.fit(module, loader)
    result = digits.accuracy(module.model.cpu(), test_pictures, test_labels)
    print(f"rank {trainer.global_rank}: test accuracy {result:.4f}")
    if trainer.is_global_zero:
        print(f"test accuracy {result:.4f} on {size} ranks")
        digits.keep(module.model)


if __name__ == "__main__":
    main()
