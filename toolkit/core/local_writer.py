"""Writer for files that hosts, containers and archives send: below one local folder, complete or not at all.

Names, sizes and contents are untrusted input. Every folder is opened relative to the descriptor of its
parent and without following links, so that no link leads elsewhere, not even one that is created meanwhile.
"""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import stat
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from toolkit.errors import ToolkitError
from toolkit.protocol.files import MOST_BYTES
from toolkit.protocol.names import RUNS

if TYPE_CHECKING:
    from toolkit.core.remote_files import RemoteFile

# Compared with a remote file: absent, equal in size and time, or anything else.
State = Literal["new", "there", "differs"]

MAX_FILES = 10_000_000
# Of what is free on the local file system; the rest is for everything else on this machine.
_SHARE = 0.95
# A header of an archive holds names, which are not longer than 4096 bytes.
_MOST_HEADER = 2**16
_STAGING = ".toolkit-new-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TICK_NS = 1_000_000  # some file systems keep times less exactly
ELSEWHERE = "another folder (`toolkit get -o DIR` or `toolkit logs --save DIR`)"
_OUT, _NOTHING = "the link points outside the folder", "the link points to no file in the folder"


class BlockedPath(ToolkitError):
    """A folder on the way to a file is a symbolic link, or is not a folder."""


class UnsafeName(ToolkitError):
    """A name is absolute, contains ``..``, or cannot be the name of a file."""


@dataclass(frozen=True)
class Destination:
    """A local folder that receives files.

    Args:
        root: the folder that the user named; links on the way to it are followed.
        below: names of folders below ``root``, where no link is followed.
    """

    root: Path
    below: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.root.joinpath(*self.below)

    def folder(self, *names: str) -> Destination:
        """Return a folder below this one."""
        return Destination(self.root, (*self.below, *names))


def destination(path: str | Path) -> Destination:
    """Return the destination for a path. Below ``runs``, where earlier downloads are, no link is followed."""
    parts = Path(path).parts
    if parts[:1] == (RUNS,) and ".." not in parts:
        return Destination(Path(RUNS), parts[1:])
    return Destination(Path(path))


def split_name(name: str, host: str = "") -> tuple[str, ...]:
    """Return the components of a relative name.

    Raises:
        UnsafeName: the name could lead out of the folder.
    """
    parts = tuple(name.split("/"))
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise UnsafeName(f"{name!r} is not a valid name of a file below the destination folder", "", host)
    return parts


