"""What a host keeps of the code of jobs: packs of contents, lists of trees, spare copies of the last trees.

Nothing in here is ever executed, and a job gets files that nobody else has.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from typing import Any, cast

from copies import digest_of, make, raw
from packs import Packs, PackWriter, Spoiled, load, save

KEEP_TREES, KEEP_SPARES, KEEP_PACKS = 4, 2, 16
MOST_SPARE = 512 * 2**20  # bytes; above it, making a copy for nobody costs too much room


def jobs_folder() -> str:
    """Return the folder of all jobs in this container; read at each call, as root() in common.py is."""
    return os.environ.get("TOOLKIT_ROOT", "/run/toolkit") + "/jobs"


class Store:
    """The store beside the jobs; held open, nothing that is in it is taken away by others."""

    def __init__(self) -> None:
        self.root = jobs_folder() + "/.code"
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        for name in ("packs", "trees", "spares"):
            os.makedirs(f"{self.root}/{name}", exist_ok=True)
        self.lock = open(self.root + "/lock", "a")  # noqa: SIM115 - held for as long as this lives
        fcntl.flock(self.lock, fcntl.LOCK_SH)

    def packs(self) -> Packs:
        return Packs(self.root + "/packs")

    def tree(self, digest: str) -> list[list[Any]] | None:
        """The entries of a tree that is known here, if they are those of which the digest was made."""
        with suppress(ValueError, TypeError):
            number, entries = load(f"{self.root}/trees/{digest}.json")
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
            if not kept or kept[0] != number:
                continue
            own = bytes.fromhex(kept[1])
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
            shutil.rmtree(f"{self.root}/spares/{name}", ignore_errors=True)

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
        shutil.rmtree(self.path, ignore_errors=True)


def prepare(digest: str) -> None:
    """Make a spare of the tree for the next run, and take away what has become too much."""
    store = Store()
    with open(store.root + "/busy", "a") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
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
            shutil.rmtree(f"{store.root}/{name}", ignore_errors=True)
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
        shutil.rmtree(f"{store.root}/spares/{name}", ignore_errors=True)


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
