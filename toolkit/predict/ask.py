"""Options of `toolkit predict` as values, all problems reported together, and the prediction for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.errors import meant, path_text, shown
from toolkit.hostsfile.inventory import Inventory
from toolkit.network import units
from toolkit.network.cost import DTYPE_BYTES
from toolkit.network.links import Given, Network, assemble
from toolkit.network.measured import Measured
from toolkit.predict.model import ALGORITHMS, BUCKETS, MODELS, Buckets, Load, Prediction, Probed, predict

MOST_HOSTS = 4096
# The number of hosts if neither a hosts file, nor a measurement, nor an option sets it.
_UP_TO = 8

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Options:
    """Options of the command line as text; empty or None without a value."""

    rate: Sequence[str] = ()
    latency: str = ""
    overhead: str = ""
    inside_rate: str = ""
    mtu: int = 1500
    params: str = ""
    model: str = ""
    probe: str = ""
    dtype: str = ""
    step_time: str = ""
    batch: int | None = None
    up_to: int | None = None
    slots: int | None = None
    algorithm: str = "ring"
    bucket: str = "ddp"
    measured: bool = False


@dataclass(frozen=True)
class Ask:
    """Parsed options of the command line.

    Args:
        parameters: number of parameters; None until a probe of the script reports it.
        compute: seconds of a step on one slot, None if unknown; ``compute_from`` is the source of the value.
    """

    given: Given
    parameters: int | None
    what: str
    dtype: str
    compute: float | None
    compute_from: str
    batch: int | None
    buckets: Buckets
    algorithm: str
    up_to: int | None
    slots: int | None


def parse_options(options: Options) -> Ask:
    """Parse the options.

    Raises:
        BadInput: contains all problems of the options.
    """
    reader = _Reader()
    given = reader.given(options)
    if not options.rate and not options.measured:
        reader.bad(
            "--rate", "this option is required unless --from FILE has measured rates; example: --rate 1gbit"
        )
    sources = [name for name in ("params", "model", "probe") if getattr(options, name)]
    if len(sources) != 1:
        found = " and ".join(f"--{name}" for name in sources) or "none"
        reader.bad("--params", f"exactly one of --params, --model and --probe is required, found {found}")
    if options.probe and options.step_time:
        reader.bad("--step-time", "this option cannot be combined with --probe, which measures the step time")
    model = MODELS.get(options.model)
    if options.model and model is None:
        hint = meant(options.model, MODELS)
        what = f"{shown(options.model)} is not a known model; for other models, set --params; {hint}"
        reader.bad("--model", what)
    parameters = reader.read("--params", options.params, units.parameters) if options.params else None
    compute = reader.read("--step-time", options.step_time, units.seconds) if options.step_time else None
    if compute == 0:
        reader.bad("--step-time", "should be more than 0 s")
    dtype = reader.choice("--dtype", options.dtype or "fp32", DTYPE_BYTES)
    algorithm = reader.choice("--algorithm", options.algorithm, ALGORITHMS)
    buckets = reader.buckets(options.bucket)
    for name, count, most in (
        ("--batch", options.batch, 10**9),
        ("--up-to", options.up_to, MOST_HOSTS),
        ("--slots", options.slots, 64),
    ):
        if count is not None and not 1 <= count <= most:
            reader.bad(name, f"should be 1 to {most}, found {count}")
    published = model.published if model and not options.step_time else None
    if published and options.batch not in (None, published.batch):
        reader.bad(
            "--batch",
            f"the published step time is for {published.batch} samples, but --batch is {options.batch}; "
            f"set --step-time to the step time with {options.batch} samples",
        )
    if reader.problems:
        raise BadInput("command line", tuple(reader.problems))
    batch, compute_from = options.batch, "given"
    if model is not None:
        parameters = model.parameters
    if published is not None:
        compute, batch = published.seconds, published.batch
        compute_from = f"published: {published.where}, {batch} samples; {published.source}"
    return Ask(
        given=given,
        parameters=parameters,
        what=model.title if model else "",
        dtype=dtype if options.dtype or not options.probe else "",
        compute=compute,
        compute_from=compute_from if compute is not None else "",
        batch=batch,
        buckets=buckets,
        algorithm=algorithm,
        up_to=options.up_to,
        slots=options.slots,
    )


class _Reader:
    """Parse options one by one and collect their problems."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def bad(self, option: str, message: str) -> None:
        self.problems.append(Problem(option, message))

    def read(self, option: str, text: str, parse: Callable[[str], _Value]) -> _Value | None:
        try:
            return parse(text)
        except ValueError as error:
            self.bad(option, str(error))
            return None

    def choice(self, option: str, word: str, known: Sequence[str] | dict[str, int]) -> str:
        if word not in known:
            self.bad(option, f"should be one of {', '.join(known)}, found {shown(word)}")
        return word

    def buckets(self, word: str) -> Buckets:
        if word in BUCKETS:
            return BUCKETS[word]
        if not word[:1].isdigit():
            self.bad(
                "--bucket", f"should be {', '.join(BUCKETS)} or a size such as 25MiB, found {shown(word)}"
            )
            return BUCKETS["ddp"]
        size = self.read("--bucket", word, units.size)
        return Buckets(word, size) if size else BUCKETS["ddp"]

    def given(self, options: Options) -> Given:
        every: float | None = None
        single: dict[str, float] = {}
        for word in options.rate:
            host, equals, text = word.rpartition("=")
            if equals and not host:
                self.bad("--rate", f"should be RATE or HOST=RATE, found {shown(word)}")
                continue
            option = f"--rate {path_text((host,))}" if host else "--rate"
            value = self.read(option, text, units.rate)
            if host in single or (not host and every is not None):
                self.bad(option, "is set twice")
            if value is not None and host:
                single[host] = value
            elif value is not None:
                every = value
        if not 576 <= options.mtu <= 65535:
            self.bad("--mtu", f"should be 576 to 65535 bytes, found {options.mtu}")
        latency, overhead = (
            self.read(f"--{name}", text, units.seconds) if text else None
            for name, text in (("latency", options.latency), ("overhead", options.overhead))
        )
        inside = self.read("--inside-rate", options.inside_rate, units.rate) if options.inside_rate else None
        return Given(every, single, options.mtu, latency, overhead, inside)


