"""A masked language model in the manner of BERT, small, and the text that it learns from.

The text is Python's own reference, as `pydoc` shows it: half a megabyte of English on every host, without a
download. One word in seven is hidden, and the model says which it was.
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

PAD, MASK, UNKNOWN, FIRST = 0, 1, 2, 3  # FIRST: the first word's number
WORDS, LENGTH = 3000, 48  # of the vocabulary, and of a piece of text
HIDDEN = 0.15  # the share of words that are hidden
TEST_EVERY = 10  # every tenth piece of text is for the test


class Text(NamedTuple):
    """Pieces of text as numbers of words: for training, for the test; and how many words there are."""

    train: Tensor
    test: Tensor
    vocabulary: int


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=1e-3, help="the highest, after the warm-up")
    parser.add_argument("--batch-size", type=int, default=16, help="pieces per rank and pass")
    parser.add_argument("--accumulate", metavar="N", type=int, default=2, help="passes per step")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="of the passes")
    parser.add_argument("--clip", metavar="NORM", type=float, default=1.0, help="the longest gradient")
    return parser


def read() -> Text:
    """The reference, cut into pieces of LENGTH words; the same on every rank."""
    whole = " ".join(topics[name] for name in sorted(topics)).lower()
    words = re.findall(r"[a-z]+|[0-9]+|[^\sa-z0-9]", whole)
    common = [word for word, _ in Counter(words).most_common(WORDS)]
    number = {word: FIRST + index for index, word in enumerate(common)}
    numbers = torch.tensor([number.get(word, UNKNOWN) for word in words])
    pieces = numbers[: len(numbers) // LENGTH * LENGTH].view(-1, LENGTH)
    test = torch.arange(len(pieces)) % TEST_EVERY == 0
    return Text(pieces[~test], pieces[test], FIRST + len(common))


def batch(pieces: Tensor, number: int, size: int) -> tuple[Tensor, Tensor]:
    """The pass of this number: what the model sees, and the words it is to say, 0 where none is asked for.

    All follows from the number, so that a run that goes on sees what it would have seen.
    """
    draw = torch.Generator().manual_seed(number)
    chosen = pieces[torch.randint(len(pieces), (size,), generator=draw)]
    return hide(chosen, draw)


def hide(words: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hide words as BERT does: of those chosen eight in ten by MASK, one by another word, one not at all."""
    chosen = (torch.rand(words.shape, generator=draw) < HIDDEN) & (words >= FIRST)
    kind = torch.rand(words.shape, generator=draw)
    others = torch.randint(FIRST, FIRST + WORDS, words.shape, generator=draw)
    seen = torch.where(chosen & (kind < 0.8), torch.full_like(words, MASK), words)
    seen = torch.where(chosen & (kind >= 0.9), others, seen)
    return seen, torch.where(chosen, words, torch.full_like(words, PAD))


class Model(nn.Module):
    """An encoder of four layers; input and output share their words' vectors."""

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
        """Scores of every word of the vocabulary at each place."""
        scores: Tensor = self.encoder(self.words(words) + self.places) @ self.words.weight.T
        return scores


def loss_of(scores: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=PAD)


def schedule(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Up during the first tenth of the steps, then down to nothing."""
    warm = max(1, steps // 10)

    def share(step: int) -> float:
        return (step + 1) / warm if step < warm else (steps - step) / max(1, steps - warm)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def accuracy(model: Callable[[Tensor], Tensor], text: Text, device: torch.device) -> float:
    """The share of hidden words of the test that are found by what gives scores as `Model` does."""
    seen, wanted = hide(text.test, torch.Generator().manual_seed(0))
    right = asked = 0
    with torch.no_grad():
        for some, words in zip(seen.split(64), wanted.split(64), strict=True):
            found = model(some.to(device)).argmax(dim=2).cpu()
            right += int((found == words)[words != PAD].sum())
            asked += int((words != PAD).sum())
    return right / asked
