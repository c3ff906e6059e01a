"""Ids of jobs that this machine has started or listed, for the shell's TAB; nothing else depends on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from toolkit.core.files import write_whole
from toolkit.errors import ToolkitError
from toolkit.protocol.names import JOB_ID

MOST_JOBS = 50
MOST_CLUSTERS = 50
_MOST_BYTES = 2**16


def remember_job(cluster: str, job: str) -> None:
    """Add a started job to the front of the stored ids; write errors are ignored."""
    remember_jobs(cluster, (job, *recall_jobs(cluster)))


def remember_jobs(cluster: str, jobs: Iterable[str]) -> None:
    """Store only these jobs of a cluster, at most 50; write errors are ignored.

    Args:
        jobs: ids, newest first.
    """
    with contextlib.suppress(OSError, RuntimeError, ToolkitError):
        if file := _file(cluster):
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(file, "".join(f"{job}\n" for job in _good(jobs)), 0o600)
            _forget(file.parent)


def recall_jobs(cluster: str) -> list[str]:
    """Return the stored jobs of a cluster, newest first; none if they cannot be read."""
    with contextlib.suppress(OSError, RuntimeError):
        file = _file(cluster)
        if file and file.is_file():  # to open a pipe of this name would block
            with file.open("rb") as source:
                return _good(source.read(_MOST_BYTES).decode("ascii", "replace").splitlines())
    return []


def knows_jobs() -> bool:
    """Return whether job ids of any cluster can be stored; called before toolkit reads a hosts file."""
    with contextlib.suppress(OSError, RuntimeError):
        return cache_folder().is_dir()
    return False


def cache_folder() -> Path:
    """Return the folder of stored job ids, with a file for each cluster.

    Raises:
        RuntimeError: the home folder of this user is unknown.
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "toolkit" / "jobs"


def _file(cluster: str) -> Path | None:
    """The cluster's file, None for a name that no cluster can have."""
    return cache_folder() / cluster if JOB_ID.fullmatch(cluster) else None


def _good(jobs: Iterable[str]) -> list[str]:
    return list(islice(dict.fromkeys(job for job in jobs if JOB_ID.fullmatch(job)), MOST_JOBS))


def _forget(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[MOST_CLUSTERS:]:
        file.unlink()
