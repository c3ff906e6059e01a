"""A tree of code as a value: attributes of each file, and digests with which two hosts find differences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from toolkit.core.disk_space import size
from toolkit.core.finding import Finding
from toolkit.core.printable import counted
from toolkit.protocol.code_tree import bucket_digests, bucket_of, tree_digest

FILE, LINK = "f", "l"

BIG_FILE, BIG_TREE = 50 * 10**6, 500 * 10**6
_SHOWN = 5

# A host compares trees bucket by bucket. The cost of a change grows with the entries of a bucket; the cost of
# an unchanged tree grows with the number of buckets.
_FEWEST, _PER_BUCKET = 256, 128
_MARK = 8


class Entry(NamedTuple):
    """One file or symlink.

    Args:
        path: relative; bytes that are not UTF-8 are encoded as surrogates.
        kind: ``FILE`` or ``LINK``.
        mode: permission bits; 0 for a link.
        size: in bytes; 0 for a link.
        mtime: nanoseconds since the epoch; 0 for a link.
        content: sha256 in hexadecimal digits; a link's target.
    """

    path: str
    kind: str
    mode: int
    size: int
    mtime: int
    content: str


@dataclass(frozen=True)
class CodeTree:
    """The files of a folder that are sent, sorted by path.

    Args:
        private: paths that stay on this machine, because they are keys, secrets or the hosts file.
    """

    entries: tuple[Entry, ...] = field(default=(), repr=False)
    private: tuple[str, ...] = field(default=(), compare=False)

    @property
    def total(self) -> int:
        """The size of all files in bytes."""
        return sum(entry.size for entry in self.entries)

    @property
    def number(self) -> int:
        """The number of buckets that the entries are spread over."""
        number = _FEWEST
        while number * _PER_BUCKET < len(self.entries):
            number *= 2
        return number

    @cached_property
    def _digests(self) -> tuple[bytes, ...]:
        return bucket_digests(self.entries, self.number)

    @cached_property
    def digest(self) -> str:
        """The tree's identity, in hexadecimal digits."""
        return tree_digest(self._digests)

    @property
    def marks(self) -> bytes:
        """A short digest of each bucket, one after another."""
        return b"".join(digest[:_MARK] for digest in self._digests)

    def of_buckets(self, buckets: Iterable[int]) -> list[Entry]:
        """Return the entries of these buckets, sorted by path."""
        wanted, number = set(buckets), self.number
        return [entry for entry in self.entries if bucket_of(entry.path, number) in wanted]


def size_findings(tree: CodeTree) -> tuple[Finding, ...]:
    """Return a warning if the tree contains big files or is big in total; it names the biggest files."""
    biggest = sorted(tree.entries, key=lambda entry: (-entry.size, entry.path))[:_SHOWN]
    big = [entry for entry in tree.entries if entry.size > BIG_FILE]
    if not big and tree.total <= BIG_TREE:
        return ()
    shown = biggest if tree.total > BIG_TREE else [entry for entry in biggest if entry.size > BIG_FILE]
    names = ", ".join(f"{entry.path} ({size(entry.size)})" for entry in shown)
    more = f" and {len(big) - len(shown)} more" if len(big) > len(shown) else ""
    what = (
        f"the total size of the job's code is {size(tree.total)}; largest files: {names}{more}"
        if tree.total > BIG_TREE
        else "the code of the job contains "
        f"{counted(len(big), 'file')} larger than {size(BIG_FILE)}: {names}{more}"
    )
    fix = "in .toolkitignore: list files that ranks do not need; for data, set data: or mounts: in hosts.yaml"
    return (Finding("code-size", "warning", what, fix, subject="code"),)