class LocalWriter:
    """Writes files below a destination.

    Files are received in a new staging folder in ``root``, which is on the same file system and which
    ``close`` removes. A file gets its name when it is complete.

    Args:
        host: the sender, for errors.
        size: most bytes in total; always limited by the free space.
        files: most files and links in total; always limited by the free inodes.
        keep_modes: keep execute bits.
    """

    def __init__(
        self,
        place: Destination,
        host: str = "",
        size: int | None = None,
        files: int = MAX_FILES,
        keep_modes: bool = False,
    ) -> None:
        self.place, self.host = place, host
        self._size, self._files, self._keep_modes = size, files, keep_modes
        self._announced = size is not None
        self._root = self._staging = -1
        self._staging_name = ""
        self._count = 0
        self._open: list[IncomingFile] = []

    def __enter__(self) -> LocalWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state(self, file: RemoteFile) -> State:
        """Compare a remote file or link with the local one; writes nothing.

        Raises:
            BlockedPath: a folder on the way is a link.
            UnsafeName: see ``split_name``.
        """
        parts = split_name(file.name, self.host)
        if not self._open_root(make=False):
            return "new"
        try:
            about, link = self._look(parts)
        except FileNotFoundError:
            return "new"
        except NotADirectoryError:
            return "differs"
        if file.link is not None:
            return "there" if link == file.link else "differs"
        if not stat.S_ISREG(about.st_mode) or about.st_size != file.size:
            return "differs"
        return "there" if abs(about.st_mtime_ns - file.mtime) < _TICK_NS else "differs"

    def create(self, name: str) -> IncomingFile:
        """Begin a file; ``IncomingFile.commit`` gives it its name.

        Raises:
            UnsafeName: see ``split_name``.
            ToolkitError: more files come than the limit allows.
            OSError: the folder cannot be written to.
        """
        parts = split_name(name, self.host)
        staged, descriptor = self._stage()
        file = IncomingFile(self, parts, staged, os.fdopen(descriptor, "wb"))
        self._open.append(file)
        return file

    def link(self, name: str, target: str) -> str:
        """Create a symbolic link; return an empty text, or the reason why the link was left out.

        The target must exist below the destination and must be reached without any other link. Write links
        after all files.
        """
        parts = split_name(name, self.host)
        reason = self._why_not(parts[:-1], target)
        if reason:
            return reason
        self._prepare()
        self._take_number()
        staged = str(self._count)
        os.symlink(target, staged, dir_fd=self._staging)
        self._place(staged, parts)
        return ""

    def take(self, size: int) -> None:
        """Count bytes that are about to be written.

        Raises:
            ToolkitError: the limit is reached.
        """
        assert self._size is not None
        self._size -= size
        if self._size < 0:
            what = f"the host sent more bytes than fit into {self.place.root}"
            if self._announced:
                what = f"the host sent more bytes than announced, or more than fit into {self.place.root}"
            raise ToolkitError(what, "free disk space on your machine, or use another folder", self.host)

    def close(self) -> None:
        """Remove incomplete files and the staging folder; can be called again."""
        for file in self._open:
            with suppress(OSError):
                file.file.close()
        self._open.clear()
        if self._staging >= 0:
            with suppress(OSError):
                for name in os.listdir(self._staging):
                    os.unlink(name, dir_fd=self._staging)
            os.close(self._staging)
            self._staging = -1
        if self._staging_name:
            with suppress(OSError):
                os.rmdir(self._staging_name, dir_fd=self._root)
            self._staging_name = ""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _open_root(self, make: bool) -> bool:
        """Open the root; return whether it is there."""
        if self._root >= 0:
            return True
        if make:
            self.place.root.mkdir(parents=True, exist_ok=True)
        try:
            # Without O_NOFOLLOW: the user named this folder.
            self._root = os.open(self.place.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            if make:
                raise
            return False
        return True

    def _prepare(self) -> None:
        """Open the root and the staging folder, and set the limits."""
        if self._staging >= 0:
            return
        if not self._open_root(make=True):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.place.root))
        room = os.fstatvfs(self._root)
        # Some network file systems report 0 blocks or inodes for "unknown".
        if room.f_blocks:
            free = int(room.f_bavail * room.f_frsize * _SHARE)
            self._size = free if self._size is None else min(self._size, free)
        elif self._size is None:
            self._size = 2**63
        if room.f_files:
            self._files = min(self._files, int(room.f_favail * _SHARE))
        self._staging_name = _STAGING + secrets.token_hex(8)
        os.mkdir(self._staging_name, 0o700, dir_fd=self._root)
        self._staging = os.open(self._staging_name, _FOLDER, dir_fd=self._root)

    def _take_number(self) -> None:
        self._count += 1
        if self._count > self._files:
            what = f"the host sent more files than announced, or more than fit into {self.place.root}"
            raise ToolkitError(what, "free inodes on your machine (df -i), or use another folder", self.host)

    def _stage(self) -> tuple[str, int]:
        """Create a file in the staging folder; return its name there and a descriptor."""
        self._prepare()
        self._take_number()
        staged = str(self._count)
        # The kernel applies the umask; other users cannot open the staging folder.
        mode = 0o777 if self._keep_modes else 0o666
        return staged, os.open(staged, _NEW, mode, dir_fd=self._staging)

    def _place(self, staged: str, parts: Sequence[str], replace: bool = True) -> None:
        """Move a staged file to its name."""
        parent = self._walk((*self.place.below, *parts[:-1]), make=True)
        try:
            with suppress(FileNotFoundError):
                about = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
                if stat.S_ISDIR(about.st_mode):
                    where = self.place.path.joinpath(*parts)
                    what = f"{where} is a folder, so toolkit cannot write a file of this name"
                    fix = f"move the folder, or use {ELSEWHERE}"
                    raise ToolkitError(what, fix, self.host)
                if not replace:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), parts[-1])
            if not replace:
                # A link, unlike a rename, refuses a name that another program has taken meanwhile.
                try:
                    os.link(
                        staged,
                        parts[-1],
                        src_dir_fd=self._staging,
                        dst_dir_fd=parent,
                        follow_symlinks=False,
                    )
                    return
                except FileExistsError:
                    raise
                except OSError:  # a file system without hard links
                    pass
            os.rename(staged, parts[-1], src_dir_fd=self._staging, dst_dir_fd=parent)
        finally:
            os.close(parent)

    def _walk(self, names: Sequence[str], make: bool) -> int:
        """Return a descriptor of a folder below the root, opened component by component without links.

        Raises:
            BlockedPath: a component is a link; with ``make`` also if it is not a folder.
            FileNotFoundError, NotADirectoryError: a component is not there or not a folder.
        """
        at = os.dup(self._root)
        try:
            for number, name in enumerate(names):
                try:
                    below = _open_folder(name, at, make)
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    path = self.place.root.joinpath(*names[: number + 1])
                    about = os.stat(name, dir_fd=at, follow_symlinks=False)
                    if stat.S_ISLNK(about.st_mode):
                        what = (
                            f"{path} is a symbolic link, and toolkit follows no links below {self.place.root}"
                        )
                        raise BlockedPath(what, f"rm {shlex.quote(str(path))}", self.host) from None
                    if make:
                        what = f"{path} is a file, so toolkit cannot create a folder of this name"
                        fix = f"move the file, or use {ELSEWHERE}"
                        raise BlockedPath(what, fix, self.host) from None
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        return at

    def _look(self, parts: Sequence[str]) -> tuple[os.stat_result, str | None]:
        """Return the status of what has this name, and the target if it is a link."""
        parent = self._walk((*self.place.below, *parts[:-1]), make=False)
        try:
            about = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            link = os.readlink(parts[-1], dir_fd=parent) if stat.S_ISLNK(about.st_mode) else None
            return about, link
        finally:
            os.close(parent)

    def _why_not(self, folders: Sequence[str], target: str) -> str:
        """Return why a link in a folder must not be created; empty if it is allowed."""
        if target.startswith("/"):
            return _OUT
        if not self._open_root(make=False):
            return _NOTHING
        names, is_folder = list(folders), True
        for part in target.split("/"):
            if not is_folder:
                return _NOTHING
            if part in ("", "."):
                continue
            if part == "..":
                if not names:
                    return _OUT
                names.pop()
                continue
            names.append(part)
            try:
                about, _ = self._look(names)
            except (OSError, BlockedPath):
                return _NOTHING
            if stat.S_ISLNK(about.st_mode):
                return f"the link points through another link, {'/'.join(names)}"
            is_folder = stat.S_ISDIR(about.st_mode)
            if not is_folder and not stat.S_ISREG(about.st_mode):
                return _NOTHING
        return "" if names else _OUT


