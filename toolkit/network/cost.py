"""Duration of an all-reduce from algorithm, number of ranks, bytes and link, and a fit to measured ones.

Every formula is derived in docs/explanation/prediction.md. Sizes are bytes, rates bits of payload per
second, times seconds. A single rank has no peer, and every formula returns 0 for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.network.measured import Point

# Bytes of one gradient; bfloat16 is sent as 2 bytes as well.
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

IP_TCP_HEADERS = 20 + 20 + 12  # IPv4, TCP, and the timestamps that Linux puts into every segment
ETHERNET_FRAME = 14 + 4 + 8 + 12  # header, checksum, preamble, and the gap that must follow a frame


def wire_efficiency(mtu: int = 1500, frame: int = ETHERNET_FRAME) -> float:
    """Return the share of a link's rate that full TCP segments carry as payload.

    MTU 1500: (1500 - 52) / (1500 + 38) = 0.9415. MTU 9000: (9000 - 52) / (9000 + 38) = 0.9900.

    Args:
        mtu: bytes of an IP packet.
        frame: bytes around it that also occupy the link; 14 if a traffic shaper counts.
    """
    return (mtu - IP_TCP_HEADERS) / (mtu + frame)


@dataclass(frozen=True)
class Wire:
    """One kind of connection between two ranks.

    Args:
        rate: bits of payload per second, in each direction at the same time.
        latency: seconds until a short message arrives, one way.
        overhead: additional seconds that sender and receiver spend on each message.
    """

    rate: float
    latency: float = 0.0
    overhead: float = 0.0

    def carry(self, size: float) -> float:
        """Return the seconds that ``size`` bytes take once they flow."""
        return 8 * size / self.rate

    def message(self, size: float) -> float:
        """Return the seconds from a message's first byte sent to its last one received."""
        return self.latency + self.overhead + self.carry(size)


def ring(size: float, ranks: int, wire: Wire) -> float:
    """Return the seconds of reduce-scatter, then all-gather: 2 (n - 1) steps of ``size`` / n bytes in a ring.

    NCCL and Gloo use it for large buffers (Patarasuk and Yuan, 2009).
    """
    return 2 * (ranks - 1) * wire.message(size / ranks)


def recursive_doubling(size: float, ranks: int, wire: Wire) -> float:
    """Return the seconds of log2(n) exchanges of ``size`` bytes, each with a partner at twice the distance.

    Ranks beyond the last power of two send their data first and receive the result last.
    """
    rounds, _, extra = _powers(ranks)
    return (rounds + (2 if extra else 0)) * wire.message(size)


def halving_doubling(size: float, ranks: int, wire: Wire) -> float:
    """Return the seconds of halving, then doubling the exchanged bytes: 2 log2(n) messages.

    Rabenseifner's algorithm (2004), with as few bytes as the ring. Ranks beyond the last power of two cost
    three more messages, of half, half and all of the bytes (as Open MPI's ``redscat_allgather``).
    """
    rounds, core, extra = _powers(ranks)
    seconds = 2 * rounds * wire.message(0) + 2 * (core - 1) / core * wire.carry(size)
    if extra:
        seconds += 3 * wire.message(0) + 2 * wire.carry(size)
    return seconds


def parameter_server(size: float, clients: int, wire: Wire) -> float:
    """Return the seconds in which all clients push to one server and pull from it, through its one link."""
    if not clients:
        return 0.0
    return 2 * (wire.latency + clients * (wire.overhead + wire.carry(size)))


# Open MPI 4.1's own table for sums: fewer ranks than, then (fewer bytes than, algorithm); above the last
# size halving and doubling. From ompi_coll_tuned_allreduce_intra_dec_fixed in its source, which knows more
# rows from 128 ranks on; they differ for short messages only.
_RING, _DOUBLING = "ring", "recursive-doubling"
_OPEN_MPI = (
    (4, ((8, _RING), (4096, _DOUBLING), (8192, _RING), (16384, _DOUBLING), (262144, _RING))),
    (8, ((16, _RING), (8192, _DOUBLING))),
    (16, ((8192, _DOUBLING),)),
    (32, ((64, _RING), (4096, _DOUBLING))),
    (64, ((128, _RING),)),
    (128, ((262144, _DOUBLING),)),
)


