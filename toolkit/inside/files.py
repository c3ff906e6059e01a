"""Files that others read while they are written."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by this value as JSON; see write_text."""
    write_text(path, json.dumps(value) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace `path` so that a reader sees the old content or the new, also after a crash."""
    descriptor, name = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
