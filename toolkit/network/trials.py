"""What is measured to make all-reduce quick: ways to send, algorithms, sizes.

Sources stand beside each; `docs/network.md` says it for people.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.network.measured import shown_bytes

# From coll_tuned_allreduce_decision.c of Open MPI 4.1; 5.0 has the same. 0 leaves the choice to Open MPI.
ALGORITHM_NAMES = {
    0: "Open MPI's own choice",
    5: "segmented ring",
}
# A change must promise at least this, or the default stays: measured times differ by about as much.
LEAST_GAIN = 0.05
# Nothing that is tried touches smaller ones: Open MPI sends up to 64 KiB at once by itself.
SIZES = (65536, 524288, 4194304, 33554432)


@dataclass(frozen=True, order=True)
class Algorithm:
    """One of Open MPI's all-reduces; ``segment`` in bytes, 0 where it takes none."""

    number: int = 0
    segment: int = 0

    def __str__(self) -> str:
        parts = f", {shown_bytes(self.segment)} at a time" if self.segment else ""
        return ALGORITHM_NAMES.get(self.number, f"algorithm {self.number}") + parts

    @property
    def word(self) -> str:
        """As ``toolkit/container/bench/algorithms.py`` takes it."""
        return f"{self.number}:{self.segment}"


DEFAULT = Algorithm()


@dataclass(frozen=True)
class Trial:
    """Settings to measure with, in one job of their own, because they are read when a rank starts.

    Args:
        env: variables of every rank.
        algorithms: to be measured under them; the default among them.
        why: what the variables do.
        gain: the share of the default's time that they must save at the largest size.
    """

    name: str
    env: tuple[tuple[str, str], ...]
    algorithms: tuple[Algorithm, ...]
    why: str
    gain: float = LEAST_GAIN


_AT_ONCE = 1024**2
# By itself Open MPI lets the receiver ask for what is larger than 64 KiB and then puts it there in turn: two
# hosts that send to each other at the same time so use half of a full-duplex link, or all of it, by chance.
# 9 is send and in-place, without put (mca/btl/btl.h).
_STREAMED = {"eager_limit": _AT_ONCE, "rndv_eager_limit": _AT_ONCE, "max_send_size": _AT_ONCE, "flags": 9}
# Few, so that seconds suffice on a slow link: once messages are streamed, none of Open MPI's other algorithms
# was best by more than its spread on 2 to 8 hosts at 100 Mb/s. A trial's first is measured at every size.
MPI_TRIALS = (
    Trial("default", (), (DEFAULT,), "Open MPI as it is"),
    Trial(
        "streamed",
        tuple(sorted((f"OMPI_MCA_btl_tcp_{name}", str(value)) for name, value in _STREAMED.items())),
        (Algorithm(5, 262144), Algorithm(5, 65536), DEFAULT),
        f"messages up to {shown_bytes(_AT_ONCE)} are sent without asking, larger ones in pieces as they come",
        # As quick is enough: what is measured of put is luck, good or bad for minutes.
        gain=-0.02,
    ),
)


def _sockets(threads: int, each: int) -> Trial:
    env = (("NCCL_NSOCKS_PERTHREAD", str(each)), ("NCCL_SOCKET_NTHREADS", str(threads)))
    return Trial(f"{threads * each} sockets", env, (DEFAULT,), f"{threads * each} TCP connections to a peer")


# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html: worth trying on 100 Gbit/s and faster.
NCCL_TRIALS = (Trial("default", (), (DEFAULT,), "NCCL as it is"), _sockets(2, 2), _sockets(4, 4))


def trials(engine: str) -> tuple[Trial, ...]:
    """Return what to measure; nothing for Gloo, which leaves nothing to choose."""
    return {"mpi": MPI_TRIALS, "nccl": NCCL_TRIALS}.get(engine, ())
