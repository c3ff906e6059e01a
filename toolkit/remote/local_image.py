"""Images of this machine: the image of a cluster in its Docker engine, and the record of built images.

The engine is queried without Docker's SDK in the usual case.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from toolkit.core.image import LATE_FIX, ImageFacts, image_facts
from toolkit.errors import ImageError
from toolkit.protocol.decode import DecodeError, Text, decode_json
from toolkit.protocol.engine import ImageInspect
from toolkit.protocol.engine_socket import EngineSocket, Unusable, configured_socket

_SECONDS = 30.0  # to describe an image, even on a busy machine
_MOST_BUILT = 100
_MOST_RECORD_BYTES = 1 << 16
_Id = Annotated[str, Text(71, r"sha256:[0-9a-f]{64}")]


class LateEngine(ImageError):
    """The engine did not respond in time, so it is unknown whether it has the image."""

    def __init__(self, command: str) -> None:
        what = f"the Docker engine of your machine did not answer `docker {command}` within {_SECONDS:g} s"
        super().__init__(what, LATE_FIX)


def local_image(reference: str, engine: str) -> ImageFacts | None:
    """Return the image of this name, None without the image or without an engine.

    Args:
        engine: of the cluster's hosts.

    Raises:
        ImageError: the answer of the engine is invalid; LateEngine if the engine did not respond in time.
    """
    try:
        found = EngineSocket(configured_socket(), _SECONDS).described("images", [reference])
        return image_facts(decode_json(ImageInspect, found[0]), engine) if found else None
    except TimeoutError as late:
        raise LateEngine(str(late)) from late
    except (Unusable, OSError, ValueError, LookupError, TypeError, RecursionError, DecodeError):
        # Another kind of connection, or no engine. Docker's SDK decides; it takes 0.15 s to import.
        return _by_sdk(reference, engine)


def _by_sdk(reference: str, engine: str) -> ImageFacts | None:
    from toolkit.remote.engine import Engine

    until = time.monotonic() + _SECONDS
    other = Engine.find()
    if other is None and time.monotonic() >= until:
        raise LateEngine("version")
    try:
        return other.image(reference, engine) if other else None
    except ImageError as error:
        if time.monotonic() >= until:
            raise LateEngine("image inspect") from error
        raise


def default_cache(environ: Mapping[str, str]) -> str:
    """Return the folder that keeps wheels and the record of built images between builds."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base).absolute() / "toolkit")


def built_images(file: Path | None = None) -> tuple[str, ...]:
    """Return the Ids of the images built on this machine, newest last; empty if the record cannot be read.

    Args:
        file: the record; default: the user's record.
    """
    with contextlib.suppress(OSError, DecodeError), (file or _built_record()).open("rb") as source:
        return decode_json(tuple[_Id, ...], source.read(_MOST_RECORD_BYTES))
    return ()


def note_built(image: str, file: Path | None = None) -> None:
    """Add an image to the record of built images.

    Raises:
        OSError: the record cannot be written.
    """
    file = file or _built_record()
    known = [each for each in built_images(file) if each != image]
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(json.dumps([*known, image][-_MOST_BUILT:]))
    new.chmod(0o600)
    new.replace(file)


def _built_record() -> Path:
    return Path(default_cache(os.environ)) / "built-images.json"
