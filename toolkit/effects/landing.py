"""Files that come from elsewhere, put below a local folder: nothing beside it, nothing half."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from toolkit.errors import ToolkitError

Standing = Literal["new", "there", "differs"]
_TICK_NS = 1_000_000  # some file systems keep times less exactly


@dataclass(frozen=True)
class Coming:
    """A file or link of a host.

    Args:
        path: where it is there.
        name: what it is to be called here, relative.
        mtime: nanoseconds since the epoch.
        link: a link's target; None for a file.
    """

    path: str
    name: str
    size: int = 0
    mtime: int = 0
    mode: int = 0o644
    link: str | None = None


def safe_target(into: Path, coming: Coming) -> Path | None:
    """Return where it goes; None when that, or what a link leads to, is not below the folder."""
    parts = PurePosixPath(coming.name)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        return None
    target, top = into / coming.name, into.resolve()
    if not target.parent.resolve().is_relative_to(top):
        return None
    if coming.link is not None:
        leads = Path(os.path.normpath(target.parent.resolve() / coming.link))
        if PurePosixPath(coming.link).is_absolute() or not leads.is_relative_to(top):
            return None
    return target


def standing(target: Path, coming: Coming) -> Standing:
    """Return what is in a file's place: nothing, the same by size and time, or something else."""
    try:
        about = target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return "new" if _can_be_made(target) else "differs"
    if coming.link is not None:
        return "there" if target.is_symlink() and os.readlink(target) == coming.link else "differs"  # noqa: PTH115
    if target.is_symlink() or not target.is_file() or about.st_size != coming.size:
        return "differs"
    return "there" if abs(about.st_mtime_ns - coming.mtime) < _TICK_NS else "differs"


def _can_be_made(target: Path) -> bool:
    parent = target.parent
    while not parent.exists() and not parent.is_symlink():
        parent = parent.parent
    return parent.is_dir()


def put_link(target: Path, link: str) -> None:
    """Make a link, in the place of a file or a link that is there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        target.unlink()
    target.symlink_to(link)


@dataclass
class Landing:
    """Takes the bytes of files that come one after another, as ``toolkit/inside/give.py send`` writes them.

    A file appears under its name when all of it is there; ``close`` removes what has not come that far.
    """

    files: Sequence[tuple[Coming, Path]]
    tell: Callable[[int], None]
    landed: int = 0
    taken: int = 0
    refused: list[tuple[Coming, str]] = field(default_factory=list)
    _next: int = 0
    _line: bytearray = field(default_factory=bytearray)
    _left: int = 0
    _mtime: int = 0
    _file: IO[bytes] | None = None
    _name: str = ""

    def __call__(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._file is None:
                end = data.find(b"\n", at) + 1
                self._line += data[at : end or len(data)]
                at = end or len(data)
                if end:
                    self._begin(json.loads(bytes(self._line)))
                    self._line.clear()
            else:
                piece = data[at : at + self._left]
                self._file.write(piece)
                self._left -= len(piece)
                self.taken += len(piece)
                at += len(piece)
                self.tell(self.taken)
            if self._file is not None and not self._left:
                self._finish()

    def _begin(self, head: dict[str, Any]) -> None:
        coming, target = self.files[self._next]
        if "refused" in head:
            self.refused.append((coming, str(head["refused"])))
            self._next += 1
            return
        self._left, self._mtime = int(head["size"]), int(head["mtime"])
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, self._name = tempfile.mkstemp(prefix=".", suffix=".part", dir=target.parent)
        self._file = os.fdopen(descriptor, "wb")

    def _finish(self) -> None:
        coming, target = self.files[self._next]
        assert self._file is not None
        self._file.close()
        self._file = None
        new = Path(self._name)
        new.chmod(coming.mode & 0o755 | 0o600)
        os.utime(new, ns=(self._mtime, self._mtime))
        if target.is_dir() and not target.is_symlink():
            raise ToolkitError(f"{target} is a folder here and a file there", "move it away, or use -o DIR")
        new.replace(target)
        self._name = ""
        self.landed += 1
        self._next += 1

    @property
    def whole(self) -> bool:
        """Whether every file has come, or was refused."""
        return self._next == len(self.files)

    def close(self) -> None:
        """Remove what has come of a file that is not whole."""
        if self._file is not None:
            self._file.close()
        if self._name:
            with suppress(OSError):
                Path(self._name).unlink()
