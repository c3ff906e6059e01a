"""A network as it was measured: every ordered pair of hosts, and all-reduce by size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# From here on the cost of a byte outweighs that of a message, so that the wire is what is seen.
WIRE_BYTES = 1024**2


@dataclass(frozen=True)
class Pair:
    """One direction between two hosts: ``rate`` in bit/s of payload, ``latency`` one way in seconds."""

    source: str
    target: str
    rate: float
    latency: float


@dataclass(frozen=True)
class Point:
    """The median all-reduce of ``size`` bytes over ``ranks`` ranks, in seconds of the slowest rank."""

    size: int
    ranks: int
    seconds: float

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in byte/s: size over time.

        As nccl-tests define it: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
        """
        return self.size / self.seconds

    @property
    def busbw(self) -> float:
        """Bus bandwidth in byte/s: ``algbw`` x 2 (n - 1) / n, what each rank's link carries each way."""
        return self.algbw * 2 * (self.ranks - 1) / self.ranks


@dataclass(frozen=True)
class Measured:
    """What `toolkit bench network` found.

    Args:
        hosts: in the job's order.
        engine: what did the all-reduce: ``mpi``, ``gloo`` or ``nccl``.
        faults: pairs that could not be measured, in words.
    """

    hosts: tuple[str, ...]
    pairs: tuple[Pair, ...]
    allreduce: tuple[Point, ...] = ()
    engine: str = ""
    faults: tuple[str, ...] = ()

    @property
    def slowest(self) -> Pair | None:
        """The link with the lowest rate; a ring is as fast as that one."""
        return min(self.pairs, key=lambda link: link.rate, default=None)

    def wire_share(self, point: Point) -> float | None:
        """Return which share of the slowest link's rate an all-reduce reached, 1.0 for all of it.

        Ranks of one host share its link, and a ring in host order crosses it once each way, so that a
        host's link carries 2 (n - 1) / n of the bytes whatever its number of ranks. None for sizes at
        which the cost of messages is what is seen, or the buffers on the way.
        """
        slowest = self.slowest
        if slowest is None or not slowest.rate or point.size < WIRE_BYTES:
            return None
        return 8 * point.busbw / slowest.rate

    def verdict(self) -> str:
        """Return the slowest link and what it costs, in one sentence."""
        slowest = self.slowest
        if slowest is None:
            return "one host: nothing between hosts to measure"
        rates = sorted(link.rate for link in self.pairs)
        median = rates[len(rates) // 2]
        text = f"slowest link: {slowest.source} to {slowest.target}, {shown_rate(slowest.rate)}"
        if slowest.rate < 0.8 * median:
            times = median / slowest.rate
            text += (
                f"; the middle one has {shown_rate(median)}, so every all-reduce takes {times:.1f} x as long"
            )
        return text

    def as_json(self) -> dict[str, Any]:
        """Return what ``toolkit.network.measured_json`` reads, and what follows from it."""
        return {
            "hosts": list(self.hosts),
            "pairs": [
                {"from": k.source, "to": k.target, "mbit": k.rate / 1e6, "latency_us": k.latency * 1e6}
                for k in self.pairs
            ],
            "engine": self.engine,
            "allreduce": [
                {
                    "bytes": p.size,
                    "ranks": p.ranks,
                    "seconds": p.seconds,
                    "algbw": p.algbw,
                    "busbw": p.busbw,
                    "wire_share": self.wire_share(p),
                }
                for p in self.allreduce
            ],
            "faults": list(self.faults),
            "verdict": self.verdict(),
        }


def shown_rate(rate: float) -> str:
    """Return bit/s for people: ``95.6 Mb/s``, ``9.41 Gb/s``."""
    for unit, size in (("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.0f} b/s"


def shown_bytes(size: int) -> str:
    """Return a power-of-two size for people: ``64 KiB``, ``256 MiB``."""
    for unit, one in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size >= one:
            return f"{size / one:g} {unit}"
    return f"{size} B"


def shown_time(seconds: float) -> str:
    """Return a duration for people: ``12 us``, ``1.35 ms``, ``2.79 s``."""
    for unit, one in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= one:
            return f"{seconds / one:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def shown_share(share: float | None) -> str:
    """Return a share for people, empty for none: ``64 %``."""
    return "" if share is None else f"{100 * share:.0f} %"
