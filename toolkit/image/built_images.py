"""Ids of the images that toolkit has built on this machine: only these run with rights on this machine."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Annotated

from toolkit.protocol.decode import DecodeError, Text, decode_json

_MOST = 100
_MOST_BYTES = 1 << 16
_Id = Annotated[str, Text(71, r"sha256:[0-9a-f]{64}")]


def built_images(file: Path | None = None) -> tuple[str, ...]:
    """Return the Ids, the newest last; none if the record cannot be read.

    Args:
        file: the record; the user's own if absent.
    """
    with contextlib.suppress(OSError, DecodeError), (file or _record()).open("rb") as source:
        return decode_json(tuple[_Id, ...], source.read(_MOST_BYTES))
    return ()


def note_built(image: str, file: Path | None = None) -> None:
    """Add an image to the record.

    Raises:
        OSError: the record cannot be written.
    """
    file = file or _record()
    known = [each for each in built_images(file) if each != image]
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(json.dumps([*known, image][-_MOST:]))
    new.chmod(0o600)
    new.replace(file)


def _record() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "toolkit" / "built-images.json"
