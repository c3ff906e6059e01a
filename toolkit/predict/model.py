"""Prediction of a training step: seconds, throughput and scaling efficiency for 1 … N hosts, and the verdict.

A step is computed from its all-reduces: buckets of gradients, part of whose way the backward pass hides. Its
parameters come from a probe of a training script or from a table of well-known models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.network.cost import DTYPE_BYTES, allreduce, parameter_server
from toolkit.network.links import Network
from toolkit.network.units import seconds_text
from toolkit.protocol.bench import Steps
from toolkit.protocol.decode import DecodeError, decode, load_first

ALGORITHMS = ("ring", "hierarchical", "halving-doubling", "open-mpi")
COMPARED = ("ring", "hierarchical", "halving-doubling", "parameter-server")

# Below this difference nobody would notice one from the other.
_SAME = 0.02
# How much faster a part of the hosts must be before it is worth a line.
_WORTH = 1.05

# For each product of the forward pass the backward pass computes two: gradients by weights and by inputs.
BACKWARD_SHARE = 2 / 3
PROBE_MARK = "toolkit-steptime "
_TORCH_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


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


# Buckets of one size that follow each other: bytes of each, how many. There may be millions of them.
Run = tuple[float, int]


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


def fill(total: float, buckets: Buckets) -> tuple[Run, ...]:
    """Return the buckets that ``total`` bytes fill, in the order in which they become ready."""
    first = min(total, buckets.first)
    full, rest = divmod(total - first, buckets.size)
    return tuple(run for run in ((first, 1), (buckets.size, int(full)), (rest, 1)) if run[0] and run[1])


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


@dataclass(frozen=True)
class Probed:
    """What a probe of a training script saw on one slot; see ``toolkit/container/bench/step_time.py``.

    Args:
        parameters: how many got a gradient.
        size: bytes of these gradients.
        dtype: what most of them are: fp32, fp16 or bf16.
        seconds: median from one step of the optimizer to the next; ``least`` and ``most`` are its spread.
    """

    parameters: int
    size: int
    dtype: str
    seconds: float
    least: float
    most: float
    steps: int
    device: str


def parse_probed(text: str) -> Probed | None:
    """Return what the probe printed last into a job's output; None when it printed nothing.

    Raises:
        DecodeError: it printed something else.
    """
    _, found, rest = text.rpartition(PROBE_MARK)
    if not found:
        return None
    data = decode(Steps, load_first(rest)[0])
    kinds = data.gradients
    if not kinds:
        raise DecodeError("gradients", "is empty")
    # Gradients of another kind, float64 say, travel as they are; only the comparison takes them for fp32.
    most = max(kinds, key=lambda kind: kinds[kind])
    return Probed(
        parameters=data.parameters,
        size=sum(kinds.values()),
        dtype=_TORCH_DTYPES.get(most, "fp32"),
        seconds=data.seconds,
        least=data.least,
        most=data.most,
        steps=data.steps,
        device=data.device,
    )


@dataclass(frozen=True)
class Published:
    """A training speed that was published for one GPU; ``seconds`` is one step with ``batch`` samples."""

    seconds: float
    batch: int
    where: str
    source: str


@dataclass(frozen=True)
class Model:
    """A model: ``parameters`` that get a gradient, and the page that counts them."""

    name: str
    title: str
    parameters: int
    source: str
    published: Published | None = None


_TORCHVISION = "https://docs.pytorch.org/vision/stable/models.html"
_BERT = "https://arxiv.org/abs/1810.04805"
_GPT2 = "https://github.com/openai/gpt-2"
# Synthetic data, fp32, batch as given, May 2017: images per second on 1 GPU of a DGX-1.
_TENSORFLOW = (
    "https://github.com/tensorflow/tensorflow/blob/5984ffefd320c5d71b801ee06079a51b91ea42c0/"
    "tensorflow/docs_src/performance/benchmarks.md"
)


def _p100(images_per_second: float, batch: int) -> Published:
    return Published(batch / images_per_second, batch, "one P100, fp32", _TENSORFLOW)


_ALL = (
    Model("alexnet", "AlexNet", 61_100_840, _TORCHVISION, _p100(2987, 512)),
    Model("resnet18", "ResNet-18", 11_689_512, _TORCHVISION),
    Model("resnet50", "ResNet-50", 25_557_032, _TORCHVISION, _p100(219, 64)),
    Model("resnet101", "ResNet-101", 44_549_160, _TORCHVISION),
    Model("resnet152", "ResNet-152", 60_192_808, _TORCHVISION, _p100(91.8, 64)),
    # 23.8 million without the auxiliary classifier, which only training uses.
    Model("inception-v3", "Inception V3", 27_161_264, _TORCHVISION, _p100(142, 64)),
    Model("vgg16", "VGG-16", 138_357_544, _TORCHVISION, _p100(154, 64)),
    Model("vit-b-16", "ViT-B/16", 86_567_656, _TORCHVISION),
    Model("vit-l-16", "ViT-L/16", 304_326_632, _TORCHVISION),
    Model("bert-base", "BERT base", 110_000_000, _BERT),
    Model("bert-large", "BERT large", 340_000_000, _BERT),
    # Counts as OpenAI corrected them: the paper's own (117M, 345M, 762M, 1542M) were wrong.
    Model("gpt2", "GPT-2", 124_000_000, _GPT2),
    Model("gpt2-medium", "GPT-2 medium", 355_000_000, _GPT2),
    Model("gpt2-large", "GPT-2 large", 774_000_000, _GPT2),
    Model("gpt2-xl", "GPT-2 XL", 1_558_000_000, _GPT2),
    Model("llama-2-7b", "Llama 2 7B", 6_738_415_616, "https://huggingface.co/meta-llama/Llama-2-7b-hf"),
)

MODELS = {model.name: model for model in _ALL}
