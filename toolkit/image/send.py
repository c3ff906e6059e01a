"""Executors of SendImage and PullImage: layers that a host lacks, group by group, until it has the image."""

from __future__ import annotations

import secrets

from toolkit.core.command import script
from toolkit.image.layers import ImageParts
from toolkit.image.payload import ImageCargo
from toolkit.image.sending import Sending, Shipment
from toolkit.image.source import ImageSource
from toolkit.plan.context import Advance, Context, Verdict, failure
from toolkit.plan.steps import PullImage, SendImage
from toolkit.transfer.relay import Relay


def send_image(step: SendImage, context: Context, advance: Advance) -> Verdict:
    """Load the image into the host's engine, less the layers it has, and verify what came of it.

    Each group of layers is an image of its own under a name that can be thrown away. They go when the image
    is there, or cannot be; where the connection breaks they stay, and the next try has their layers already.
    """
    source = _source(step, context)
    shared = _shipment(step, context, source, source.parts) if source.parts and step.address else None
    try:
        return Sending(step, context.runners[step.host], source, shared, advance).run()
    finally:
        if shared:
            shared.relay.absent(step.host)


def _source(step: SendImage, context: Context) -> ImageSource:
    """Return the image of this machine's engine; opened once, whoever asks first.

    Raises:
        MissingTool: no engine answers.
        ImageError: the engine has another image under this name than the plan was made for.
    """
    key = (ImageSource, step.identity)
    return context.share(
        key, lambda: ImageSource.open(step.reference, step.identity, step.image, context.engine)
    )


def _shipment(step: SendImage, context: Context, source: ImageSource, parts: ImageParts) -> Shipment:
    def make() -> Shipment:
        alike = [s for s in context.steps if isinstance(s, SendImage) and s.identity == step.identity]
        cargo = ImageCargo(source, parts, step.identity, secrets.token_hex(2))
        return Shipment(Relay(cargo, {s.host for s in alike} & set(context.runners)), cargo)

    return context.share((Relay, step.identity), make)


_PULL = """
before=$(docker image inspect --format '{{.Id}}' "$1" 2>/dev/null)
docker pull --quiet "$1" >&2 || exit
after=$(docker image inspect --format '{{.Id}}' "$1") || exit
[ "$before" = "$after" ] || echo pulled
"""


def pull_image(step: PullImage, context: Context, advance: Advance) -> Verdict:
    """Let the host pull the image; skipped when its name means the same image as before."""
    said: list[bytes] = []
    runner = context.runners[step.host]
    # As a stream, which has no time limit: how long a pull takes is between the host and its registry.
    result = runner.stream(script(_PULL, step.reference), said.append)
    if not result.ok:
        fix = f"on {step.host}: docker pull {step.reference}"
        raise failure(result, runner, fix, known=step.failures)
    return Verdict("ok" if b"pulled" in b"".join(said) else "skipped")
