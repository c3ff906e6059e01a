"""Small files that other programs read during writes, or can also write."""

from __future__ import annotations

import errno
import json
import os
import stat
from io import BufferedRandom
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 24  # most bytes of a file that is read completely


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by this value as JSON; see write_text."""
    write_text(path, json.dumps(value) + "\n")


def reserve(path: Path, size: int) -> None:
    """Reserve disk space for `write_reserved`, in a hidden file next to `path`.

    Raises:
        OSError: there is no space now.
    """
    spare = _spare(path)
    descriptor = os.open(spare, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(size))  # real bytes: a sparse file reserves no space
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        spare.unlink()
        raise


def write_reserved(path: Path, text: str) -> None:
    """Replace `path` as `write_text` does; if the disk is full, in the space that was reserved.

    Raises:
        OSError: both failed.
    """
    spare = _spare(path)
    try:
        write_text(path, text)
    except OSError:
        with spare.open("r+b") as file:
            _overwrite(file, text.encode())
        spare.replace(path)  # a rename needs no space
    else:
        spare.unlink(missing_ok=True)


def _overwrite(file: BufferedRandom, data: bytes) -> None:
    if len(data) > os.fstat(file.fileno()).st_size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    file.write(data)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


def _spare(path: Path) -> Path:
    return path.with_name(f".{path.name}.spare")


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


def content(path: Path) -> bytes:
    """Return the bytes of a file in a folder that ranks can write to, without blocking on a pipe.

    Raises:
        OSError: it cannot be read, is a link or no regular file, or has more than ``MOST_BYTES``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def read(path: Path) -> Any:
    """Return the value in a JSON file, None if it cannot be read."""
    try:
        return json.loads(content(path))
    except (OSError, ValueError, RecursionError):
        return None
