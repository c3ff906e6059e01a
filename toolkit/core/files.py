"""Files written on this machine: outputs for the user, atomically replaced files, archives."""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from toolkit.core.command import quoted
from toolkit.core.local_writer import Destination, LocalWriter, split_name
from toolkit.errors import BadInput, Problem, ToolkitError

# For how long, and in which intervals, to wait for a lock that another process holds.
LOCK_S, _RETRY_S = 900.0, 0.1
_WRITABLE = "choose a file in an existing folder that you can write to"


def write_file(path: str | Path, text: str, replace: bool = True, program: bool = False) -> Path:
    """Write an output file into an existing folder and return its path.

    If the text cannot be written completely, an existing file stays as it was, and no new file remains.

    Args:
        replace: overwrite an existing file.
        program: make it executable.

    Raises:
        BadInput: the file cannot be written, or it exists and ``replace`` is not set.
    """
    path = Path(path)
    try:
        if replace and path.is_file():
            mode = stat.S_IMODE(path.stat().st_mode)
            _exchange(path.resolve(), text, 0o755 if program else mode)
        else:
            _create(path, text, replace)
            if program:
                path.chmod(0o755)
    except FileExistsError as error:
        raise _there(path) from error
    except (OSError, ValueError) as error:
        problem = Problem("", f"the file cannot be written: {getattr(error, 'strerror', None) or error}")
        raise BadInput(str(path), (problem,), _WRITABLE) from error
    return path


def make_folder(path: Path) -> None:
    """Create a folder for output files and the folders above it, unless it exists.

    Raises:
        BadInput: the folder cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        problem = Problem("", f"the folder cannot be created: {getattr(error, 'strerror', None) or error}")
        raise BadInput(str(path), (problem,), "choose a folder that you can write to") from error


def _create(path: Path, text: str, replace: bool) -> None:
    # `replace` remains for what is no regular file, such as /dev/stdout.
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
    file = os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8", newline="\n")
    try:
        with file:
            file.write(text)
    except (OSError, ValueError):
        if path.is_file():
            path.unlink()
        raise


def _exchange(path: Path, text: str | bytes, mode: int, sync: bool = False) -> None:
    """Replace a file atomically: a reader sees either the old or the new content."""
    name = ""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.absolute().parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
            if sync:
                file.flush()
                os.fsync(descriptor)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:  # also Ctrl-C: the folder can be read by another program
        with suppress(OSError):
            Path(name).unlink()
        raise


@contextmanager
def locked(path: Path, waiting: Callable[[], None], patience: float = LOCK_S) -> Iterator[None]:
    """Hold the lock of a file; wait while another process holds it.

    The kernel releases the lock if this process dies. The file remains. It can belong to another user. If the
    file cannot be created or read, is no regular file, or if its file system has no locks, there is no lock.

    Args:
        waiting: called once if another process holds the lock.
        patience: seconds to wait for the other process.

    Raises:
        ToolkitError: another process holds the lock for longer.
    """
    with ExitStack() as stack:
        file = -1
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = _open_lock(path)
            stack.callback(os.close, file)
        if not _take(file):
            waiting()
            end = time.monotonic() + patience
            while not _take(file):
                if time.monotonic() > end:
                    what = f"another process has held the lock of {path} for {patience / 60:.0f} minutes"
                    fix = f"sudo fuser -v {quoted(str(path))}"
                    fix += "  # prints the process; stop this process, then run the same command again"
                    raise ToolkitError(what, fix)
                time.sleep(_RETRY_S)
        yield


def _open_lock(path: Path) -> int:
    """Open a lock file. Its folder can be /tmp, where other users can create links and FIFOs."""
    safe = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # On NFS, a lock requires a file that is open for writing.
        return os.open(path, os.O_RDWR | os.O_CREAT | safe, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY | safe)


def _take(file: int) -> bool:
    """Take the lock of an open file, if the file can have one; return False if another process holds it."""
    try:
        if stat.S_ISREG(os.fstat(file).st_mode):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def write_page(name: str, text: str) -> Path:
    """Write a page into the working directory, under a name derived from a job's id, and return its path.

    A link of that name is replaced, not followed: it can come from an earlier download.

    Raises:
        BadInput: the page cannot be written.
    """
    try:
        with LocalWriter(Destination(Path())) as writer:
            page = writer.create(name)
            page.write(text.encode())
            page.commit()
    except (OSError, ToolkitError) as error:
        problem = Problem("", f"the file cannot be written: {getattr(error, 'strerror', None) or error}")
        raise BadInput(
            name, (problem,), "run the same command again in a folder that you can write to"
        ) from error
    return Path(name)


def refuse_file(path: str | Path, replace: bool) -> None:
    """Refuse a file that ``write_file`` would refuse, as far as this can be checked in advance.

    Raises:
        BadInput: the file exists and ``replace`` is not set, it is a folder, or its folder does not exist.
    """
    path = Path(path)
    try:
        folder, there, around = path.is_dir(), path.exists(), path.parent.is_dir()
    except (OSError, ValueError):
        return  # write_file reports a path that cannot be checked
    if there and not replace:
        raise _there(path)
    if folder or not around:
        why = "the path is a folder" if folder else f"the folder {path.parent} does not exist"
        raise BadInput(str(path), (Problem("", f"the file cannot be written: {why}"),), _WRITABLE)


def _there(path: str | Path) -> BadInput:
    problem = Problem("", "the file exists already and was not changed")
    return BadInput(
        str(path),
        (problem,),
        "run the same command again with --force to overwrite the file, or with -o and another file",
    )


def write_whole(path: Path, text: str | bytes, mode: int = 0o644, sync: bool = False) -> None:
    """Replace a file atomically: a reader sees either the old or the new content.

    Args:
        sync: the file has its content also after a power failure.

    Raises:
        ToolkitError: the file cannot be written.
    """
    try:
        _exchange(path, text, mode, sync)
    except OSError as error:
        raise ToolkitError(
            f"cannot write {path}: {error.strerror}",
            f"df -h {quoted(str(path.absolute().parent))}"
            "  # if the disk is full, free disk space; otherwise check the permissions of the folder",
        ) from error


def write_bundle(path: Path, files: Mapping[str, bytes], mtime: float, replace: bool = False) -> None:
    """Write a .tar.gz atomically, readable only by its owner; its one folder has the archive's name.

    Args:
        mtime: of all files, in seconds since the epoch.
        replace: replace an existing file or link.

    Raises:
        ToolkitError: nothing was written, with the reason.
    """
    top = path.name.removesuffix(".tar.gz")
    try:
        with LocalWriter(Destination(path.parent)) as writer:
            new = writer.create(path.name)
            # A separate GzipFile: tarfile would write the temporary name and the time into the header.
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
            new.commit(0o600, replace=replace)
    except OSError as error:
        raise ToolkitError(
            f"cannot write {path}: {error.strerror or error}",
            "run the same command again with --save and another file",
        ) from error
