"""Data sets of the hosts file: read on this machine, listed, required before a job starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from toolkit.cluster.session import Session
from toolkit.data.plan import QUESTION, DataRow, HeldData, data_rows, lacking, parse_held
from toolkit.data.source import read_content
from toolkit.errors import BadInput, NotReady, Problem, together
from toolkit.hostsfile.inventory import DataSet, Inventory
from toolkit.protocol.shards import Content

Staged = tuple[tuple[DataSet, str, Content], ...]


def read_data(inventory: Inventory) -> Staged:
    """Return each data set of the hosts file with its absolute source and its current content.

    Raises:
        BadInput: a source is not on this machine; names all of them, before any host is contacted.
        ToolkitError: a folder cannot be read.
    """
    sources = [_source(inventory, one) for one in inventory.data]
    problems = [
        Problem(f"data/{number}/source", f"the data source {source} is not an accessible file or folder")
        for number, source in enumerate(sources)
        if not _is_there(source)
    ]
    if problems:
        fix = (
            "in hosts.yaml: set source: to a readable file or folder  # or run `toolkit data send` on the "
            "machine that has the data, and `toolkit up --no-data` on your machine"
        )
        raise BadInput(inventory.source, tuple(problems), fix)
    return tuple(
        (one, str(source), read_content(source)) for one, source in zip(inventory.data, sources, strict=True)
    )


def _source(inventory: Inventory, one: DataSet) -> Path:
    source = Path(one.source)
    with contextlib.suppress(RuntimeError):  # no home directory to expand "~"
        source = source.expanduser()
    path = Path(inventory.source).parent / source
    with contextlib.suppress(OSError):
        if path.is_file():  # a link to a file keeps its own name on the hosts
            return Path(os.path.realpath(path.parent), path.name)
    return Path(os.path.realpath(path))


def _is_there(source: Path) -> bool:
    try:
        return source.is_dir() or source.is_file()
    except (OSError, ValueError):
        return False


def require_data(inventory: Inventory) -> None:
    """Refuse a hosts file without data sets.

    Raises:
        BadInput: the hosts file has no data set.
    """
    if not inventory.data:
        problem = Problem("data", "contains no data set")
        fix = "in hosts.yaml: set data: [{source: ./DATA, path: /scratch/DATA, target: /data}]"
        raise BadInput(inventory.source, (problem,), fix)


def list_data(session: Session) -> tuple[DataRow, ...]:
    """Return the state of every data set on every host, compared with the copy on this machine."""
    inventory = session.inventory
    sources = {one.path: _source(inventory, one) for one in inventory.data}
    contents = {path: read_content(source) for path, source in sources.items() if _is_there(source)}
    errors = {name: error.what for name, error in session.errors.items()}
    return data_rows(inventory, _held(session), contents, errors)


def refuse_incomplete_data(session: Session, hosts: Collection[str]) -> None:
    """Refuse to start a job on hosts without complete data, as shown by the completion mark.

    Raises:
        NotReady: the data of a host is missing or different.
    """
    if not session.inventory.data:
        return
    held = {name: own for name, own in _held(session).items() if name in hosts}
    faults = lacking(held, session.inventory)
    fix = "toolkit data send  # or start the job anyway with --no-check"
    if faults:
        raise together([NotReady(what, fix, name) for name, what in faults.items()])


def _held(session: Session) -> Mapping[str, Mapping[str, HeldData]]:
    return {name: parse_held(session.replies[name].sections.get(QUESTION, "")) for name in session.facts}
