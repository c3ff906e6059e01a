"""Files written on this machine: what a person asks for, files that others read meanwhile, archives."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from toolkit.core.local_writer import Destination, LocalWriter, split_name
from toolkit.errors import BadInput, Problem, ToolkitError


def write_file(path: str | Path, text: str, replace: bool = True, program: bool = False) -> Path:
    """Write a file that a person asked for, into a folder that is there; return its path.

    Args:
        replace: write over a file that is there.
        program: make it executable.

    Raises:
        BadInput: it cannot be written, or it is there and may not be replaced.
    """
    path = Path(path)
    try:
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
        with os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if program:
            path.chmod(0o755)
    except FileExistsError as error:
        raise _there(path) from error
    except (OSError, ValueError) as error:
        problem = Problem("", f"cannot be written: {getattr(error, 'strerror', None) or error}")
        raise BadInput(str(path), (problem,)) from error
    return path


def write_page(name: str, text: str) -> Path:
    """Write a page into the working directory under a name that is made of a job's id; return its path.

    A link of that name is replaced, not followed: an earlier download may have left it.

    Raises:
        BadInput: the page cannot be written.
    """
    try:
        with LocalWriter(Destination(Path())) as writer:
            page = writer.create(name)
            page.write(text.encode())
            page.commit()
    except (OSError, ToolkitError) as error:
        problem = Problem("", f"cannot be written: {getattr(error, 'strerror', None) or error}")
        raise BadInput(name, (problem,)) from error
    return Path(name)


def refuse_file(path: str | Path, replace: bool) -> None:
    """Refuse a file that ``write_file`` would refuse as far as that can be told before.

    Raises:
        BadInput: it is there and may not be replaced, is a folder, or would lie in none.
    """
    path = Path(path)
    try:
        folder, there, around = path.is_dir(), path.exists(), path.parent.is_dir()
    except (OSError, ValueError):
        return  # what cannot be looked at is told when it is written
    if there and not replace:
        raise _there(path)
    if folder or not around:
        why = "it is a folder" if folder else f"there is no folder {path.parent}"
        raise BadInput(str(path), (Problem("", f"cannot be written: {why}"),))


def _there(path: str | Path) -> BadInput:
    problem = Problem("", "is there already, and is left as it is")
    return BadInput(str(path), (problem,), "--force writes over it; -o names another file")


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


def write_bundle(path: Path, files: Mapping[str, bytes], mtime: float) -> None:
    """Write a .tar.gz that only its owner may read, complete or not at all; its one folder is named like it.

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
