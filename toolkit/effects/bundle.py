"""Writes files into one .tar.gz that only its owner may read: whole under its name, or not at all."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from toolkit.errors import ToolkitError


def write_bundle(path: Path, files: Mapping[str, bytes], mtime: float) -> None:
    """Write the bundle; one folder named like it holds the files.

    Args:
        mtime: of all files, in seconds since the epoch.

    Raises:
        ToolkitError: nothing was written, with the reason.
    """
    top = path.name.removesuffix(".tar.gz")
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp makes it 0600, and so it stays.
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            # gzip by itself: tarfile would write the temporary name and the time into its head.
            with (
                gzip.GzipFile("", "wb", 6, file, mtime) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for entry, data in files.items():
                    info = tarfile.TarInfo(f"{top}/{entry}")
                    info.size, info.mode, info.mtime = len(data), 0o600, int(mtime)
                    tar.addfile(info, io.BytesIO(data))
            file.flush()
            os.fsync(file.fileno())
        # A link, and not a rename, refuses a name that somebody has taken meanwhile.
        _appear(Path(name), path)
    except OSError as error:
        raise ToolkitError(
            f"cannot write {path}: {error.strerror or error}", "another place: --save FILE"
        ) from error
    finally:
        if name:
            with suppress(OSError):
                Path(name).unlink()


def _appear(new: Path, path: Path) -> None:
    try:
        path.hardlink_to(new)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        new.replace(path)
