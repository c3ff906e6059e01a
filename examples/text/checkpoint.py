"""Checkpoints that a crash leaves whole: written aside, brought to the disk, then named.

    found = checkpoint.latest("checkpoints") if rank == 0 else None
    held = [found.path.read_bytes() if found else None]
    torch.distributed.broadcast_object_list(held, src=0)  # other hosts can have none, or an older one
    ...
    if rank == 0:
        checkpoint.save("checkpoints", step, lambda file: torch.save(state, file))

A file's name holds the step, its length and a checksum: step-000000000090.48213.9f86d081.ckpt. What is
in it is the caller's alone, so any program reads it. One rank writes to one folder, on any disk or on a
share. Needs nothing but the standard library: copy it.
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

KEEP = 2  # the newest may turn out to be of no use, to a bug in the script say
NAME = re.compile(r"step-([0-9]{12,})\.([0-9]+)\.([0-9a-f]{8})\.ckpt")
UNFINISHED = ".step-*.unfinished"
ABANDONED = 3600  # seconds without a change, where a file system has no locks to tell


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
    """Write one checkpoint, remove all but the newest, and return the new one's path.

    When this returns the checkpoint is on the disk. When it raises or is killed, what was there still is.

    Args:
        folder: made if it is not there. One process at a time may save to it.
        step: how far the training has come, 0 or more; it becomes part of the name.
        content: the bytes, or what writes them to a file that is open for writing and reading.
        keep: how many are kept, this one included. Those of later steps are left alone.

    Raises:
        OSError: it could not be written, for want of room say. Nothing of it is left.
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
    _sync(place)  # only now: an old one must not go while the new name may still be lost
    _remove_old(place, path, step, keep)
    return path


def latest(folder: str | os.PathLike[str]) -> Checkpoint | None:
    """Return the newest complete checkpoint of a folder, or None. Reads it once to be sure."""
    return next(complete(folder), None)


def complete(folder: str | os.PathLike[str]) -> Iterator[Checkpoint]:
    """Yield the complete checkpoints of a folder, the newest first; each is read when its turn has come."""
    for found in sorted(_named(Path(folder)), reverse=True):
        with contextlib.suppress(FileNotFoundError), found.path.open("rb") as file:
            if _measure(file) == (found.length, found.checksum):
                yield Checkpoint(found.step, found.path)


def agreed(held: Sequence[Collection[int]]) -> int | None:
    """Return the newest step that every rank holds, or None if no rank holds a checkpoint.

    For scripts in which each rank reads its own part; where rank 0 reads and broadcasts, ranks cannot differ.

    Args:
        held: the steps that each rank holds, in rank order, gathered from all ranks.

    Raises:
        RuntimeError: some ranks hold checkpoints and no step is common to all. To continue would mix
            ranks that resume with ranks that start from step 0.
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
    """Open a file under another name, which is gone afterwards unless it was renamed."""
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
    """Remove what killed writers left. Who still writes holds a lock, which the dead do not."""
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
    """Bring the names in a folder to the disk."""
    folder = os.open(place, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # shares on which folders cannot be synced
            raise
    finally:
        os.close(folder)
