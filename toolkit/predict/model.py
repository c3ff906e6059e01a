"""Prediction of a training step: seconds, throughput and scaling efficiency for 1 … N hosts, and a summary.

The model adds the all-reduces of gradient buckets to the computing time; the backward pass hides a part of
them. Parameters come from a probe of a training script or from a table of well-known models.
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

# A smaller difference counts as equal.
_SAME = 0.02
# Advice to use fewer hosts requires at least this speedup over all hosts.
_WORTH = 1.05

# For each matrix product of the forward pass, the backward pass computes two: for weights and for inputs.
BACKWARD_SHARE = 2 / 3
PROBE_MARK = "toolkit-steptime "
_TORCH_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Buckets:
    """Size of the buckets in which gradients are sent.

    Args:
        name: common name of the scheme.
        size: bytes of a full bucket.
        first: bytes of the bucket that is ready first; 0 if it has the size of the others.
    """

    name: str
    size: int
    first: int = 0


# DistributedDataParallel: bucket_cap_mb is 25, the first bucket is 1 MiB so that sending starts early.
# Horovod: HOROVOD_FUSION_THRESHOLD; 128 MiB in the source of 0.28, although its documentation says 64 MB.
BUCKETS = {
    "ddp": Buckets("ddp", 25 * 2**20, 2**20),
    "horovod": Buckets("horovod", 128 * 2**20),
}


@dataclass(frozen=True)
class Step:
    """Seconds of one step: a lower bound, the expected value, and an upper bound.

    Args:
        least: complete overlap: the longer of computing and sending.
        likely: each bucket is sent once it is ready and the previous bucket has arrived. Assumes that bytes
            become ready evenly during the backward pass, and that this pass is two thirds of the computing.
        most: no overlap: computing, then sending.
    """

    least: float
    likely: float
    most: float


# Consecutive buckets of one size: bytes of each, and their number, which can be millions.
Run = tuple[float, int]


@dataclass(frozen=True)
class Load:
    """Computation and communication of one step.

    Args:
        parameters: number of parameters with a gradient.
        size: bytes of all gradients of a step.
        dtype: data type in which gradients are sent; `_ways` compares it with half or double precision.
        compute: seconds of a step on one slot without communication; None if unknown.
        batch: samples per slot and step; None if unknown.
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
    """An algorithm that reduces the gradients of a step in a data type, and its seconds."""

    algorithm: str
    dtype: str
    seconds: float