def open_mpi_choice(size: float, ranks: int) -> str:
    """Return the algorithm that Open MPI 4.1 chooses by default."""
    sizes = next((row for below, row in _OPEN_MPI if ranks < below), _OPEN_MPI[-1][1])
    return next((algorithm for below, algorithm in sizes if size < below), "halving-doubling")


def allreduce(algorithm: str, size: float, slots: Sequence[int], link: Wire, inside: Wire) -> float:
    """Return the seconds of one all-reduce of ``size`` bytes over hosts with these numbers of ranks.

    Args:
        algorithm: ``ring``, ``hierarchical``, ``halving-doubling``, ``recursive-doubling`` or ``open-mpi``.
        slots: ranks on each host, at least 1.
        link: the slowest connection between hosts that the algorithm uses.
        inside: the connection between two ranks of one host.
    """
    hosts, most, ranks = len(slots), max(slots), sum(slots)
    if algorithm == "open-mpi":
        algorithm = open_mpi_choice(size, ranks)
    if algorithm == "ring":
        # One ring through all ranks enters and leaves every host once, so that a link carries as much as
        # each rank, and the slower of the two kinds of connection limits the throughput.
        if hosts == 1:
            return ring(size, ranks, inside)
        local = inside.rate if most > 1 else link.rate
        return ring(size, ranks, Wire(min(link.rate, local), link.latency, link.overhead))
    if algorithm == "hierarchical":
        # Reduce-scatter inside, the pieces around the hosts at the same time, all-gather inside.
        return ring(size, most, inside) + ring(size, hosts, link)
    if algorithm == "halving-doubling":
        # Near partners first: after log2(m) rounds inside a host, 1/m remains for each of m ranks.
        return halving_doubling(size, most, inside) + halving_doubling(size, hosts, link)
    assert algorithm == "recursive-doubling"
    # The bytes stay the same in each round: all ranks of a host send everything through its link at once.
    return recursive_doubling(size, most, inside) + recursive_doubling(size * most, hosts, link)


def _powers(ranks: int) -> tuple[int, int, int]:
    """Return log2 of the largest power of two that is not above ``ranks``, that power, and the rest."""
    rounds = ranks.bit_length() - 1
    return rounds, 1 << rounds, ranks - (1 << rounds)


@dataclass(frozen=True)
class Fit:
    """A ring's all-reduce with the two numbers that fit the measurements best.

    Args:
        message: seconds that each of the ring's steps costs in addition to its bytes.
        rate: bits of payload per second.
        points: the number of measurements.
        worst: the largest distance from one of them, as a share of it.
    """

    message: float
    rate: float
    points: int
    worst: float

    @property
    def wire(self) -> Wire:
        return Wire(self.rate, self.message)


def fit_ring(points: Sequence[Point]) -> Fit | None:
    """Return the ring that fits the points best, None if they do not determine a rate.

    Least squares of a x + b y with x = 2 (n - 1) messages and y = 2 (n - 1) / n of the bits, which is
    a + b · bytes for one number of ranks. Each point counts by its relative error, because otherwise the
    longest one would decide alone. Neither number can be negative.
    """
    rows = [
        (2 * (p.ranks - 1) / p.seconds, 16 * (p.ranks - 1) / p.ranks * p.size / p.seconds) for p in points
    ]
    if not rows:
        return None
    xx, yy = sum(x * x for x, _ in rows), sum(y * y for _, y in rows)
    xy, x1, y1 = sum(x * y for x, y in rows), sum(x for x, _ in rows), sum(y for _, y in rows)
    determinant = xx * yy - xy * xy
    # With one size only, both columns are proportional: the bytes then explain all of the time.
    message = (x1 * yy - y1 * xy) / determinant if determinant > 1e-9 * xx * yy else 0.0
    per_bit = (y1 - message * xy) / yy
    if message < 0:
        message, per_bit = 0.0, y1 / yy
    if per_bit <= 0:
        return None
    worst = max(abs(message * x + per_bit * y - 1) for x, y in rows)
    return Fit(message, 1 / per_bit, len(points), worst)


def fits(points: Sequence[Point]) -> dict[int, Fit]:
    """Return a fit for each number of ranks that was measured, and one over all of them under 0."""
    groups: dict[int, list[Point]] = {0: list(points)}
    for point in points:
        groups.setdefault(point.ranks, []).append(point)
    made = {ranks: fit_ring(group) for ranks, group in groups.items()}
    return {ranks: fit for ranks, fit in made.items() if fit is not None}
