"""Settings for the fastest all-reduce on this network: trials, choice, and its JSON.

Open MPI chooses its all-reduce by tables that were made on fast networks, and sends large messages in a way
that suits those. On a slow link both cost time: at 100 Mb/s its default reaches half to two thirds of the
link's rate (``bench/bench_allreduce.py``). Both can be set, and the best setting depends on link, hosts and
ranks, so toolkit measures it.

Gloo has one algorithm for all sizes and no setting for it. NCCL chooses its algorithm by a model of the
network, but not the number of sockets that a TCP link needs. A comment beside each trial names its
source; `docs/explanation/network.md` explains the choice.

The choice is kept on main as JSON, and passed to jobs:

    {"tuned": [{"engine": "mpi", "hosts": [["gpu1", "10.0.0.1", 2], …], "when": "2026-01-02 03:04",
      "env": {"OMPI_MCA_…": "…"}, "rules": [[65536, 5, 65536], …], "why": ["…"],
      "timings": [["streamed", "5:65536", 4194304, 0.35], …]}, …]}

A rule contains the first message size in bytes, the algorithm, and the bytes of a segment; a timing contains
trial, algorithm with its segment, bytes, seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from toolkit.network.measured import shown_bytes, shown_time
from toolkit.protocol.bench import AlgorithmTime, Tuned, TunedFile
from toolkit.protocol.decode import DecodeError, decode, decode_json

# From coll_tuned_allreduce_decision.c of Open MPI 4.1; 5.0 has the same. 0: Open MPI or NCCL chooses.
ALGORITHM_NAMES = {
    0: "the default algorithm",
    5: "segmented ring",
}
# The least gain of a change; otherwise the default stays. Repeated measurements differ by about as much.
LEAST_GAIN = 0.05
# Below the largest size, times vary more and the trials change little: only a clear loss counts.
MOST_LOSS = 0.15
# The trials do not affect smaller messages: by default Open MPI sends up to 64 KiB at once.
SIZES = (65536, 524288, 4194304, 33554432)


@dataclass(frozen=True, order=True)
class Algorithm:
    """One of Open MPI's all-reduces; ``segment`` in bytes, 0 if it has none."""

    number: int = 0
    segment: int = 0

    def __str__(self) -> str:
        parts = f" with segments of {shown_bytes(self.segment)}" if self.segment else ""
        return ALGORITHM_NAMES.get(self.number, f"algorithm {self.number}") + parts

    @property
    def word(self) -> str:
        """The form that ``toolkit/container/bench/algorithms.py`` accepts."""
        return f"{self.number}:{self.segment}"


DEFAULT = Algorithm()


@dataclass(frozen=True)
class Trial:
    """Settings to measure in a separate job, because a rank reads them when it starts.

    Args:
        env: variables of every rank.
        algorithms: algorithms to measure with them; the default among them.
        why: the effect of the variables.
        gain: the share of the default's time that they must save at the largest size.
        least: minimum of the largest measured size, in bytes; smaller messages show nothing about them.
    """

    name: str
    env: tuple[tuple[str, str], ...]
    algorithms: tuple[Algorithm, ...]
    why: str
    gain: float = LEAST_GAIN
    least: int = 0


_AT_ONCE = 1024**2
# By default Open MPI sends messages above 64 KiB when the receiver requests them, and with put operations in
# turn: two hosts that send to each other use half of a full-duplex link, or all of it, by chance.
# 9 is send and in-place, without put (mca/btl/btl.h).
_STREAMED = {"eager_limit": _AT_ONCE, "rndv_eager_limit": _AT_ONCE, "max_send_size": _AT_ONCE, "flags": 9}
# Few, so that seconds suffice on a slow link: once messages are streamed, none of Open MPI's other algorithms
# was best by more than its spread on 2 to 8 hosts at 100 Mb/s. A trial's first is measured at every size.
MPI_TRIALS = (
    Trial("default", (), (DEFAULT,), "the default settings of Open MPI"),
    Trial(
        "streamed",
        tuple(sorted((f"OMPI_MCA_btl_tcp_{name}", str(value)) for name, value in _STREAMED.items())),
        (Algorithm(5, 262144), Algorithm(5, 65536), DEFAULT),
        f"Open MPI sends messages up to {shown_bytes(_AT_ONCE)} without waiting for the receiver, "
        "and larger messages as a stream of fragments",
        # An equal time is enough: times with put vary by chance, for minutes in one direction.
        gain=-0.02,
    ),
)


def _sockets(threads: int, each: int) -> Trial:
    env = (("NCCL_NSOCKS_PERTHREAD", str(each)), ("NCCL_SOCKET_NTHREADS", str(threads)))
    return Trial(
        f"{threads * each} sockets",
        env,
        (DEFAULT,),
        f"NCCL uses {threads * each} TCP sockets for each connection to a peer",
        least=4 * 1024**2,
    )


# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html: worth trying on 100 Gbit/s and faster.
NCCL_TRIALS = (
    Trial("default", (), (DEFAULT,), "the default settings of NCCL"),
    _sockets(2, 2),
    _sockets(4, 4),
)


def trials(engine: str) -> tuple[Trial, ...]:
    """Return the trials of a backend; empty for Gloo, which has no setting."""
    return {"mpi": MPI_TRIALS, "nccl": NCCL_TRIALS}.get(engine, ())


@dataclass(frozen=True)
class Timing:
    """Median seconds of one all-reduce of ``size`` bytes, of the slowest rank."""

    trial: str
    algorithm: Algorithm
    size: int
    seconds: float