def load_of(ask: Ask, probed: Probed | None = None) -> Load:
    """Return the load of a step, from the options or from a probe of the script."""
    if probed is None:
        assert ask.parameters is not None
        size = ask.parameters * DTYPE_BYTES[ask.dtype]
        return Load(ask.parameters, size, ask.dtype, ask.buckets, ask.algorithm, ask.compute, ask.batch)
    size, dtype = (
        (probed.parameters * DTYPE_BYTES[ask.dtype], ask.dtype) if ask.dtype else (probed.size, probed.dtype)
    )
    return Load(probed.parameters, size, dtype, ask.buckets, ask.algorithm, probed.seconds, ask.batch)


def hosts_of(
    ask: Ask, inventory: Inventory | None, measured: Measured | None
) -> tuple[tuple[tuple[str, int], ...], str]:
    """Return hosts with their ranks in the order of a job, and a note about assumed slots.

    The main host is first, as in a job. Hosts without slots are left out. If the hosts file declares no
    slots for a host, the number is that of ``--slots``, the declared GPUs, or one. Spare hosts that were not
    measured are last, and take part only if ``--up-to`` requests more hosts than the others.
    """
    rows: list[tuple[str, int]] = []
    unset: set[str] = set()
    spares: set[str] = set()
    if inventory is not None:
        spares = set(inventory.spares).difference(measured.hosts if measured else ())
        ordered = sorted(inventory.hosts, key=lambda host: (host.name in spares, host.name != inventory.main))
        unset = {h.name for h in ordered if h.slots is None and h.gpus is None and ask.slots is None}
        # A host without GPUs has one slot, as in a job.
        rows = [(h.name, (ask.slots or h.gpus or 1) if h.slots is None else h.slots) for h in ordered]
    elif measured is not None:
        rows = [(name, ask.slots or 1) for name in measured.hosts]
    rows = [(name, slots) for name, slots in rows if slots]
    wanted = ask.up_to or sum(name not in spares for name, _ in rows) or _UP_TO
    taken = {name for name, _ in rows}
    like = rows[0][1] if rows else ask.slots or 1
    for number in range(len(rows) + 1, wanted + 1):
        name = f"host{number}"
        rows.append((f"more-{name}" if name in taken else name, like))
    rows = rows[:wanted]
    assumed = [name for name, _ in rows if name in unset]
    note = (
        f"toolkit assumes one slot on {', '.join(assumed[:4])}{' …' if len(assumed) > 4 else ''}; "
        "to change the number, set --slots"
    )
    return tuple(rows), note if assumed else ""


@dataclass(frozen=True)
class Predicted:
    """A prediction with its inputs.

    Args:
        source: source of the network's figures.
        note: assumptions about the hosts; empty without one.
        probed: result of a probe of the script, None without a probe.
    """

    network: Network
    load: Load
    prediction: Prediction
    source: str
    ask: Ask
    note: str = ""
    probed: Probed | None = None


def predict_training(
    inventory: Inventory | None,
    options: Options,
    measured: Measured | None = None,
    probe: Callable[[Inventory, str], Probed] | None = None,
) -> Predicted:
    """Predict a training step on 1 … N hosts; only ``probe`` contacts a host.

    Args:
        inventory: None for a cluster that does not exist yet.
        probe: runs the script named in ``options.probe`` and returns the result.

    Raises:
        BadInput: contains all problems of the options, or of the options with the measurements.
    """
    ask = parse_options(options)
    rows, note = hosts_of(ask, inventory, measured)
    network, source = assemble(rows, ask.given, measured)
    probed = None
    if options.probe:
        if inventory is None or probe is None:
            raise BadInput(
                "command line",
                (Problem("--probe", "this option requires hosts.yaml, because the probe runs on a cluster"),),
            )
        probed = probe(inventory, options.probe)
    load = load_of(ask, probed)
    return Predicted(network, load, predict(network, load), source, ask, note, probed)
