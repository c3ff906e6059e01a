"""Files that others read while they are written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by this value as JSON; see write_text."""
    write_text(path, json.dumps(value) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace `path` so that a reader sees the old content or the new, also after a crash."""
    fresh = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink()
        raise
