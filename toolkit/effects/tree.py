"""A local folder: which of its files travel, and the tar stream that carries them."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from toolkit.effects.ignore import Rules, parse_ignore
from toolkit.errors import ToolkitError

IGNORE_FILES = (".gitignore", ".toolkitignore")
# Folders that are never part of a program, whatever the ignore files say.
NEVER_SENT = frozenset((".git", "__pycache__", ".venv", ".lab", "runs"))

# The rules of each folder on the way, outermost first, with how much of a path leads to that folder.
_Rules = tuple[tuple[int, Rules], ...]


def list_files(folder: Path) -> tuple[str, ...]:
    """Return what travels, relative to ``folder``, sorted: files and symlinks not ignored.

    ``.gitignore`` and ``.toolkitignore`` count in every folder, with git's own rules.

    Raises:
        ToolkitError: the folder is not there, or a part of it cannot be read.
    """
    if not folder.is_dir():
        raise ToolkitError(f"{folder} is not a folder", "give another one: --workdir DIR")
    found: list[str] = []
    try:
        _walk(folder, "", (), found)
    except OSError as error:
        what = f"cannot read the code to send: {error}"
        raise ToolkitError(what, "make it readable or ignore it") from error
    return tuple(sorted(found))


def _walk(folder: Path, prefix: str, rules: _Rules, found: list[str]) -> None:
    files = (folder / name for name in IGNORE_FILES)
    own = [parse_ignore(file.read_bytes()) for file in files if file.is_file()]
    rules = (*rules, *((len(prefix), r) for r in own if r is not None))
    for entry in os.scandir(folder):
        is_folder = entry.is_dir(follow_symlinks=False)
        path = f"{prefix}{entry.name}"
        if (is_folder and entry.name in NEVER_SENT) or _is_ignored(path, is_folder, rules):
            continue
        if is_folder:
            _walk(Path(entry.path), f"{path}/", rules, found)
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            found.append(path)


def _is_ignored(path: str, is_folder: bool, rules: _Rules) -> bool:
    for start, own in reversed(rules):
        verdict = own.ignored(path[start:], is_folder)
        if verdict is not None:
            return verdict
    return False


def total_bytes(folder: Path, paths: Sequence[str]) -> int:
    """Return the size of these files in bytes."""
    return sum((folder / p).lstat().st_size for p in paths)


def tar_stream(folder: Path | None, paths: Sequence[str], texts: Mapping[str, str]) -> Iterator[bytes]:
    """Yield a tar archive of some texts and, below ``code/``, the files; in order, never whole in memory.

    Raises:
        ToolkitError: a file cannot be read.
    """
    reading, writing = os.pipe()
    failed: list[Exception] = []

    def write() -> None:
        try:
            with os.fdopen(writing, "wb") as sink, tarfile.open(fileobj=sink, mode="w|") as tar:
                for name, text in texts.items():
                    _add_text(tar, name, text.encode(), 0o600)
                for name in ("code", "logs"):
                    info = tarfile.TarInfo(name)
                    info.type, info.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(info)
                for path in paths if folder else ():
                    tar.add(str(Path(folder or ".") / path), f"code/{path}", recursive=False)
        except BrokenPipeError:
            pass  # the receiver stopped; its status tells why
        except (OSError, ValueError) as error:
            failed.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    with os.fdopen(reading, "rb") as source:
        while chunk := source.read(2**16):
            yield chunk
    thread.join()
    if failed:
        raise ToolkitError(f"cannot read the code to send: {failed[0]}", "make it readable or ignore it")


def _add_text(tar: tarfile.TarFile, name: str, text: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(text), mode
    tar.addfile(info, io.BytesIO(text))
