"""A prediction as text and as a value for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from toolkit.core.printable import table
from toolkit.network.cost import DTYPE_BYTES
from toolkit.network.links import Network
from toolkit.network.units import bytes_text, count_text, number_text, rate_text, seconds_text
from toolkit.predict.ask import Ask
from toolkit.predict.model import COMPARED, Load, Prediction, Probed, Row, fill
from toolkit.protocol.host_list import host_list


def text(
    network: Network,
    load: Load,
    prediction: Prediction,
    source: str,
    ask: Ask,
    note: str,
    probed: Probed | None,
) -> str:
    """Return the assumptions, the table by number of hosts, the compared algorithms, and the verdict last."""
    parts = [_assumed(network, load, source, ask, note, probed)]
    rows = prediction.rows
    parts.append(_steps(rows, load) if load.compute is not None else _wire(rows))
    parts.append(
        "communication time per step of each algorithm, with fp32 gradients and with half as many bytes\n"
        + _ways(rows)
    )
    advice = f"  {prediction.advice}\n" if prediction.advice else ""
    return "\n".join(parts) + f"\n{prediction.verdict}\n{advice}"


def _assumed(network: Network, load: Load, source: str, ask: Ask, note: str, probed: Probed | None) -> str:
    number = sum(count for _, count in fill(load.size, load.buckets))
    many = f"{number} buckets" if number > 1 else "1 bucket"
    name = f"{ask.what}: " if ask.what else ""
    gradients = (
        f"{name}{count_text(load.parameters)} parameters, {bytes_text(load.size)} of gradients per step "
        f"({load.dtype}) in {many} ({load.buckets.name})"
    )
    if probed is not None:
        spread = f"{seconds_text(probed.least)} to {seconds_text(probed.most)}"
        compute = (
            f"{seconds_text(probed.seconds)} per step on one slot, measured over {probed.steps} steps "
            f"({spread}) on {probed.device}"
        )
    elif load.compute is not None:
        compute = f"{seconds_text(load.compute)} per step on one slot ({ask.compute_from.partition('; ')[0]})"
    else:
        compute = "unknown; set the time of a step with --step-time, or measure the time with --probe"
    lines = [("model", gradients), ("compute", compute), ("hosts", _hosts(network, note))]
    lines += [("network", source), ("all-reduce", load.algorithm)]
    return "".join(f"{head:<11} {tail}\n" for head, tail in lines)


def _hosts(network: Network, note: str) -> str:
    groups: dict[tuple[float, int], list[str]] = {}
    for member in network.members:
        groups.setdefault((member.shown_rate, member.slots), []).append(member.name)
    texts = []
    for (rate, slots), names in groups.items():
        texts.append(f"{host_list(names)}: {rate_text(rate)}" + (f", {slots} slots" if slots > 1 else ""))
    return "; ".join(texts) + (f" ({note})" if note else "")


def _steps(rows: tuple[Row, ...], load: Load) -> str:
    unit = "samples/s" if load.batch else "batches/s"
    head = ("hosts", "ranks", "wire", "step", "all hidden", "none hidden", unit, "× one host", "of ideal")
    cells = []
    for row in rows:
        assert row.step and row.throughput and row.speedup and row.efficiency
        times = (row.wire, row.step.likely, row.step.least, row.step.most)
        cells.append(
            (
                *(str(row.hosts), str(row.ranks)),
                *(seconds_text(value) for value in times),
                *(number_text(row.throughput), f"{row.speedup:.2f}"),
                f"{row.efficiency:.0%}".replace("%", " %"),
            )
        )
    return table(head, cells)


def _wire(rows: tuple[Row, ...]) -> str:
    head = ("hosts", "ranks", "wire", "faster than one host from", "90 % of ideal from")
    cells = [
        (
            *(str(row.hosts), str(row.ranks), seconds_text(row.wire)),
            *(seconds_text(value) if value else "" for value in (row.even, row.ninety)),
        )
        for row in rows
    ]
    return (
        table(head, cells)
        + "  from: compute time per step on one slot, if communication and computation do not overlap\n"
    )


def _ways(rows: tuple[Row, ...]) -> str:
    """Return a table with two columns for each algorithm: fp32, and the data type of half the size."""
    full, half = dict.fromkeys(way.dtype for way in rows[0].ways)
    head = ["hosts"]
    for algorithm in COMPARED:
        head += [algorithm, half]
    cells = []
    for row in rows:
        known = {(way.algorithm, way.dtype): seconds_text(way.seconds) for way in row.ways}
        pairs = (known[algorithm, dtype] for algorithm in COMPARED for dtype in (full, half))
        cells.append((str(row.hosts), *pairs))
    return table(head, cells)


def as_value(
    network: Network, load: Load, prediction: Prediction, source: str, compute_from: str
) -> dict[str, Any]:
    """Return the prediction for ``--json``: times in seconds, rates in bits per second."""
    return {
        "verdict": prediction.verdict,
        "advice": prediction.advice,
        "model": {
            "parameters": load.parameters,
            "bytes": load.size,
            "dtype": load.dtype,
            "bytes_per_parameter": DTYPE_BYTES[load.dtype],
            "step_s": load.compute,
            "step_from": compute_from or ("probe" if load.compute is not None else ""),
            "batch": load.batch,
            "bucket_bytes": load.buckets.size,
            "first_bucket_bytes": load.buckets.first or load.buckets.size,
            "algorithm": load.algorithm,
        },
        "network": {
            "source": source,
            "hosts": [asdict(member) for member in network.members],
            "latency_s": network.latency,
            "overhead_s": network.overhead,
            "inside_bit_s": network.inside.rate,
            "share_of_link": network.share,
        },
        "rows": [asdict(row) for row in prediction.rows],
    }