@dataclass(frozen=True)
class Row:
    """Prediction for one number of hosts.

    Args:
        wire: seconds of a step in which gradients are sent.
        neck: the bottleneck of the communication; empty for one host.
        step, throughput, speedup, efficiency: None without a step time. Throughput is in samples per
            second, or in batches per second if the batch is unknown. Speedup and efficiency are relative to
            the first host alone; efficiency is the share of the ideal speedup by ranks.
        even: seconds of computing per step, without overlap, from which these hosts are faster than one
            host; None if they are always faster.
        ninety: seconds of computing per step from which these hosts reach 90 % of the ideal; None if always.
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
    """Rows by number of hosts, a summary of the last row, and advice; the advice can be empty."""

    rows: tuple[Row, ...]
    verdict: str
    advice: str


def counts(most: int) -> tuple[int, ...]:
    """Return the numbers of hosts to compare.

    Up to 16 hosts, these are all numbers. Above 16, these are 1 to 8, powers of two, and the last number.
    """
    if most <= 16:
        return tuple(range(1, most + 1))
    powers = {1 << k for k in range(most.bit_length())}
    return tuple(sorted({*range(1, 9), *powers, most}))


def predict(network: Network, load: Load) -> Prediction:
    """Predict the load on the first 1 … N hosts of the network."""
    one = _times(network.first(1), load)
    rows = tuple(_row(network.first(count), load, one) for count in counts(len(network.members)))
    return Prediction(rows, verdict(rows), _advice(network, load, rows, one))


@dataclass(frozen=True)
class _Times:
    """Figures of one network, without a comparison."""

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
    """Return the seconds with one parameter server on the host with the fastest link.

    Each rank on another host pushes and pulls.
    """
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
    """Return one line about the last row: its speedup over one host, and the reason."""
    row = rows[-1]
    if row.hosts == 1:
        return "1 host sends no gradients over the network; for more hosts, set --up-to"
    many = f"{row.hosts} hosts"
    if row.speedup is None or row.efficiency is None:
        if row.even is None:
            return f"{many} would be faster than 1 host at any compute time per step"
        nine = f" (more than {seconds_text(row.ninety)} for 90 % of the ideal speedup)" if row.ninety else ""
        return (
            f"{many} would be faster than 1 host if a step computes for more than "
            f"{seconds_text(row.even)}{nine}; {row.neck}"
        )
    if row.speedup < 1 - _SAME:
        longer = _times_text(1 / row.speedup)
        return f"{many} would take {longer} × as long as 1 host for the same samples, because {row.neck}"
    if row.speedup < 1 + _SAME:
        return f"{many} would be about as fast as 1 host, because {row.neck}"
    ideal = f"{row.efficiency:.0%}".replace("%", " %")
    why = f", because {row.neck}" if row.efficiency < 0.5 else ""
    return (
        f"{many} would be {_times_text(row.speedup)} × as fast as 1 host ({ideal} of the ideal speedup){why}"
    )


def _times_text(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 1.1 else f"{ratio:.2f}"


def _advice(network: Network, load: Load, rows: Sequence[Row], one: _Times) -> str:
    """Return a line about a part of the hosts that is clearly faster than all; empty without one."""
    whole, alone = rows[-1].throughput, one.throughput
    if whole is None or alone is None:
        return ""
    # Parts that are not faster than one host are skipped: the summary covers this case.
    best, text = max(whole, alone) * _WORTH, ""
    for row in rows[1:-1]:
        if row.throughput is not None and row.throughput > best:
            best = row.throughput
            ratio = _times_text(best / alone)
            text = f"the first {row.hosts} hosts alone would be {ratio} × as fast as 1 host"
    for limit in sorted({member.rate for member in network.members})[:-1]:
        left = tuple(m for m in network.members if m.rate > limit)
        done = _times(replace(network, members=left, fits={}), load).throughput
        if done is not None and done > best:
            best = done
            out = [m.name for m in network.members if m.rate <= limit]
            options = " ".join(f"--exclude {name}" for name in out[:4]) + (" …" if len(out) > 4 else "")
            ratio = _times_text(best / alone)
            count = len(left)
            fast = "host with the fastest link" if count == 1 else f"{count} hosts with the fastest links"
            text = f"the {fast} alone would be {ratio} × as fast as 1 host; add {options}"
    return text


def fill(total: float, buckets: Buckets) -> tuple[Run, ...]:
    """Return the buckets that ``total`` bytes fill, in the order in which they become ready."""
    first = min(total, buckets.first)
    full, rest = divmod(total - first, buckets.size)
    return tuple(run for run in ((first, 1), (buckets.size, int(full)), (rest, 1)) if run[0] and run[1])


def step(compute: float, runs: Sequence[Run], seconds: Sequence[float]) -> Step:
    """Return the duration of a step.

    A bucket waits while another one is sent. So the end is the maximum, over all buckets, of the time at
    which the bucket is ready plus the sending time of it and all later ones. Within a run, only the first
    and the last bucket can reach this maximum.

    Args:
        compute: seconds of forward, backward and update on one slot.
        runs: the buckets.
        seconds: duration of the all-reduce of one bucket of each run.
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
    """Return the seconds of one bucket of each run; ``one`` converts bytes to seconds."""
    return tuple(one(size) for size, _ in runs)


def whole_wire(runs: Sequence[Run], seconds: Sequence[float]) -> float:
    """Return the seconds of all buckets together."""
    return sum(count * takes for (_, count), takes in zip(runs, seconds, strict=True))


@dataclass(frozen=True)
class Probed:
    """Result of a probe of a training script on one slot; see ``toolkit/container/bench/step_time.py``.

    Args:
        parameters: number of parameters that got a gradient.
        size: bytes of these gradients.
        dtype: data type of most gradient bytes: fp32, fp16 or bf16.
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
    """Return the last result of the probe in a job's output; None without one.

    Raises:
        DecodeError: the result is malformed.
    """
    _, found, rest = text.rpartition(PROBE_MARK)
    if not found:
        return None
    data = decode(Steps, load_first(rest)[0])
    kinds = data.gradients
    if not kinds:
        raise DecodeError("gradients", "must not be empty")
    # Other gradients, such as float64, are sent unchanged; only the comparison treats them as fp32.
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
