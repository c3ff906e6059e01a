"""The prediction: seconds per step, throughput and scaling efficiency for 1 … N hosts, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.network.cost import DTYPE_BYTES, allreduce, parameter_server
from toolkit.network.links import Network
from toolkit.network.units import seconds_text
from toolkit.predict.overlap import Buckets, Run, Step, each_wire, fill, step, whole_wire

ALGORITHMS = ("ring", "hierarchical", "halving-doubling", "open-mpi")
COMPARED = ("ring", "hierarchical", "halving-doubling", "parameter-server")

# Below this difference nobody would notice one from the other.
_SAME = 0.02
# How much faster a part of the hosts must be before it is worth a line.
_WORTH = 1.05


@dataclass(frozen=True)
class Load:
    """What one step computes and sends.

    Args:
        parameters: how many get a gradient.
        size: bytes of all gradients of a step.
        dtype: what they travel as; the comparison is with this and with its half or double.
        compute: seconds of a step on one slot with nobody to talk to; None when nobody knows.
        batch: samples per slot and step; None when nobody knows.
    """

    parameters: int
    size: float
    dtype: str
    buckets: Buckets
    algorithm: str = "ring"
    compute: float | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Way:
    """One way to bring the gradients of a step together, and the seconds it takes."""

    algorithm: str
    dtype: str
    seconds: float


@dataclass(frozen=True)
class Row:
    """What so many hosts would do.

    Args:
        wire: seconds of a step that the gradients travel.
        neck: what holds them back; empty for one host.
        step, throughput, speedup, efficiency: None without a step time. Throughput is in samples per
            second, or in batches where the batch is not known; speedup and efficiency are against the
            first host alone, efficiency as a share of what its ranks times so many would do.
        even: seconds of computing per step, nothing hidden, from which on it is faster than one host;
            None where it always is.
        ninety: the same for 90 % of ideal.
    """

    hosts: int
    ranks: int
    wire: float
    neck: str
    step: Step | None
    throughput: float | None
    speedup: float | None
    efficiency: float | None
    even: float | None
    ninety: float | None
    ways: tuple[Way, ...]


@dataclass(frozen=True)
class Prediction:
    """Rows by number of hosts, the verdict about the last one, and what would be better, if anything."""

    rows: tuple[Row, ...]
    verdict: str
    advice: str


def counts(most: int) -> tuple[int, ...]:
    """Return the numbers of hosts to look at: all up to 16, else up to 8, powers of two, and the last."""
    if most <= 16:
        return tuple(range(1, most + 1))
    powers = {1 << k for k in range(most.bit_length())}
    return tuple(sorted({*range(1, 9), *powers, most}))


def predict(network: Network, load: Load) -> Prediction:
    """Return what the first 1 … N hosts of the network would do with this load."""
    one = _times(network.first(1), load)
    rows = tuple(_row(network.first(count), load, one) for count in counts(len(network.members)))
    return Prediction(rows, verdict(rows), _advice(network, load, rows, one))


@dataclass(frozen=True)
class _Times:
    """A network's own figures, without a comparison."""

    ranks: int
    wire: float
    step: Step | None
    throughput: float | None


def _times(network: Network, load: Load) -> _Times:
    runs = fill(load.size, load.buckets)
    each = _wire(network, load.algorithm, runs)
    ranks = sum(network.slots)
    whole = step(load.compute, runs, each) if load.compute is not None else None
    throughput = ranks * (load.batch or 1) / whole.likely if whole else None
    return _Times(ranks, whole_wire(runs, each), whole, throughput)


def _wire(network: Network, algorithm: str, runs: Sequence[Run]) -> tuple[float, ...]:
    if algorithm == "parameter-server":
        return each_wire(runs, lambda size: _server(network, size))
    link, slots = network.link, network.slots
    return each_wire(runs, lambda size: allreduce(algorithm, size, slots, link, network.inside))


