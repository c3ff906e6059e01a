"""Code store of a host: packs of contents, lists of trees, spare copies of recent trees.

Nothing in the store is executed, and a job gets files of its own. Ranks can write to the store: damage
is detected by content when an entry is used, and by file type when the store is opened.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress
from typing import Any, cast

from toolkit.container.code.packs import Packs, PackWriter, Spoiled, digest_of, load, make, open_file, save
from toolkit.protocol.code_tree import raw

KEEP_TREES, KEEP_SPARES, KEEP_PACKS = 4, 2, 16
MOST_SPARE = 512 * 2**20  # bytes; above it, a spare copy needs too much disk space
MOST_BUCKETS = 2**20
LOCK_S = 45.0  # time limit for the clean-up; a rank could hold the lock forever
_FOLDERS = ("packs", "trees", "spares")


def jobs_folder() -> str:
    """Return the folder of all jobs in this container; read at each call, as root() in conventions.py is."""
    return os.environ.get("TOOLKIT_ROOT", "/run/toolkit") + "/jobs"


class Damaged(OSError):
    """An entry of the store is damaged."""


class Store:
    """The store next to the jobs; while it is locked, no other program cleans it up.

    A damaged store is replaced by an empty one: the caller has all of its content.

    Args:
        damage: the damage; empty if the store was not replaced.
    """

    def __init__(self) -> None:
        self.root = jobs_folder() + "/.code"
        self.damage = ""
        os.makedirs(jobs_folder(), exist_ok=True)
        # Only one program at a time replaces a store.
        door = os.open(jobs_folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _wait_for(door, fcntl.LOCK_EX)
            try:
                self.lock = self._hold()
            except Damaged as error:
                self.damage = str(error)
                old = f"{jobs_folder()}/.code-{os.urandom(8).hex()}"
                os.rename(self.root, old)
                self.lock = self._hold()
                remove(old)
        finally:
            os.close(door)

    def _hold(self) -> int:
        """Create the store if it is missing, and lock it; return the lock's descriptor.

        Raises:
            Damaged: the store is damaged; the error names the entry.
        """
        folders = [self.root, *(f"{self.root}/{name}" for name in _FOLDERS)]
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            _check(folder, stat.S_IFDIR, 0o700)
        for name in ("lock", "busy"):
            with suppress(FileNotFoundError):
                _check(f"{self.root}/{name}", stat.S_IFREG, 0o600)
        for folder in folders[1:]:
            kind, mode = (stat.S_IFDIR, 0o700) if folder.endswith("/spares") else (stat.S_IFREG, 0o400)
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):  # another run has moved it
                    _check(f"{folder}/{name}", kind, mode)
        lock = open_file(self.root + "/lock", os.O_RDWR | os.O_CREAT)
        if not _wait_for(lock, fcntl.LOCK_SH):
            os.close(lock)
            raise Damaged(f"another program has held the lock {self.root}/lock for {LOCK_S:.0f} s")
        return lock

    def close(self) -> None:
        """Release the lock."""
        os.close(self.lock)

    def packs(self) -> Packs:
        return Packs(self.root + "/packs")

    def tree(self, digest: str) -> list[list[Any]] | None:
        """Return the entries of a known tree, if they match its digest."""
        kept = load(f"{self.root}/trees/{digest}.json")
        if _types(kept) == [int, list] and 0 < kept[0] <= MOST_BUCKETS and all(map(_is_entry, kept[1])):
            number, entries = kept
            with suppress(ValueError):  # an invalid character in a path
                if digest_of(entries, number) == digest:
                    return cast("list[list[Any]]", entries)
        return None

    def keep_tree(self, digest: str, entries: list[list[Any]] | None, number: int, marks: str) -> None:
        """Store a tree and mark it as used; entries are None for a known tree."""
        stem = f"{self.root}/trees/{digest}"
        if entries is not None:
            save(stem + ".json", [number, entries])
        save(stem + ".marks", [number, marks])

    def nearest(
        self, number: int, marks: str, width: int, among: set[str] | None = None
    ) -> tuple[str, list[int]]:
        """Return the most similar known tree and its differing buckets; an empty name if there is none."""
        best, differing = "", list(range(number))
        wanted = bytes.fromhex(marks)
        for name in os.listdir(self.root + "/trees"):
            digest, _, ending = name.partition(".")
            if ending != "marks" or (among is not None and digest not in among):
                continue
            kept = load(f"{self.root}/trees/{name}")
            if _types(kept) != [int, str] or kept[0] != number:
                continue
            try:
                own = bytes.fromhex(kept[1])
            except ValueError:
                continue
            changed = [
                i
                for i in range(number)
                if own[i * width : (i + 1) * width] != wanted[i * width : (i + 1) * width]
            ]
            if len(changed) < len(differing):
                best, differing = digest, changed
        return best, differing

    def spares(self) -> set[str]:
        """Return the trees that have a spare copy."""
        return {name.partition("-")[0] for name in os.listdir(self.root + "/spares")}

    def claim(self, digest: str, into: str) -> bool:
        """Move a spare copy of this tree to `into`; return False if there is none."""
        for name in os.listdir(self.root + "/spares"):
            if name.partition("-")[0] == digest:
                # Otherwise another run has taken it.
                with suppress(OSError):
                    os.rename(f"{self.root}/spares/{name}", into)
                    return True
        return False

    def shed(self) -> None:
        """Remove all spare copies."""
        for name in os.listdir(self.root + "/spares"):
            remove(f"{self.root}/spares/{name}")

    def room(self) -> int:
        about = os.statvfs(self.root)
        return about.f_bavail * about.f_frsize


class Work:
    """Folder of one run. A folder left by a killed run is removed when the store is not locked."""

    def __init__(self, store: Store) -> None:
        self.path = f"{store.root}/new-{os.urandom(8).hex()}"
        os.mkdir(self.path, 0o700)

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *about: object) -> None:
        remove(self.path)


def _check(path: str, kind: int, mode: int) -> None:
    about = os.lstat(path).st_mode
    if stat.S_IFMT(about) != kind:
        raise Damaged(f"{path} is not a {'folder' if kind == stat.S_IFDIR else 'file'}")
    if about & mode != mode:
        raise Damaged(f"{path} has the mode {stat.S_IMODE(about):04o}, but needs {mode:04o}")


def _wait_for(lock: int, how: int) -> bool:
    """Acquire a lock; return False if another program holds it until the time limit."""
    until = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)


def remove(path: str) -> None:
    """Remove a path that ranks can write to, as far as possible.

    Unlike shutil.rmtree it enters folders without permissions, and very deeply nested folders.
    """
    with suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
    left, folders = [path], []
    while left:
        folder = left.pop()
        with suppress(OSError):
            os.chmod(folder, 0o700)
            folders.append(folder)
            for one in os.scandir(folder):
                if one.is_dir(follow_symlinks=False):
                    left.append(one.path)
                else:
                    os.unlink(one.path)
    for folder in reversed(folders):
        with suppress(OSError):
            os.rmdir(folder)


def _types(value: Any) -> list[type]:
    return [type(each) for each in value] if isinstance(value, list) else []


def _is_entry(entry: Any) -> bool:
    """Return whether this is a valid entry of a tree, see packs.py."""
    return _types(entry) == [str, str, int, int, int, str]


def prepare(digest: str) -> None:
    """Create a spare copy of the tree for the next run, and remove old content."""
    store = Store()
    with open(store.root + "/busy", "a", opener=open_file) as busy:
        if not _wait_for(busy.fileno(), fcntl.LOCK_EX):
            return
        if digest in _by_use(store)[:KEEP_SPARES] and digest not in store.spares():
            _make_spare(store, digest)
        try:
            fcntl.flock(store.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # a run uses the store; the next one cleans up
        _tidy(store)


def _make_spare(store: Store, digest: str) -> None:
    entries, packs = store.tree(digest), store.packs()
    size = sum(entry[3] for entry in entries or ())
    if entries is None or size > MOST_SPARE or store.room() < 4 * size + 2**28:
        return
    with Work(store) as work:
        spare = work.path + "/spare"
        os.makedirs(spare + "/code")
        folders: set[bytes] = set()
        try:
            for entry in entries:
                make(raw(spare + "/code"), entry, packs, folders)
        except (Spoiled, KeyError):
            return  # the next run detects and requests missing contents
        os.rename(spare, f"{store.root}/spares/{digest}-{os.urandom(4).hex()}")


def _by_use(store: Store) -> list[str]:
    """Return the known trees, most recently used first."""
    trees = store.root + "/trees"
    used_at = {
        name[: -len(".marks")]: os.stat(f"{trees}/{name}").st_mtime_ns
        for name in os.listdir(trees)
        if name.endswith(".marks")
    }
    return sorted(used_at, key=lambda digest: -used_at[digest])


def _tidy(store: Store) -> None:
    """Remove old trees and their unused contents; requires the exclusive lock."""
    for name in os.listdir(store.root):
        if name.startswith("new-"):
            remove(f"{store.root}/{name}")
    trees, kept = store.root + "/trees", _by_use(store)[:KEEP_TREES]
    for name in os.listdir(trees):
        if name.partition(".")[0] not in kept:
            os.unlink(f"{trees}/{name}")
    _tidy_spares(store, kept)
    _tidy_packs(store, kept)


def _tidy_spares(store: Store, kept: list[str]) -> None:
    spares = os.listdir(store.root + "/spares")
    by_use = [name for digest in kept for name in spares if name.startswith(digest)]
    for name in set(spares) - set(by_use[:KEEP_SPARES]):
        remove(f"{store.root}/spares/{name}")


def _tidy_packs(store: Store, kept: list[str]) -> None:
    packs = store.packs()
    trees = [store.tree(digest) or [] for digest in kept]
    used = {entry[5] for entries in trees for entry in entries if entry[1] == "f"}
    for stem, index in list(packs.indexes.items()):
        if not any(row[0] in used for row in index):
            packs.drop(stem)
    for name in os.listdir(packs.folder):
        stem, _, ending = name.partition(".")
        if stem not in packs.indexes or ending not in ("json", "pack"):
            os.unlink(f"{packs.folder}/{name}")
    live = [content for content in sorted(used) if content in packs.where]
    size = sum(packs.where[content][2] for content in live)
    total = sum(row[2] for index in packs.indexes.values() for row in index)
    if (len(packs.indexes) <= KEEP_PACKS and total <= 2 * size + 2**22) or store.room() < 2 * size:
        return
    old = list(packs.indexes)
    with Work(store) as work:
        writer = PackWriter(work.path)
        for content in live:
            try:
                for data in packs.pieces(content):
                    writer.write(data)
            except (Spoiled, KeyError):
                return
            writer.added(content)
        writer.keep(packs.folder)
    for stem in old:
        packs.drop(stem)
