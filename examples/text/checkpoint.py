"""Checkpoints that survive a crash: a file gets its final name only when it is complete on the disk.

    found = checkpoint.latest("checkpoints") if rank == 0 else None
    held = [found.path.read_bytes() if found else None]
    torch.distributed.broadcast_object_list(held, src=0)  # other hosts can have older checkpoints
    ...
    if rank == 0:
        checkpoint.save("checkpoints", step, lambda file: torch.save(state, file))

The name of a file contains the step, the length and a checksum: step-000000000090.48213.9f86d081.ckpt. The
file contains only the data of the caller, so any program can read it. Each folder must have only one writer.
The folder can be on a local disk or a network file system. The module needs only the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

KEEP = 2  # the newest checkpoint can be useless, for example after a bug in the script
NAME = re.compile(r"step-([0-9]{12,})\.([0-9]+)\.([0-9a-f]{8})\.ckpt")
UNFINISHED = ".step-*.unfinished"
ABANDONED = 3600  # seconds without a change, if the file system has no locks


class Checkpoint(NamedTuple):
    """A complete checkpoint."""

    step: int
    path: Path


class _Named(NamedTuple):
    """The values in the name of a checkpoint file."""

    step: int
    length: int
    checksum: int
    path: Path


def save(
    folder: str | os.PathLike[str],
    step: int,
    content: bytes | Callable[[BinaryIO], object],
    keep: int = KEEP,
) -> Path:
    """Write a checkpoint, remove old checkpoints, and return the path of the new checkpoint.

    When the function returns, the checkpoint is on the disk. If the function raises an error or is killed,
    the earlier checkpoints remain.

    Args:
        folder: folder of the checkpoints, which is created if it is missing. Only one process at a time can
            save to a folder.
        step: number of the training step, 0 or more; part of the file name.
        content: the bytes, or a function that writes the bytes to a file opened for writing and reading.
        keep: number of checkpoints to keep, with the new one. Checkpoints of later steps are not removed.

    Raises:
        OSError: the checkpoint could not be written, for example because the disk is full. No part remains.
    """
    if step < 0 or keep < 1:
        raise ValueError("step is 0 or more, keep is 1 or more")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(place)
    with _aside(place, step) as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)
        file.flush()
        os.fsync(file.fileno())
        length, checksum = _measure(file)
        path = place / f"step-{step:012d}.{length}.{checksum:08x}.ckpt"
        Path(file.name).replace(path)
    _sync(place)  # before old checkpoints are removed: the new name must be on the disk
    _remove_old(place, path, step, keep)
    return path


def latest(folder: str | os.PathLike[str]) -> Checkpoint | None:
    """Return the newest complete checkpoint of a folder, or None. The function verifies the checksum."""
    return next(complete(folder), None)


def complete(folder: str | os.PathLike[str]) -> Iterator[Checkpoint]:
    """Yield the complete checkpoints of a folder, newest first; each file is read when it is needed."""
    for found in sorted(_named(Path(folder)), reverse=True):
        with contextlib.suppress(FileNotFoundError), found.path.open("rb") as file:
            if _measure(file) == (found.length, found.checksum):
                yield Checkpoint(found.step, found.path)


def agreed(held: Sequence[Collection[int]]) -> int | None:
    """Return the newest step that every rank has, or None if no rank has a checkpoint.

    For scripts in which each rank reads its own part. If rank 0 reads and broadcasts, ranks cannot differ.

    Args:
        held: the steps that each rank has, in rank order, gathered from all ranks.

    Raises:
        RuntimeError: some ranks have checkpoints, but no step is common to all ranks. Otherwise, some ranks
            would resume while others start from step 0.
    """
    if not any(held):
        return None
    if common := set.intersection(*map(set, held)):
        return max(common)
    newest = ", ".join(f"rank {rank}: {max(steps, default='none')}" for rank, steps in enumerate(held))
    raise RuntimeError(
        f"the ranks hold no common checkpoint (newest steps: {newest}); write checkpoints to a folder that "
        "all hosts share, or remove them to start from step 0"
    )


@contextlib.contextmanager
def _aside(place: Path, step: int) -> Iterator[BinaryIO]:
    """Open a file with a temporary name, and remove the file afterwards unless it was renamed."""
    path = place / f".step-{step:012d}.{uuid.uuid4().hex}.unfinished"
    try:
        with path.open("x+b") as file:
            with contextlib.suppress(OSError):  # not all file systems have locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _remove_abandoned(place: Path) -> None:
    """Remove unfinished files of killed writers. A running writer has a lock on its file."""
    for path in place.glob(UNFINISHED):
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:
                if time.time() - path.stat().st_mtime < ABANDONED:
                    continue
            path.unlink()


def _remove_old(place: Path, new: Path, step: int, keep: int) -> None:
    others = [found for found in _named(place) if found.path != new and found.step <= step]
    whole = [found for found in others if found.step < step and _size(found.path) == found.length]
    kept = sorted(whole, reverse=True)[: keep - 1]
    for found in others:
        if found not in kept:
            found.path.unlink(missing_ok=True)


def _named(place: Path) -> Iterator[_Named]:
    for path in place.glob("step-*.ckpt"):
        if match := NAME.fullmatch(path.name):
            yield _Named(int(match[1]), int(match[2]), int(match[3], 16), path)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _measure(file: BinaryIO) -> tuple[int, int]:
    length = checksum = 0
    file.seek(0)
    while piece := file.read(1 << 20):
        length += len(piece)
        checksum = zlib.crc32(piece, checksum)
    return length, checksum


def _sync(place: Path) -> None:
    """Write the names in a folder to the disk."""
    folder = os.open(place, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network file systems without fsync for folders
            raise
    finally:
        os.close(folder)
