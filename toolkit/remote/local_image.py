"""The image of a cluster in this machine's Docker engine, without Docker's SDK in the usual case."""

from __future__ import annotations

from toolkit.core.image import ImageFacts, image_facts
from toolkit.protocol.decode import DecodeError, decode_json
from toolkit.protocol.engine import ImageInspect
from toolkit.protocol.engine_socket import EngineSocket, Unusable, configured_socket

_SECONDS = 30.0  # to describe an image, even on a busy machine


def local_image(reference: str, engine: str) -> ImageFacts | None:
    """Return the image of this name, None without the image or without an engine that responds.

    Args:
        engine: of the cluster's hosts.

    Raises:
        ImageError: the answer of the engine is invalid.
    """
    try:
        found = EngineSocket(configured_socket(), _SECONDS).described("images", [reference])
        return image_facts(decode_json(ImageInspect, found[0]), engine) if found else None
    except TimeoutError:
        return None
    except (Unusable, OSError, ValueError, LookupError, TypeError, RecursionError, DecodeError):
        # Another kind of connection, or no engine. Docker's SDK decides; it takes 0.15 s to import.
        from toolkit.remote.engine import Engine

        other = Engine.find()
        return other.image(reference, engine) if other else None
