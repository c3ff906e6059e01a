"""What a host keeps of the code of jobs: packs of contents, lists of trees, spare copies of the last trees.

Nothing in here is ever executed, and a job gets files that nobody else has. Ranks can write in here: what
they damage is found by its content where it is used, and by its kind when the store is opened.
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
MOST_SPARE = 512 * 2**20  # bytes; above it, making a copy for nobody costs too much room
MOST_BUCKETS = 2**20
LOCK_S = 45.0  # for who tidies up; a rank that holds the lock never gives it back
_FOLDERS = ("packs", "trees", "spares")


def jobs_folder() -> str:
    """Return the folder of all jobs in this container; read at each call, as root() in paths.py is."""
    return os.environ.get("TOOLKIT_ROOT", "/run/toolkit") + "/jobs"


class Damaged(OSError):
    """Something in the store is not as toolkit makes it."""


class Store:
    """The store beside the jobs; while it is held, no other program tidies it up.

    A store that is damaged is replaced by an empty one: the caller has all that was in it.

    Args:
        damage: what was damaged; empty for a store that was not replaced.
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
        """Make the store if there is none, and hold its lock; return the lock's descriptor.

        Raises:
            Damaged: with what is wrong.
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
                with suppress(FileNotFoundError):  # another run has taken it
                    _check(f"{folder}/{name}", kind, mode)
        lock = open_file(self.root + "/lock", os.O_RDWR | os.O_CREAT)
        if not _wait_for(lock, fcntl.LOCK_SH):
            os.close(lock)
            raise Damaged(f"{self.root}/lock has been held for {LOCK_S:.0f} s")
        return lock

    def close(self) -> None:
        """Let others tidy up."""
        os.close(self.lock)

    def packs(self) -> Packs:
        return Packs(self.root + "/packs")

    def tree(self, digest: str) -> list[list[Any]] | None:
        """The entries of a tree that is known here, if they are those of which the digest was made."""
        kept = load(f"{self.root}/trees/{digest}.json")
        if _types(kept) == [int, list] and 0 < kept[0] <= MOST_BUCKETS and all(map(_is_entry, kept[1])):
            number, entries = kept
            with suppress(ValueError):  # a character that no path has
                if digest_of(entries, number) == digest:
                    return cast("list[list[Any]]", entries)
        return None

    def keep_tree(self, digest: str, entries: list[list[Any]] | None, number: int, marks: str) -> None:
        """Remember a tree, and that it is in use; entries are None for one that is known."""
        stem = f"{self.root}/trees/{digest}"
        if entries is not None:
            save(stem + ".json", [number, entries])
        save(stem + ".marks", [number, marks])

    def nearest(
        self, number: int, marks: str, width: int, among: set[str] | None = None
    ) -> tuple[str, list[int]]:
        """The known tree of which the fewest buckets differ, and which; an empty name for none."""
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
            unlike = [
                i
                for i in range(number)
                if own[i * width : (i + 1) * width] != wanted[i * width : (i + 1) * width]
            ]
            if len(unlike) < len(differing):
                best, differing = digest, unlike
        return best, differing

    def spares(self) -> set[str]:
        """The trees of which there is a spare."""
        return {name.partition("-")[0] for name in os.listdir(self.root + "/spares")}

    def claim(self, digest: str, into: str) -> bool:
        """Take a spare of this tree for oneself, as `into`; False when there is none."""
        for name in os.listdir(self.root + "/spares"):
            if name.partition("-")[0] == digest:
                # Else another run was quicker.
                with suppress(OSError):
                    os.rename(f"{self.root}/spares/{name}", into)
                    return True
        return False

    def shed(self) -> None:
        """Give the room of all spares back."""
        for name in os.listdir(self.root + "/spares"):
            remove(f"{self.root}/spares/{name}")

    def room(self) -> int:
        about = os.statvfs(self.root)
        return about.f_bavail * about.f_frsize


class Work:
    """A folder of one run. What stays of one that was killed goes when nobody holds the store."""

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
        raise Damaged(f"{path} is no {'folder' if kind == stat.S_IFDIR else 'file'}")
    if about & mode != mode:
        raise Damaged(f"{path} has the mode {stat.S_IMODE(about):04o}")


def _wait_for(lock: int, how: int) -> bool:
    """Take a lock; return False if another program holds it all the time."""
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
    """Remove what is at a path where ranks can write, as far as it can be removed.

    Unlike shutil.rmtree it enters folders without permissions, and folders that are nested very deep.
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
    """Whether this is an entry of a tree, as packs.py has them."""
    return _types(entry) == [str, str, int, int, int, str]


def prepare(digest: str) -> None:
    """Make a spare of the tree for the next run, and take away what has become too much."""
    store = Store()
    with open(store.root + "/busy", "a", opener=open_file) as busy:
        if not _wait_for(busy.fileno(), fcntl.LOCK_EX):
            return
        if digest in _by_use(store)[:KEEP_SPARES] and digest not in store.spares():
            _make_spare(store, digest)
        try:
            fcntl.flock(store.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # a run needs what is here; the next one tidies up
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
            return  # the next run finds out, and asks for what is not there
        os.rename(spare, f"{store.root}/spares/{digest}-{os.urandom(4).hex()}")


def _by_use(store: Store) -> list[str]:
    """The known trees, the one that a job was made of last first."""
    trees = store.root + "/trees"
    used_at = {
        name[: -len(".marks")]: os.stat(f"{trees}/{name}").st_mtime_ns
        for name in os.listdir(trees)
        if name.endswith(".marks")
    }
    return sorted(used_at, key=lambda digest: -used_at[digest])


def _tidy(store: Store) -> None:
    """Take away old trees and what only they needed; to be called by who holds the store alone."""
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
