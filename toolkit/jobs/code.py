"""Code to send: the files of a local folder that are not ignored, their checksums, and their bytes in order.

Checksums of unchanged files are stored from run to run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pathspec

from toolkit.core.code import FILE, LINK, CodeTree, Entry
from toolkit.errors import ToolkitError
from toolkit.protocol.names import RUNS

IGNORE_FILES = (".gitignore", ".toolkitignore")
# Folders that are never part of a program, even if no ignore file lists them.
NEVER_SENT = frozenset((".git", ".ssh", "__pycache__", ".venv", ".lab"))
# Names of files that can be private keys; the content decides.
_KEY_NAMES = re.compile(r"id_\w+|.*\.(pem|key)|.*_(rsa|dsa|ecdsa|ed25519)")
_PRIVATE_KEY = re.compile(rb"^-----BEGIN ([A-Z0-9]+ ){0,3}PRIVATE KEY-----", re.MULTILINE)
_MOST_KEYS = 1 << 16  # bytes; the certificates of a key can precede it

_PIECE = 2**15
# Output files of `why` and `report`, which can contain more than the ranks should read.
_OWN_PAGES = re.compile(r"why-\d{8}-\d{6}-.*\.tar\.gz|report-\d{8}-\d{6}-.*\.html")
_STEADY = (
    "run the same command again  # if files change during every transfer, list the files in .toolkitignore"
)

# A file that was written this short a time before it was read may be written again with the same times and
# the same size; file systems count time in steps of up to two seconds.
_SETTLED_NS = 2_000_000_000
_MOST_CACHES = 32
_TRIES = 3
# Size, mtime, ctime (both in nanoseconds), inode.
_Seen = tuple[int, int, int, int]


@dataclass(frozen=True)
class Rules:
    """The rules of one ignore file.

    Two readings of the same lines, because the library's own order of precedence is made for a list of
    files: a rule for folders counts less in it than one for anything. A walk from folder to folder,
    as git does, needs the last rule that matches to win for a folder.
    """

    for_files: pathspec.GitIgnoreSpec
    for_folders: pathspec.PathSpec  # type: ignore[type-arg]

    def ignored(self, path: str, is_folder: bool) -> bool | None:
        """Return the result of the rules for an entry, None if no rule matches.

        Args:
            path: relative to the folder of the rules; the caller first checks the folders above it.
        """
        if is_folder:
            return self.for_folders.check_file(f"{path}/").include
        return self.for_files.check_file(path).include


def parse_ignore(data: bytes) -> Rules | None:
    """Return the rules of an ignore file, None if it has none; invalid lines are skipped."""
    lines = data.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape").split("\n")
    meant = [line for line in (raw.removesuffix("\r") for raw in lines) if _has_meaning(line)]
    if not meant:
        return None
    folders = pathspec.PathSpec.from_lines("gitignore", meant)
    return Rules(pathspec.GitIgnoreSpec.from_lines(meant), folders)


def _has_meaning(line: str) -> bool:
    try:
        pathspec.GitIgnoreSpec.from_lines([line])
    except ValueError:  # error of pathspec and re for an invalid pattern
        return False
    return bool(line.strip())


# The rules of each folder on the way, outermost first: the start of paths in the folder, the name of the
# ignore file, and its rules.
_Rules = tuple[tuple[str, str, Rules], ...]
_NO_RULES: _Rules = ()
_WILD = re.compile(r"[\\*?\[\]]")  # characters with a meaning in a line of an ignore file


def list_files(folder: Path) -> tuple[str, ...]:
    """Return the files and symlinks that are sent, relative to ``folder``, sorted: all that are not ignored.

    ``.gitignore`` and ``.toolkitignore`` count in every folder, with git's own rules.

    Raises:
        ToolkitError: the folder is not there, or a part of it cannot be read.
    """
    return tuple(path for path, _ in _found(folder))


def why_not_sent(folder: Path, path: str) -> str:
    """Return the reason why a file of a folder is not sent, with the fix; empty if it is sent.

    Args:
        path: relative to ``folder``; the target of a symlink does not count.

    Raises:
        ToolkitError: an ignore file cannot be read.
    """
    parts, prefix, rules = Path(os.path.normpath(path)).parts, "", _NO_RULES
    if parts[:1] == ("..",):
        return ""
    for name in parts:
        place, below = folder / prefix / name, f"{prefix}{name}"
        is_folder = place.is_dir() and not place.is_symlink()
        if is_folder and _is_never_sent(place):
            return f"toolkit never sends the folder {below}; move the file to another folder"
        try:
            rules = _with_rules_in(folder / prefix, prefix, rules)
        except OSError as error:
            raise _unreadable(error) from error
        if file := _ignored_by(below, is_folder, rules):
            slash = "/" if is_folder else ""
            plain = _WILD.sub(r"\\\g<0>", name)
            fix = f"add the line !/{plain}{slash} to the end of {prefix}{IGNORE_FILES[-1]}"
            return f"{file} excludes {below}{slash} from the code; {fix}"
        if not is_folder:
            break
        prefix = f"{below}/"
    return ""


def read_tree(folder: Path, cache: Path | None = None, private: Iterable[Path] = ()) -> CodeTree:
    """Return the files of a folder that are sent, with their checksums.

    Args:
        cache: folder in which checksums are stored; the user's cache by default.
        private: files that are never sent, whatever their names in the folder; private keys also.

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
        raise ToolkitError(f"the code folder changed while toolkit read it: {error}", _STEADY) from error
    except OSError as error:
        raise _unreadable(error) from error
    hashes.save()
    return CodeTree(entries, tuple(sorted(kept)))


