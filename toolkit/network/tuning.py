"""Which settings make all-reduce quickest on this network: what to try, and what to take of it.

Open MPI chooses its all-reduce by tables that were made on fast networks, and moves large messages in a way
that suits those. On a slow link both cost: at 100 Mb/s its own choice reaches half to two thirds of the wire
(``bench/bench_allreduce.py``). Both can be set, and which is best depends on link, hosts and ranks, so it is
measured.

Gloo has one algorithm for all sizes and no setting for it. NCCL chooses among its own by a model of the
network; what it does not find by itself is how many sockets a TCP link needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.network.measured import shown_bytes, shown_time
from toolkit.network.trials import DEFAULT, LEAST_GAIN, SIZES, Algorithm, Trial, trials

# Below the largest size times spread more, and nothing that is tried changes much: only real harm counts.
MOST_LOSS = 0.15


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
