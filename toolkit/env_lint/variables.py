"""Variables as a job sets them, complaints about them, and the variables that the pinned libraries read.

The latter are in the tables of ``toolkit/env_lint/tables``. A table is one text file per library. ``#``
begins a comment. A comment names the source, its version and the date of reading. The other lines are:

    library NCCL 2.29.7           name of the library in messages, and the version that the table describes
    closed NCCL_                  prefixes of this library only: a name that is not listed below is unknown
    open NCCL_UCX_                prefixes of other programs (plugins), whose names are not checked
    also UCX_RC_VERBS_ UCX_RC_    names below with the first prefix exist with the other prefixes, too
    NAME KIND [WORD…]             a name, its kind (``toolkit/env_lint/values.py``), parameters of the kind
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from toolkit.core.finding import Verdict

# The longest prefix decides the table of a name; a table is read when one of its names occurs.
_TABLES = {
    "NCCL_": "nccl",
    "TORCH_": "torch",
    "GLOO_": "torch",
    "TP_": "torch",
    "OMP_": "torch",
    "CUDA_": "torch",
    "PYTORCH_": "torch",
    "OMPI_MCA_": "openmpi",
    "HOROVOD_": "horovod",
    "UCX_": "ucx",
    "FI_": "libfabric",
    "OFI_NCCL_": "ofi_nccl",
}
_WORDS = frozenset(("library", "closed", "open", "also"))
_NEAR = 0.76  # less similar names belong to other programs; measured with the names of tutorials


@dataclass(frozen=True)
class Variable:
    """One variable: ``kind`` defines how it is read, ``words`` are the parameters of the kind."""

    name: str
    kind: str
    words: tuple[str, ...]
    library: str


@dataclass(frozen=True)
class Table:
    """The variables of one library; the module's docstring defines the terms."""

    library: str
    closed: tuple[str, ...]
    open: tuple[str, ...]
    variables: dict[str, Variable]

    def claims(self, name: str) -> bool:
        """Return True if a variable of this name can only belong to this library."""
        return name.startswith(self.closed) and not name.startswith(self.open)


def table_of(name: str) -> Table | None:
    """Return the table for a variable of this name, or None if no library has its prefix."""
    prefixes = [prefix for prefix in _TABLES if name.startswith(prefix)]
    return _read(_TABLES[max(prefixes, key=len)]) if prefixes else None


def every_table() -> dict[str, Table]:
    """Return all tables by the names of their files."""
    return {name: _read(name) for name in dict.fromkeys(_TABLES.values())}


def nearest(name: str, table: Table) -> str:
    """Return the most similar known name, or an empty text."""
    for sibling in (f"TORCH_{name}", name.removeprefix("TORCH_")):
        other = table_of(sibling)
        if other and sibling != name and sibling in other.variables:
            return sibling
    prefix = next((p for p in table.closed if name.startswith(p)), "")
    tails = {n.removeprefix(prefix).upper(): n for n in table.variables if n.startswith(prefix)}
    found = difflib.get_close_matches(name.removeprefix(prefix).upper(), tails, n=1, cutoff=_NEAR)
    return tails[found[0]] if found else ""


@functools.cache
def _read(stem: str) -> Table:
    path = Path(__file__).with_name("tables") / f"{stem}.txt"
    heads: dict[str, list[str]] = {word: [] for word in _WORDS}
    lines: list[list[str]] = []
    copies: list[list[str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        if words[0] == "also":
            copies.append(words[1:])
        elif words[0] in _WORDS:
            heads[words[0]] += words[1:]
        else:
            lines.append(words)
    # The image of a cluster can have another version, so messages do not contain the table's.
    library = " ".join(word for word in heads["library"] if not word[0].isdigit())
    variables: dict[str, Variable] = {}
    for name, kind, *rest in lines:
        for alias in (name, *_copies(name, copies)):
            variables.setdefault(alias, Variable(alias, kind, tuple(rest), library))
    return Table(library, tuple(heads["closed"]), tuple(heads["open"]), variables)


def _copies(name: str, copies: list[list[str]]) -> list[str]:
    return [to + name.removeprefix(of) for of, *others in copies if name.startswith(of) for to in others]


@dataclass(frozen=True)
class Setting:
    """One variable as a rank receives it, and its place; see ``lint_environment``."""

    name: str
    value: str
    where: str = ""
    host: str = ""


class Complaint(NamedTuple):
    """Parts of a ``Finding``; ``error`` is for a variable that stops a job that uses the library."""

    verdict: Verdict
    what: str
    fix: str


def listed(words: Iterable[str]) -> str:
    """Return words as a list in a sentence: ``LL, LL128 and Simple``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