def _server(network: Network, size: float) -> float:
    """One server, kindly put on the host with the fastest link; each rank elsewhere pushes and pulls."""
    members = network.members
    home = max(members, key=lambda member: member.rate)
    if len(members) == 1:
        return parameter_server(size, home.slots - 1, network.inside)
    others = [member for member in members if member is not home]
    served = parameter_server(size, sum(member.slots for member in others), network.link_of(home))
    return max(served, *(parameter_server(size, m.slots, network.link_of(m)) for m in others))


def _row(network: Network, load: Load, one: _Times) -> Row:
    now = _times(network, load)
    ideal = now.ranks / one.ranks
    speedup = now.throughput / one.throughput if now.throughput and one.throughput else None
    single = len(network.members) == 1
    even = (one.ranks * now.wire - now.ranks * one.wire) / (now.ranks - one.ranks) if not single else 0.0
    # (C + W1) / (C + Wn) = 0.9, solved for C.
    ninety = (0.9 * now.wire - one.wire) / 0.1
    return Row(
        hosts=len(network.members),
        ranks=now.ranks,
        wire=now.wire,
        neck="" if single else network.neck().text,
        step=now.step,
        throughput=now.throughput,
        speedup=speedup,
        efficiency=speedup / ideal if speedup else None,
        even=even if even > 0 else None,
        ninety=ninety if ninety > 0 and not single else None,
        ways=tuple(_ways(network, load)),
    )


def _ways(network: Network, load: Load) -> Iterator[Way]:
    half = load.dtype if DTYPE_BYTES[load.dtype] == 2 else "fp16"
    for dtype in ("fp32", half):
        size = load.size if dtype == load.dtype else load.parameters * DTYPE_BYTES[dtype]
        runs = fill(size, load.buckets)
        for algorithm in COMPARED:
            yield Way(algorithm, dtype, whole_wire(runs, _wire(network, algorithm, runs)))


def verdict(rows: Sequence[Row]) -> str:
    """Return one line about the last row: faster or slower than one host, how much, and why."""
    row = rows[-1]
    if row.hosts == 1:
        return "1 host has nothing to send; say how many there would be"
    many = f"{row.hosts} hosts"
    if row.speedup is None or row.efficiency is None:
        if row.even is None:
            return f"{many} would be faster than 1 whatever a step computes"
        nine = f", and reach 90 % of ideal from {seconds_text(row.ninety)} on" if row.ninety else ""
        return (
            f"{many} would be faster than 1 once a step computes for more than "
            f"{seconds_text(row.even)}{nine}: {row.neck}"
        )
    if row.speedup < 1 - _SAME:
        return f"{many} would be {_times_text(1 / row.speedup)} × slower than 1: {row.neck}"
    if row.speedup < 1 + _SAME:
        return f"{many} would be as fast as 1: {row.neck}"
    ideal = f"{row.efficiency:.0%}".replace("%", " %")
    why = f": {row.neck}" if row.efficiency < 0.5 else ""
    return f"{many} would be {_times_text(row.speedup)} × faster than 1 ({ideal} of ideal){why}"


def _times_text(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 1.1 else f"{ratio:.2f}"


def _advice(network: Network, load: Load, rows: Sequence[Row], one: _Times) -> str:
    """Return what part of the hosts would clearly do more than all of them; empty when none would."""
    whole, alone = rows[-1].throughput, one.throughput
    if whole is None or alone is None:
        return ""
    # Nothing is said of parts that are not worth more than one host: the verdict says that.
    best, text = max(whole, alone) * _WORTH, ""
    for row in rows[1:-1]:
        if row.throughput is not None and row.throughput > best:
            best = row.throughput
            text = f"the first {row.hosts} alone would be {_times_text(best / alone)} × faster than 1"
    for limit in sorted({member.rate for member in network.members})[:-1]:
        left = tuple(m for m in network.members if m.rate > limit)
        done = _times(replace(network, members=left, fits={}), load).throughput
        if done is not None and done > best:
            best = done
            out = [m.name for m in network.members if m.rate <= limit]
            options = " ".join(f"--exclude {name}" for name in out[:4]) + (" …" if len(out) > 4 else "")
            ratio = _times_text(best / alone)
            text = f"the {len(left)} others alone would be {ratio} × faster than 1: {options}"
    return text
