"""Settings that make all-reduce quickest on this network: what is tried, what is chosen, and its JSON.

Open MPI chooses its all-reduce by tables that were made on fast networks, and moves large messages in a way
that suits those. On a slow link both cost: at 100 Mb/s its own choice reaches half to two thirds of the wire
(``bench/bench_allreduce.py``). Both can be set, and which is best depends on link, hosts and ranks, so it is
measured.

Gloo has one algorithm for all sizes and no setting for it. NCCL chooses among its own by a model of the
network; what it does not find by itself is how many sockets a TCP link needs. Sources stand beside each
trial; `docs/explanation/network.md` says it for people.

The choice is kept on main as JSON, and handed to jobs:

    {"tuned": [{"engine": "mpi", "hosts": [["gpu1", "10.0.0.1", 2], …], "when": "2026-01-02 03:04",
      "env": {"OMPI_MCA_…": "…"}, "rules": [[65536, 5, 65536], …], "why": ["…"],
      "timings": [["streamed", "5:65536", 4194304, 0.35], …]}, …]}

A rule is bytes from which it holds, algorithm, bytes of a segment; a timing is trial, algorithm with its
segment, bytes, seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.network.measured import shown_bytes, shown_time
from toolkit.protocol.bench import AlgorithmTime, Tuned, TunedFile
from toolkit.protocol.decode import DecodeError, decode_json

# From coll_tuned_allreduce_decision.c of Open MPI 4.1; 5.0 has the same. 0 leaves the choice to Open MPI.
ALGORITHM_NAMES = {
    0: "Open MPI's own choice",
    5: "segmented ring",
}
# A change must promise at least this, or the default stays: measured times differ by about as much.
LEAST_GAIN = 0.05
# Below the largest size times spread more, and nothing that is tried changes much: only real harm counts.
MOST_LOSS = 0.15
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


@dataclass(frozen=True)
class Timing:
    """Median seconds of one all-reduce of ``size`` bytes, the slowest rank's."""

    trial: str
    algorithm: Algorithm
    size: int
    seconds: float


@dataclass(frozen=True)
class Rule:
    """From this many bytes on, up to the next rule's, this algorithm."""

    size: int
    algorithm: Algorithm


@dataclass(frozen=True)
class Tuning:
    """What was chosen for one set of ranks.

    Args:
        engine: ``mpi`` or ``nccl``: what does the all-reduce.
        hosts: the ranks that it holds for, as (host, data address, slots) in rank order.
        env: variables for every rank of a job on exactly these.
        rules: empty where the engine's own choice stays for all sizes.
        why: reasons, one a line.
        timings: what was measured.
    """

    engine: str
    hosts: tuple[tuple[str, str, int], ...]
    env: tuple[tuple[str, str], ...] = ()
    rules: tuple[Rule, ...] = ()
    why: tuple[str, ...] = ()
    timings: tuple[Timing, ...] = ()
    when: str = ""

    @property
    def ranks(self) -> int:
        return sum(slots for _, _, slots in self.hosts)

    @property
    def changes(self) -> bool:
        """Whether a job gets anything by it."""
        return bool(self.env or self.rules)