def _open_folder(name: str, at: int, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # files of another host can arrive at the same time
        os.mkdir(name, dir_fd=at)
    return os.open(name, _FOLDER, dir_fd=at)


class IncomingFile:
    """A file that is being received; ``LocalWriter.create`` makes it."""

    def __init__(self, writer: LocalWriter, parts: tuple[str, ...], staged: str, file: IO[bytes]) -> None:
        self.file = file
        self._writer, self._parts, self._staged = writer, parts, staged

    def write(self, data: bytes) -> int:
        """Append bytes.

        Raises:
            ToolkitError: more bytes come than the limit allows.
        """
        self._writer.take(len(data))
        return self.file.write(data)

    def commit(self, mode: int = 0o666, mtime: int | None = None, replace: bool = True) -> None:
        """Give the complete file its name.

        Args:
            mode: wanted permissions, reduced by the umask; execute bits count with ``keep_modes`` only.
            mtime: nanoseconds since the epoch; the current time for None.
            replace: replace a file or link of this name.

        Raises:
            BlockedPath: a folder on the way is a link or a file.
            ToolkitError: the name is that of a folder.
            FileExistsError: the name is taken, and ``replace`` is not set.
        """
        self.file.flush()
        descriptor = self.file.fileno()
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & mode & 0o777 | 0o600)
        if mtime is not None:
            os.utime(descriptor, ns=(mtime, mtime))
        self.file.close()
        self._writer._open.remove(self)
        self._writer._place(self._staged, self._parts, replace)


@dataclass
class IncomingFiles(ABC):
    """Takes lines of ``send_files``, and behind a line the bytes of a file, as they come.

    Args:
        tell: called with the number of bytes received.
    """

    writer: LocalWriter
    tell: Callable[[int], None]
    received: int = field(default=0, init=False)
    _line: bytearray = field(default_factory=bytearray, init=False)
    _left: int = field(default=0, init=False)
    _file: IncomingFile | None = field(default=None, init=False)

    def __call__(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._file is None:
                end = data.find(b"\n", at, at + MOST_BYTES + 1) + 1
                self._line += data[at : end or at + MOST_BYTES + 1]
                at = end or at + MOST_BYTES + 1
                # The decoder refuses a line that is too long.
                if end or len(self._line) > MOST_BYTES:
                    self._file, self._left = self.begin(bytes(self._line))
                    self._line.clear()
            else:
                piece = data[at : at + self._left]
                self._file.write(piece)
                self._left -= len(piece)
                self.received += len(piece)
                at += len(piece)
                self.tell(self.received)
            if self._file is not None and not self._left:
                self.finish(self._file)
                self._file = None

    @abstractmethod
    def begin(self, line: bytes) -> tuple[IncomingFile | None, int]:
        """Decode a line; return the file whose bytes follow, and their number."""

    @abstractmethod
    def finish(self, file: IncomingFile) -> None:
        """Give a complete file its name."""


class TarHeaders:
    """An archive as tarfile reads it: only headers, each of limited length."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_HEADER:
            raise tarfile.ReadError(f"a header has {size} bytes, but the limit is {_MOST_HEADER} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset < 0:
            raise tarfile.ReadError("a member begins before the start of the archive")
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()
