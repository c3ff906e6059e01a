"""A local folder: which of its files travel, what they are, and their bytes in order."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from toolkit.core.code import FILE, LINK, CodeTree, Entry
from toolkit.data.hashes import Hashes, Unsteady
from toolkit.errors import ToolkitError
from toolkit.jobs.ignore import Rules, parse_ignore
from toolkit.protocol.names import RUNS

IGNORE_FILES = (".gitignore", ".toolkitignore")
# Folders that are never part of a program, whatever the ignore files say.
NEVER_SENT = frozenset((".git", ".ssh", "__pycache__", ".venv", ".lab", RUNS))
# Names of files that may be private keys; the content decides.
_KEY_NAMES = re.compile(r"id_\w+|.*\.(pem|key)|.*_(rsa|dsa|ecdsa|ed25519)")
_PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----")

_PIECE = 2**15
# What `why` and `report` have written, which may tell more than the ranks should know.
_OWN_PAGES = re.compile(r"why-\d{8}-\d{6}-.*\.tar\.gz|report-\d{8}-\d{6}-.*\.html")
_STEADY = "run it again; name what others write all the time in .toolkitignore"

# The rules of each folder on the way, outermost first, with how much of a path leads to that folder.
_Rules = tuple[tuple[int, Rules], ...]


def list_files(folder: Path) -> tuple[str, ...]:
    """Return what travels, relative to ``folder``, sorted: files and symlinks not ignored.

    ``.gitignore`` and ``.toolkitignore`` count in every folder, with git's own rules.

    Raises:
        ToolkitError: the folder is not there, or a part of it cannot be read.
    """
    return tuple(path for path, _ in _found(folder))


def read_tree(folder: Path, cache: Path | None = None, private: Iterable[Path] = ()) -> CodeTree:
    """Return what travels of a folder, with the sums of its files.

    Args:
        cache: folder in which sums are remembered; the person's own cache if absent.
        private: files that are never sent, under whatever name they lie in the folder. Nor are private keys.

    Raises:
        ToolkitError: as ``list_files``; also a file that is written while it is read.
    """
    found = _found(folder)
    hashes = Hashes(folder, cache)
    identities = frozenset(filter(None, map(_identity, private)))
    try:
        kept = {path for path, place in found if _is_private(place, identities)}
        entries = tuple(_entry(path, place, hashes) for path, place in found if path not in kept)
    except Unsteady as error:
        raise ToolkitError(f"the code to send changes: {error}", _STEADY) from error
    except OSError as error:
        raise _unreadable(error) from error
    hashes.save()
    return CodeTree(entries, tuple(sorted(kept)))


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file, None where there is none."""
    try:
        about = path.stat()
    except (OSError, ValueError):
        return None
    return about.st_dev, about.st_ino


def _is_private(place: os.DirEntry[str], identities: Collection[tuple[int, int]]) -> bool:
    inode = place.inode()
    if any(inode == number for _, number in identities):
        about = place.stat(follow_symlinks=False)
        if (about.st_dev, about.st_ino) in identities:
            return True
    if not _KEY_NAMES.fullmatch(place.name) or not place.is_file(follow_symlinks=False):
        return False
    with Path(place.path).open("rb") as file:
        return bool(_PRIVATE_KEY.match(file.read(100)))


def _entry(path: str, place: os.DirEntry[str], hashes: Hashes) -> Entry:
    about = place.stat(follow_symlinks=False)
    if stat.S_ISLNK(about.st_mode):
        # Path would write the target in another form.
        return Entry(path, LINK, 0, 0, 0, os.readlink(place.path))  # noqa: PTH115
    digest, about = hashes.of(path, place.path, about)
    # As unpacked by anybody under the usual umask: what others could write here they cannot there.
    return Entry(path, FILE, about.st_mode & 0o755, about.st_size, about.st_mtime_ns, digest)


def _found(folder: Path) -> list[tuple[str, os.DirEntry[str]]]:
    if not folder.is_dir():
        raise ToolkitError(f"{folder} is not a folder", "give another one: --workdir DIR")
    found: list[tuple[str, os.DirEntry[str]]] = []
    try:
        _walk(folder, "", (), found)
    except OSError as error:
        raise _unreadable(error) from error
    return sorted(found, key=lambda pair: pair[0])


def _unreadable(error: OSError) -> ToolkitError:
    return ToolkitError(f"cannot read the code to send: {error}", "make it readable or ignore it")


def _walk(folder: Path, prefix: str, rules: _Rules, found: list[tuple[str, os.DirEntry[str]]]) -> None:
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
        elif _OWN_PAGES.fullmatch(entry.name):
            continue
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            found.append((path, entry))


def _is_ignored(path: str, is_folder: bool, rules: _Rules) -> bool:
    for start, own in reversed(rules):
        verdict = own.ignored(path[start:], is_folder)
        if verdict is not None:
            return verdict
    return False


def contents(folder: Path, entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield the bytes of these files one after another, in pieces that do not end where files do.

    Raises:
        ToolkitError: a file cannot be read, or is not as long any more as its entry says.
    """
    piece = bytearray()
    for entry in entries:
        left = entry.size
        try:
            with (folder / entry.path).open("rb", buffering=0) as source:
                while left and (data := source.read(min(left, _PIECE))):
                    left -= len(data)
                    piece += data
                    if len(piece) >= _PIECE:
                        yield bytes(piece)
                        piece.clear()
        except OSError as error:
            raise _unreadable(error) from error
        if left:
            raise ToolkitError(f"{entry.path} got shorter while it was sent", _STEADY)
    if piece:
        yield bytes(piece)