def choose_tuning(
    engine: str, hosts: Sequence[tuple[str, str, int]], timings: Sequence[Timing], when: str = ""
) -> Tuning:
    """Return what is quicker than the default at large messages, by a trial's ``gain``, and harms no size.

    Args:
        timings: of the default trial and of others; a size counts where the default was measured.
        when: date and time, for people.
    """
    usual = {t.size: t.seconds for t in timings if t.trial == "default" and t.algorithm == DEFAULT}
    known = [t for t in timings if t.size in usual]
    if not known:
        return Tuning(engine, tuple(hosts), why=("nothing was measured",), timings=tuple(timings), when=when)
    # The first is the default, which always has one.
    offers = [_offer(trial, known, usual) for trial in trials(engine)]
    taken = [offer for offer in offers if offer is not None]
    best = min((o for o in taken if o.trial.env), key=lambda offer: offer.cost, default=taken[0])
    rules = best.rules if engine == "mpi" else ()
    env = best.trial.env
    if rules:
        env = (*env, ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"))
    return Tuning(
        engine,
        tuple(hosts),
        tuple(sorted(env)),
        rules,
        tuple(_reasons(best, usual)),
        tuple(timings),
        when,
    )


@dataclass(frozen=True)
class _Offer:
    """The best that can be made of a trial; ``cost`` is the mean of log(seconds / default's) over sizes."""

    trial: Trial
    times: tuple[tuple[int, Algorithm, float], ...]
    rules: tuple[Rule, ...]
    cost: float


def _offer(trial: Trial, timings: Sequence[Timing], usual: dict[int, float]) -> _Offer | None:
    """Return a trial's offer, None when it would make some size slower or promises too little."""
    mine = [t for t in timings if t.trial == trial.name]
    # Where time did not allow the largest size, what is taken last holds for larger messages, unmeasured.
    last = max((t.size for t in mine), default=0)
    times = []
    for size in sorted({t.size for t in mine}):
        there = {t.algorithm: t.seconds for t in mine if t.size == size}
        taken = _quickest(there, stands_for_larger=bool(trial.env) and size == last < max(SIZES))
        times.append((size, taken, there[taken]))
    if not times or any(seconds > usual[size] * (1 + MOST_LOSS) for size, _, seconds in times):
        return None
    large, _, seconds = times[-1]
    if trial.env and seconds > usual[large] * (1 - trial.gain):
        return None
    cost = sum(math.log(seconds / usual[size]) for size, _, seconds in times) / len(times)
    return _Offer(trial, tuple(times), _rules(times), cost)


def _quickest(there: Mapping[Algorithm, float], stands_for_larger: bool) -> Algorithm:
    """Return the engine's own choice unless another is clearly quicker.

    Args:
        stands_for_larger: take a segmented ring among equals: its messages stay as they were measured however
            large the buffer is.
    """
    best = min(there.values())
    equal = [a for a in there if there[a] <= best * (1 + LEAST_GAIN)]
    if stands_for_larger and (rings := [a for a in equal if a.segment]):
        return min(rings, key=lambda a: there[a])
    return DEFAULT if DEFAULT in equal else min(equal, key=lambda a: there[a])


def _rules(times: Sequence[tuple[int, Algorithm, float]]) -> tuple[Rule, ...]:
    """One rule wherever the algorithm changes; below the smallest size the engine's own choice."""
    rules = [Rule(0, DEFAULT)]
    for size, algorithm, _ in times:
        if algorithm != rules[-1].algorithm:
            rules.append(Rule(size, algorithm))
    return tuple(rules) if len(rules) > 1 else ()


def _reasons(best: _Offer, usual: dict[int, float]) -> Iterable[str]:
    if best.trial.env:
        yield best.trial.why
    for size, algorithm, seconds in best.times:
        gain = usual[size] / seconds
        if algorithm != DEFAULT or gain > 1 + LEAST_GAIN:
            said = f"{shown_time(seconds)} in place of {shown_time(usual[size])}"
            yield f"{shown_bytes(size)}: {algorithm}: {said}, {gain:.2f} x as fast"
    if not best.trial.env and not best.rules:
        yield "nothing was clearly quicker than the engine's own choice"


def tuned_for(hosts: Sequence[tuple[str, str, int]], kept: Iterable[Tuning]) -> tuple[Tuning, ...]:
    """Return what was tuned for exactly these ranks, at most one for each engine."""
    return tuple(tuning for tuning in kept if tuning.hosts == tuple(hosts))


def replace_tuning(kept: Iterable[Tuning], new: Tuning) -> tuple[Tuning, ...]:
    """Return what is kept, with the new one in the place of an earlier one for the same ranks."""
    return (*(t for t in kept if (t.engine, t.hosts) != (new.engine, new.hosts)), new)


def rules_text(tuning: Tuning) -> str:
    """Return Open MPI's file of rules; empty when there is none.

    Numbers alone, read by coll_tuned_dynamic_file.c: how many collectives; then for each its number
    (2 is all-reduce), how many sizes of communicator; for each that size, how many sizes of message; for
    each bytes, algorithm, fan-in/out, bytes of a segment. A rule holds from its size on, so a communicator
    smaller than this one is left to Open MPI.
    """
    if not tuning.rules:
        return ""
    lines = [f"{rule.size} {rule.algorithm.number} 0 {rule.algorithm.segment}" for rule in tuning.rules]
    return "\n".join(("1", "2", "1", str(tuning.ranks), str(len(lines)), *lines)) + "\n"


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """Return one tuning as a JSON object."""
    return {
        "engine": tuning.engine,
        "hosts": [list(host) for host in tuning.hosts],
        "when": tuning.when,
        "env": dict(tuning.env),
        "rules": [[r.size, r.algorithm.number, r.algorithm.segment] for r in tuning.rules],
        "why": list(tuning.why),
        "timings": [[t.trial, t.algorithm.word, t.size, t.seconds] for t in tuning.timings],
    }


def tunings_text(tunings: Iterable[Tuning]) -> str:
    """Return the text of the file that is kept."""
    return json.dumps({"tuned": [tuning_json(tuning) for tuning in tunings]}, indent=1) + "\n"


def parse_tunings(text: str) -> tuple[Tuning, ...]:
    """Return what the file says; nothing when it is not there or cannot be understood."""
    try:
        return tuple(map(_tuning, decode_json(TunedFile, text).tuned))
    except DecodeError:
        return ()


def parse_timings(trial: str, rows: Sequence[AlgorithmTime]) -> tuple[Timing, ...]:
    """Return what ``toolkit/container/bench/algorithms.py`` printed of one trial."""
    return tuple(Timing(trial, parse_algorithm(row.algorithm), row.bytes, row.seconds) for row in rows)


def parse_algorithm(word: str) -> Algorithm:
    """Return the algorithm of ``NUMBER:SEGMENT``.

    Raises:
        ValueError: it is none.
    """
    number, _, segment = word.partition(":")
    return Algorithm(int(number), int(segment))


def _tuning(item: Tuned) -> Tuning:
    return Tuning(
        engine=item.engine,
        hosts=item.hosts,
        env=tuple(sorted(item.env.items())),
        rules=tuple(Rule(size, Algorithm(number, segment)) for size, number, segment in item.rules),
        why=item.why,
        timings=tuple(
            Timing(trial, parse_algorithm(word), size, seconds) for trial, word, size, seconds in item.timings
        ),
        when=item.when,
    )
