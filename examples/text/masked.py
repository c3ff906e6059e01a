"""A small masked language model like BERT, and its training text.

The text is the reference of Python that `pydoc` prints: half a megabyte of English on every host, without a
download. One of seven words is hidden, and the model predicts the hidden word.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import NamedTuple

import torch
from torch import Tensor, nn

PAD, MASK, UNKNOWN, FIRST = 0, 1, 2, 3  # FIRST: number of the first word
WORDS, LENGTH = 3000, 48  # words of the vocabulary, and of a piece of text
HIDDEN = 0.15  # share of hidden words
TEST_EVERY = 10  # every tenth piece of text belongs to the test set


class Text(NamedTuple):
    """Training pieces and test pieces as numbers of words, and the size of the vocabulary."""

    train: Tensor
    test: Tensor
    vocabulary: int


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=1e-3, help="highest learning rate, after the warm-up")
    parser.add_argument("--batch-size", type=int, default=16, help="pieces per rank and pass")
    parser.add_argument("--accumulate", metavar="N", type=int, default=2, help="passes per step")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="precision of the passes"
    )
    parser.add_argument("--clip", metavar="NORM", type=float, default=1.0, help="limit of the gradient norm")
    return parser


def read() -> Text:
    """Return the text in pieces of LENGTH words, equal on all ranks."""
    whole = " ".join(topics[name] for name in sorted(topics)).lower()
    words = re.findall(r"[a-z]+|[0-9]+|[^\sa-z0-9]", whole)
    common = [word for word, _ in Counter(words).most_common(WORDS)]
    number = {word: FIRST + index for index, word in enumerate(common)}
    numbers = torch.tensor([number.get(word, UNKNOWN) for word in words])
    pieces = numbers[: len(numbers) // LENGTH * LENGTH].view(-1, LENGTH)
    test = torch.arange(len(pieces)) % TEST_EVERY == 0
    return Text(pieces[~test], pieces[test], FIRST + len(common))


def batch(pieces: Tensor, number: int, size: int) -> tuple[Tensor, Tensor]:
    """Return input and targets of a pass; the target is 0 for words that are not hidden.

    The result depends only on the number of the pass, so a resumed run receives the same batches.
    """
    draw = torch.Generator().manual_seed(number)
    chosen = pieces[torch.randint(len(pieces), (size,), generator=draw)]
    return hide(chosen, draw)


def hide(words: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hide words as BERT does: 8 of 10 chosen words become MASK, 1 becomes another word, and 1 stays."""
    chosen = (torch.rand(words.shape, generator=draw) < HIDDEN) & (words >= FIRST)
    kind = torch.rand(words.shape, generator=draw)
    others = torch.randint(FIRST, FIRST + WORDS, words.shape, generator=draw)
    seen = torch.where(chosen & (kind < 0.8), torch.full_like(words, MASK), words)
    seen = torch.where(chosen & (kind >= 0.9), others, seen)
    return seen, torch.where(chosen, words, torch.full_like(words, PAD))


class Model(nn.Module):
    """Encoder of four layers whose input and output share the vectors of the words."""

    def __init__(self, vocabulary: int, width: int = 128, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, words: Tensor) -> Tensor:
        """Return the score of every word of the vocabulary at each position."""
        scores: Tensor = self.encoder(self.words(words) + self.places) @ self.words.weight.T
        return scores


def loss_of(scores: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=PAD)


def schedule(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a factor that rises during the first tenth of the steps, and then falls to 0."""
    warm = max(1, steps // 10)

    def share(step: int) -> float:
        return (step + 1) / warm if step < warm else (steps - step) / max(1, steps - warm)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def accuracy(model: Callable[[Tensor], Tensor], text: Text, device: torch.device) -> float:
    """Return the share of hidden words of the test set that a model predicts."""
    seen, wanted = hide(text.test, torch.Generator().manual_seed(0))
    right = asked = 0
    with torch.no_grad():
        for some, words in zip(seen.split(64), wanted.split(64), strict=True):
            found = model(some.to(device)).argmax(dim=2).cpu()
            right += int((found == words)[words != PAD].sum())
            asked += int((words != PAD).sum())
    return right / asked
