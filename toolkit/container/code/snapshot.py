"""Creates a job's folder on this host, with its own copy of the code; session.py calls it.

Both sides exchange lines of JSON, the caller's on standard input; bytes follow the line that
states their number. Digests per bucket identify known entries, so that only the rest is sent:

    job, texts, tree, number, marks    ->
                                       <-    buckets: those with unknown entries
    entries, then packed JSON          ->
                                       <-    needs: ranges of entries with missing contents
    the contents, concatenated         ->
                                       <-    done, with damage found here; or refused with fix

The job's folder appears complete, under its own name, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
import zlib
from typing import Any

from toolkit.container.code.packs import PIECE, PackWriter, Spoiled, digest_of, make, save, survey
from toolkit.container.code.store import Store, Work, jobs_folder
from toolkit.protocol.code_tree import bucket_of, raw

MARK = 8  # bytes of a bucket's digest that are sent
TRIES = 3
WORKING_S = 5.0  # interval of progress messages


class Refused(Exception):
    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


class Caller:
    """Connection to the caller."""

    def __init__(self) -> None:
        self._input = sys.stdin.buffer
        self._said = time.monotonic()

    def working(self) -> None:
        """Send a progress message periodically while files are written: the caller has a deadline."""
        if time.monotonic() - self._said > WORKING_S:
            self.say(working=True)

    def say(self, **message: Any) -> None:
        sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
        sys.stdout.flush()
        self._said = time.monotonic()

    def line(self) -> dict[str, Any]:
        message = self.ask()
        if message is None:
            raise EOFError
        return message

    def ask(self) -> dict[str, Any] | None:
        """Return the next line; None at the end of the input."""
        text = self._input.readline()
        if not text:
            return None
        if not text.endswith(b"\n"):
            raise EOFError
        message: dict[str, Any] = json.loads(text)
        return message

    def read(self, size: int) -> bytes:
        data = self._input.read(size)
        if len(data) < size:
            raise EOFError
        return data


class Snapshot:
    def __init__(self, caller: Caller, store: Store, ask: dict[str, Any], work: Work) -> None:
        self.caller, self.store, self.ask, self.work = caller, store, ask, work
        self.tree, self.number = ask["tree"], ask["number"]
        self.code = work.path + "/spare/code"
        self.entries: list[list[Any]] = []

    def make(self) -> None:
        """Create the copy at `code`."""
        entries = self.entries = self._entries()
        claimed = self.store.claim(self.tree, self.work.path + "/spare")
        if not claimed:
            # Reusing a copy of a very different tree costs more than creating a new one.
            near, changed = self.store.nearest(self.number, self.ask["marks"], MARK, self.store.spares())
            claimed = 2 * len(changed) <= self.number and self.store.claim(near, self.work.path + "/spare")
        lacks = list(entries)
        try:
            if claimed:
                lacks = survey(raw(self.code), entries)
        except (OSError, RecursionError):
            claimed = False  # the copy contains an entry that this program cannot remove
        if not claimed:
            self.code = self.work.path + "/fresh"
            os.mkdir(self.code)
        self._complete(entries, lacks)

    def _entries(self) -> list[list[Any]]:
        known = self.store.tree(self.tree)
        if known is None:
            base, changed = self.store.nearest(self.number, self.ask["marks"], MARK)
            old = (self.store.tree(base) if base else None) or []
            known = self._learn(old, changed if old else list(range(self.number)))
            if digest_of(known, self.number) != self.tree:
                known = self._learn([], list(range(self.number)))
            if digest_of(known, self.number) != self.tree:
                raise Refused(
                    "the list of code files was damaged during the transfer", "run the same command again"
                )
            self.store.keep_tree(self.tree, known, self.number, self.ask["marks"])
        else:
            self.store.keep_tree(self.tree, None, self.number, self.ask["marks"])
        return known

    def _learn(self, old: list[list[Any]], buckets: list[int]) -> list[list[Any]]:
        """Return the entries of a known tree, with these buckets replaced by the caller's."""
        self.caller.say(buckets=buckets)
        packed = self.caller.read(self.caller.line()["entries"])
        fresh: list[list[Any]] = json.loads(zlib.decompress(packed))
        for entry in fresh:
            if entry[0].startswith("/") or ".." in entry[0].split("/"):
                raise Refused(
                    f"{entry[0]!r} is not a path inside the code folder", "run the same command again"
                )
        changed = set(buckets)
        same = [entry for entry in old if bucket_of(entry[0], self.number) not in changed]
        return sorted(same + fresh, key=lambda entry: entry[0])

    def _complete(self, entries: list[list[Any]], lacks: list[list[Any]]) -> None:
        folders: set[bytes] = set()
        for _ in range(TRIES):
            if not lacks:
                return
            self._make_room(sum(entry[3] for entry in lacks))
            packs = self.store.packs()
            wanted = {entry[5] for entry in lacks if entry[1] == "f"} - set(packs.where)
            if wanted:
                self._receive(entries, wanted)
                packs = self.store.packs()
            try:
                while lacks:
                    make(raw(self.code), lacks[-1], packs, folders)
                    lacks.pop()
                    self.caller.working()
            except (Spoiled, KeyError):
                continue  # contents lost with a pack are requested again
        if lacks:
            raise Refused(
                f"{jobs_folder()}/.code differs from the data that toolkit wrote",
                "on the host: sudo dmesg  # shows disk errors",
            )

    def _receive(self, entries: list[list[Any]], wanted: set[str]) -> None:
        needs: list[list[int]] = []
        coming = []
        for at, entry in enumerate(entries):
            if entry[1] == "f" and entry[5] in wanted:
                wanted.discard(entry[5])
                coming.append(entry)
                if needs and needs[-1][1] == at - 1:
                    needs[-1][1] = at
                else:
                    needs.append([at, at])
        self.caller.say(needs=needs)
        writer = PackWriter(self.work.path)
        for path, _, _, left, _, content in coming:
            sha = hashlib.sha256()
            while left:
                data = self.caller.read(min(left, PIECE))
                left -= len(data)
                sha.update(data)
                writer.write(data)
            if sha.hexdigest() != content:
                fix = (
                    "run the same command again  # if files change during every transfer, list the files in "
                    ".toolkitignore"
                )
                raise Refused(f"{path} changed while toolkit sent the file", fix)
            writer.added(content)
        writer.keep(self.store.root + "/packs")

    def _make_room(self, size: int) -> None:
        if self.store.room() < 3 * size + 2**24:
            self.store.shed()


