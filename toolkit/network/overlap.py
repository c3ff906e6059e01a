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


def fill(total: float, buckets: Buckets) -> tuple[float, ...]:
    """Return the bytes of each bucket, in the order in which they become ready."""
    left, sizes = total, []
    if buckets.first and left > 0:
        sizes.append(min(left, buckets.first))
        left -= sizes[0]
    while left > 0:
        sizes.append(min(left, buckets.size))
        left -= sizes[-1]
    return tuple(sizes)


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


def step(compute: float, sizes: Sequence[float], seconds: Sequence[float]) -> Step:
    """Return how long a step takes.

    Args:
        compute: seconds of forward, backward and update on one slot.
        sizes: bytes of each bucket, in the order in which they become ready.
        seconds: how long each one's all-reduce takes.
    """
    total, wire = sum(sizes), sum(seconds)
    forward = compute * (1 - BACKWARD_SHARE)
    done = ready = 0.0
    for size, takes in zip(sizes, seconds, strict=True):
        ready += size
        done = max(done, forward + compute * BACKWARD_SHARE * ready / total) + takes
    return Step(max(compute, wire), max(compute, done), compute + wire)


def wire_seconds(sizes: Sequence[float], one: Callable[[float], float]) -> tuple[float, ...]:
    """Return the seconds of each bucket; ``one`` is asked once for each size that occurs."""
    known = {size: one(size) for size in dict.fromkeys(sizes)}
    return tuple(known[size] for size in sizes)
