"""The sha256 of local files, remembered from run to run for those that have not been touched since."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

# A file that was written this short a time before it was read may be written again with the same times and
# the same size; file systems count time in steps of up to two seconds.
_SETTLED_NS = 2_000_000_000
_MOST = 32
_TRIES = 3

# Size, mtime, ctime (both in nanoseconds), inode.
_Seen = tuple[int, int, int, int]


class Unsteady(OSError):
    """A file is written while it is read."""


class Hashes:
    """Sums of the files of one folder.

    A sum counts for as long as size, both times and the inode are those of when it was made. What cannot be
    remembered is read again.
    """

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]
        self._file = (cache or cache_folder()) / f"{name}.json"
        self._old: dict[str, list[object]] = {}
        self._new: dict[str, list[object]] = {}
        with contextlib.suppress(OSError, ValueError):
            old = json.loads(self._file.read_bytes())
            self._old = old if isinstance(old, dict) else {}
        self._began = time.time_ns()
        self._changed = False

    def of(self, key: str, file: str, about: os.stat_result) -> tuple[str, os.stat_result]:
        """Return a file's sha256 in hexadecimal digits, and its status when that was made.

        Args:
            key: by which it is remembered.
            about: its status, as it was just seen.

        Raises:
            Unsteady: it is written all the time.
            OSError: it cannot be read.
        """
        seen = _seen(about)
        known = self._old.get(key)
        if isinstance(known, list) and len(known) == 5 and known[:4] == [*seen]:
            self._new[key] = known
            return str(known[4]), about
        self._changed = True
        digest, about = _read(file)
        if max(about.st_mtime_ns, about.st_ctime_ns) < self._began - _SETTLED_NS:
            self._new[key] = [*_seen(about), digest]
        return digest, about

    def save(self) -> None:
        """Remember the sums that were asked for, and forget the others."""
        if not self._changed and len(self._new) == len(self._old):
            return
        with contextlib.suppress(OSError):  # then the files are read once more next time
            folder = self._file.parent
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, name = tempfile.mkstemp(dir=folder)
            try:
                with os.fdopen(descriptor, "w") as file:
                    json.dump(self._new, file)
                Path(name).replace(self._file)
            except BaseException:
                Path(name).unlink()
                raise
            _forget(folder)


def cache_folder() -> Path:
    """Return where sums are remembered."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "toolkit" / "code"


def _seen(about: os.stat_result) -> _Seen:
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino


def _read(file: str) -> tuple[str, os.stat_result]:
    for _ in range(_TRIES):
        with open(file, "rb", buffering=0) as source:  # noqa: PTH123 - of ten thousand files it is felt
            before = os.fstat(source.fileno())
            sha = hashlib.sha256()
            while data := source.read(2**20):
                sha.update(data)
            if _seen(os.fstat(source.fileno())) == _seen(before):
                return sha.hexdigest(), before
    raise Unsteady(f"{file} is written while it is read")


def _forget(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[_MOST:]:
        file.unlink()