def finish(ask: dict[str, Any], work: Work, code: str, entries: list[list[Any]]) -> None:
    """Move the job's folder to its final path.

    Args:
        entries: of the code.
    """
    new = work.path + "/job"
    os.makedirs(new + "/logs")
    if code:
        os.rename(code, new + "/code")
    else:
        os.mkdir(new + "/code")
    for name, text in ask["texts"].items():
        with open(os.open(f"{new}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
    sent = {
        path: content if kind == "l" else [size, mtime] for path, kind, _, size, mtime, content in entries
    }
    # Created last: `down` and `get` use its time and its content to find the files that the job wrote.
    save(new + "/.sent", sent)
    job = ask["job"]
    try:
        os.rename(new, f"{jobs_folder()}/{job}")
    except OSError as error:
        if os.path.isdir(f"{jobs_folder()}/{job}"):
            raise Refused(f"the folder of job {job} exists already", "run the same command again") from error
        raise


def make_folder(caller: Caller, ask: dict[str, Any]) -> str:
    """Create a job's folder. Return the damage if the store had to be replaced, otherwise "".

    Raises:
        Refused: the folder cannot be created; the error contains a fix.
        EOFError: the caller is gone.
    """
    job = ask["job"]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", job):
        raise Refused(f"{job!r} is not a job id", "")
    store = Store()
    try:
        with Work(store) as work:
            code, entries = "", []
            if ask["tree"]:
                snapshot = Snapshot(caller, store, ask, work)
                snapshot.make()
                code, entries = snapshot.code, snapshot.entries
            finish(ask, work, code, entries)
    finally:
        store.close()
    return store.damage
