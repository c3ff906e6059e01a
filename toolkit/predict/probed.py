"""What a probe of a training script saw: gradients and seconds of a step on one slot."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.protocol.bench import Steps
from toolkit.protocol.decode import DecodeError, decode, load_first


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


PROBE_MARK = "toolkit-steptime "
_TORCH_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


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
