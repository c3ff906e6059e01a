"""A local folder: which of its files travel, and the tar stream that carries them."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pathspec

from toolkit.errors import ToolkitError

IGNORE_FILES = (".gitignore", ".toolkitignore")
# Never part of a program, whatever the ignore files say.
ALWAYS_IGNORED = (".git/", "__pycache__/", ".venv/", ".lab/", "runs/")


def list_files(folder: Path) -> tuple[str, ...]:
    """Return what travels, relative to ``folder``, sorted: files and symlinks not ignored.

    ``.gitignore`` and ``.toolkitignore`` count in every folder, with git's own rules.

    Raises:
        ToolkitError: the folder is not there.
    """
    if not folder.is_dir():
        raise ToolkitError(f"{folder} is not a folder", "give another one: --workdir DIR")
    found: list[str] = []
    _walk(folder, "", [("", pathspec.GitIgnoreSpec.from_lines(ALWAYS_IGNORED))], found)
    return tuple(sorted(found))


_Specs = list[tuple[str, pathspec.GitIgnoreSpec]]


def _walk(folder: Path, prefix: str, specs: _Specs, found: list[str]) -> None:
    own = [line for name in IGNORE_FILES for line in _lines(folder / name)]
    if own:
        specs = [*specs, (prefix, pathspec.GitIgnoreSpec.from_lines(own))]
    for entry in os.scandir(folder):
        is_folder = entry.is_dir(follow_symlinks=False)
        path = f"{prefix}{entry.name}"
        if _ignored(f"{path}/" if is_folder else path, specs):
            continue
        if is_folder:
            _walk(Path(entry.path), f"{path}/", specs, found)
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            found.append(path)


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []


def _ignored(path: str, specs: _Specs) -> bool:
    ignored = False
    for prefix, spec in specs:
        verdict = spec.check_file(path[len(prefix) :]).include
        if verdict is not None:
            ignored = verdict
    return ignored


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
