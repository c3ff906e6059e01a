"""Writes files into one .tar.gz that only its owner may read: whole under its name, or not at all."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

from toolkit.core.local_writer import Destination, LocalWriter, split_name
from toolkit.errors import ToolkitError


def write_bundle(path: Path, files: Mapping[str, bytes], mtime: float) -> None:
    """Write the bundle; one folder named like it holds the files.

    Args:
        mtime: of all files, in seconds since the epoch.

    Raises:
        ToolkitError: nothing was written, with the reason.
    """
    top = path.name.removesuffix(".tar.gz")
    try:
        with LocalWriter(Destination(path.parent)) as writer:
            new = writer.create(path.name)
            # gzip by itself: tarfile would write the temporary name and the time into its head.
            with (
                gzip.GzipFile("", "wb", 6, new.file, mtime) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for entry, data in files.items():
                    info = tarfile.TarInfo("/".join(split_name(f"{top}/{entry}")))
                    info.size, info.mode, info.mtime = len(data), 0o600, int(mtime)
                    tar.addfile(info, io.BytesIO(data))
            new.file.flush()
            os.fsync(new.file.fileno())
            new.commit(0o600, replace=False)
    except OSError as error:
        raise ToolkitError(
            f"cannot write {path}: {error.strerror or error}", "another place: --save FILE"
        ) from error