@dataclass(frozen=True)
class Rule:
    """The algorithm for messages from this size up to the size of the next rule."""

    size: int
    algorithm: Algorithm


@dataclass(frozen=True)
class Tuning:
    """The settings that were chosen for one set of ranks.

    Args:
        engine: the backend of the all-reduce: ``mpi`` or ``nccl``.
        hosts: the ranks that it applies to, as (host, data address, slots) in rank order.
        env: variables for every rank of a job on exactly these ranks.
        rules: empty if the backend's default stays for all sizes.
        why: reasons, one a line.
        timings: the measurements.
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
        """True if it changes anything for a job."""
        return bool(self.env or self.rules)


def choose_tuning(
    engine: str, hosts: Sequence[tuple[str, str, int]], timings: Sequence[Timing], when: str = ""
) -> Tuning:
    """Return the settings that are faster than the default for large messages and slow down no other size.

    Args:
        timings: of the default trial and of others; sizes without a default measurement are ignored.
        when: date and time, as printed.
    """
    usual = {t.size: t.seconds for t in timings if t.trial == "default" and t.algorithm == DEFAULT}
    known = [t for t in timings if t.size in usual]
    if not known:
        return Tuning(
            engine,
            tuple(hosts),
            why=("the trial with default settings produced no measurements",),
            timings=tuple(timings),
            when=when,
        )
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
    """The best result of a trial; ``cost`` is the mean of log(seconds / default's) over sizes."""

    trial: Trial
    times: tuple[tuple[int, Algorithm, float], ...]
    rules: tuple[Rule, ...]
    cost: float


def _offer(trial: Trial, timings: Sequence[Timing], usual: dict[int, float]) -> _Offer | None:
    """Return a trial's best result, None if it slows down some size or gains too little."""
    mine = [t for t in timings if t.trial == trial.name]
    # If the largest size was not measured for lack of time, the last choice applies to larger messages.
    last = max((t.size for t in mine), default=0)
    times = []
    for size in sorted({t.size for t in mine}):
        there = {t.algorithm: t.seconds for t in mine if t.size == size}
        taken = _quickest(there, stands_for_larger=bool(trial.env) and size == last < max(SIZES))
        times.append((size, taken, there[taken]))
    if not times or any(seconds > usual[size] * (1 + MOST_LOSS) for size, _, seconds in times):
        return None
    large, _, seconds = times[-1]
    if trial.env and (large < trial.least or seconds > usual[large] * (1 - trial.gain)):
        return None
    cost = sum(math.log(seconds / usual[size]) for size, _, seconds in times) / len(times)
    return _Offer(trial, tuple(times), _rules(times), cost)


def _quickest(there: Mapping[Algorithm, float], stands_for_larger: bool) -> Algorithm:
    """Return the backend's default unless another algorithm is clearly faster.

    Args:
        stands_for_larger: prefer a segmented ring among equals: its messages keep the measured size for
            larger buffers.
    """
    best = min(there.values())
    equal = [a for a in there if there[a] <= best * (1 + LEAST_GAIN)]
    if stands_for_larger and (rings := [a for a in equal if a.segment]):
        return min(rings, key=lambda a: there[a])
    return DEFAULT if DEFAULT in equal else min(equal, key=lambda a: there[a])


def _rules(times: Sequence[tuple[int, Algorithm, float]]) -> tuple[Rule, ...]:
    """Return one rule per change of the algorithm; below the smallest size the default applies."""
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
            times = f"{shown_time(seconds)} instead of {shown_time(usual[size])}"
            yield f"{shown_bytes(size)}: {algorithm} takes {times} ({gain:.2f} times as fast)"
    if not best.trial.env and not best.rules:
        yield "no trial made large messages clearly faster without slowing smaller messages"


def tuned_for(hosts: Sequence[tuple[str, str, int]], kept: Iterable[Tuning]) -> tuple[Tuning, ...]:
    """Return the tunings for exactly these ranks, at most one for each backend."""
    return tuple(tuning for tuning in kept if tuning.hosts == tuple(hosts))


def replace_tuning(kept: Iterable[Tuning], new: Tuning) -> tuple[Tuning, ...]:
    """Return the kept tunings, with the new one in place of an earlier one for the same ranks."""
    return (*(t for t in kept if (t.engine, t.hosts) != (new.engine, new.hosts)), new)


def rules_text(tuning: Tuning) -> str:
    """Return Open MPI's file of rules; empty without rules.

    It contains only numbers, read by coll_tuned_dynamic_file.c: the number of collectives; for each its
    number (2 is all-reduce) and the number of communicator sizes; for each that size and the number of
    message sizes; for each bytes, algorithm, fan-in/out, bytes of a segment. A rule applies from its size
    on, so Open MPI chooses for communicators smaller than this one.
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
    """Return the valid tunings in the file; empty if it is missing or invalid."""
    found = []
    with suppress(DecodeError):
        for item in decode_json(TunedFile, text).tuned:
            with suppress(DecodeError):
                found.append(_tuning(decode(Tuned, item)))
    return tuple(found)


def parse_timings(trial: str, rows: Sequence[AlgorithmTime]) -> tuple[Timing, ...]:
    """Return the timings that ``toolkit/container/bench/algorithms.py`` printed for one trial."""
    return tuple(Timing(trial, parse_algorithm(row.algorithm), row.bytes, row.seconds) for row in rows)


def parse_algorithm(word: str) -> Algorithm:
    """Return the algorithm of ``NUMBER:SEGMENT``.

    Raises:
        ValueError: the text is not an algorithm.
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