def contents(folder: Path, entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield the bytes of these files one after another, in pieces that do not end where files do.

    Raises:
        ToolkitError: a file cannot be read, or its length differs from its entry.
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
            raise ToolkitError(f"{entry.path} became shorter while toolkit sent the code", _STEADY)
    if piece:
        yield bytes(piece)


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
        return bool(_PRIVATE_KEY.search(file.read(_MOST_KEYS)))


def _entry(path: str, place: os.DirEntry[str], hashes: Hashes) -> Entry:
    about = place.stat(follow_symlinks=False)
    if stat.S_ISLNK(about.st_mode):
        # Path would write the target in another form.
        return Entry(path, LINK, 0, 0, 0, os.readlink(place.path))  # noqa: PTH115
    digest, about = hashes.of(path, place.path, about)
    # As unpacked under the usual umask: files that other users can write here are not writable on hosts.
    return Entry(path, FILE, about.st_mode & 0o755, about.st_size, about.st_mtime_ns, digest)


def _found(folder: Path) -> list[tuple[str, os.DirEntry[str]]]:
    if not folder.is_dir():
        raise ToolkitError(f"{folder} is not a folder", "set the code folder with --workdir DIR")
    found: list[tuple[str, os.DirEntry[str]]] = []
    try:
        _walk(folder, "", (), found)
    except OSError as error:
        raise _unreadable(error) from error
    return sorted(found, key=lambda pair: pair[0])


def _unreadable(error: OSError) -> ToolkitError:
    gone = isinstance(error, FileNotFoundError)
    fix = _STEADY if gone else "make the file or folder readable, or list the path in .toolkitignore"
    return ToolkitError(f"cannot read the code to send: {error}", fix)


def _walk(folder: Path, prefix: str, rules: _Rules, found: list[tuple[str, os.DirEntry[str]]]) -> None:
    rules = _with_rules_in(folder, prefix, rules)
    for entry in os.scandir(folder):
        is_folder = entry.is_dir(follow_symlinks=False)
        path = f"{prefix}{entry.name}"
        if is_folder and _is_never_sent(Path(entry.path)):
            continue
        if _ignored_by(path, is_folder, rules):
            continue
        if is_folder:
            _walk(Path(entry.path), f"{path}/", rules, found)
        elif _OWN_PAGES.fullmatch(entry.name):
            continue
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            found.append((path, entry))


def _is_never_sent(folder: Path) -> bool:
    """Return True for folders without code, and for one that can have downloads of toolkit.

    A Python package of the same name has no downloads.
    """
    has_results = folder.name == RUNS and not (folder / "__init__.py").is_file()
    return has_results or folder.name in NEVER_SENT


def _with_rules_in(folder: Path, prefix: str, rules: _Rules) -> _Rules:
    files = (name for name in IGNORE_FILES if (folder / name).is_file())
    own = ((prefix, name, parse_ignore((folder / name).read_bytes())) for name in files)
    return (*rules, *((prefix, name, found) for prefix, name, found in own if found is not None))


def _ignored_by(path: str, is_folder: bool, rules: _Rules) -> str:
    """Return the ignore file that excludes an entry; empty if none does."""
    for prefix, name, own in reversed(rules):
        verdict = own.ignored(path.removeprefix(prefix), is_folder)
        if verdict is not None:
            return f"{prefix}{name}" if verdict else ""
    return ""


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
        digest, about = _read_digest(file)
        if max(about.st_mtime_ns, about.st_ctime_ns) < self._began - _SETTLED_NS:
            self._new[key] = [*_seen(about), digest]
        return digest, about

    def save(self) -> None:
        """Keep the requested sums, and forget the others."""
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
            _forget_old(folder)


def cache_folder() -> Path:
    """Return the folder in which checksums are stored."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "toolkit" / "code"


def _seen(about: os.stat_result) -> _Seen:
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino


def _read_digest(file: str) -> tuple[str, os.stat_result]:
    for _ in range(_TRIES):
        with open(file, "rb", buffering=0) as source:  # noqa: PTH123 (faster than Path)
            before = os.fstat(source.fileno())
            sha = hashlib.sha256()
            while data := source.read(2**20):
                sha.update(data)
            if _seen(os.fstat(source.fileno())) == _seen(before):
                return sha.hexdigest(), before
    raise Unsteady(f"another program changed {file}")


def _forget_old(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[_MOST_CACHES:]:
        file.unlink()
