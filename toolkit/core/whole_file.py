"""Files that are written anew while others read them."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from toolkit.errors import ToolkitError


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Put the text in the file's place; who reads it sees the old content or the new.

    Raises:
        ToolkitError: it cannot be written there.
    """
    name = ""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.absolute().parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except OSError as error:
        with suppress(OSError):
            Path(name).unlink()
        raise ToolkitError(f"cannot write {path}: {error.strerror}", "another file, or room there") from error
