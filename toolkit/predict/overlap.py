"""From an all-reduce to a step: buckets of gradients, and how much of their way the backward pass hides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# For each product of the forward pass the backward pass computes two: gradients by weights and by inputs.
BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True)
class Buckets:
    """How gradients are put together before they travel.

    Args:
        name: what people call it.
        size: bytes of a full bucket.
        first: bytes of the one that is ready first, 0 when it is like the others.
    """

    name: str
    size: int
    first: int = 0


# DistributedDataParallel: bucket_cap_mb is 25, the first bucket is 1 MiB so that the wire starts early.
# Horovod: HOROVOD_FUSION_THRESHOLD; 128 MiB in the source of 0.28, although its documentation says 64 MB.
BUCKETS = {
    "ddp": Buckets("ddp", 25 * 2**20, 2**20),
    "horovod": Buckets("horovod", 128 * 2**20),
}


# Buckets of one size that follow each other: bytes of each, how many. There may be millions of them.
Run = tuple[float, int]


def fill(total: float, buckets: Buckets) -> tuple[Run, ...]:
    """Return the buckets that ``total`` bytes fill, in the order in which they become ready."""
    first = min(total, buckets.first)
    full, rest = divmod(total - first, buckets.size)
    return tuple(run for run in ((first, 1), (buckets.size, int(full)), (rest, 1)) if run[0] and run[1])


@dataclass(frozen=True)
class Step:
    """Seconds of one step: between two bounds that hold whatever the framework does, and in between.

    Args:
        least: everything hidden: the longer of computing and sending.
        likely: each bucket sets out once it is ready and the one before it has arrived. Assumes that bytes
            become ready evenly during the backward pass, and that this is two thirds of the computing.
        most: nothing hidden: computing, then sending.
    """

    least: float
    likely: float
    most: float


def step(compute: float, runs: Sequence[Run], seconds: Sequence[float]) -> Step:
    """Return how long a step takes.

    A bucket that finds the wire busy waits, so the last one arrives when for some bucket all from it on
    have travelled one after another since it was ready. Within a run that is the first or the last.

    Args:
        compute: seconds of forward, backward and update on one slot.
        runs: the buckets.
        seconds: how long the all-reduce of one bucket of each run takes.
    """
    total = sum(size * count for size, count in runs)
    wire = whole_wire(runs, seconds)
    forward, backward = compute * (1 - BACKWARD_SHARE), compute * BACKWARD_SHARE
    done, before, left = 0.0, 0.0, wire
    for (size, count), takes in zip(runs, seconds, strict=True):
        for index in (1, count):
            ready = forward + backward * (before + index * size) / total
            done = max(done, ready + left - (index - 1) * takes)
        before += count * size
        left -= count * takes
    return Step(max(compute, wire), max(compute, done), compute + wire)


def each_wire(runs: Sequence[Run], one: Callable[[float], float]) -> tuple[float, ...]:
    """Return the seconds of one bucket of each run; ``one`` says them of a number of bytes."""
    return tuple(one(size) for size, _ in runs)


def whole_wire(runs: Sequence[Run], seconds: Sequence[float]) -> float:
    """Return the seconds of all buckets together."""
    return sum(count * takes for (_, count), takes in zip(runs, seconds, strict=True))
