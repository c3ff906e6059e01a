"""Data sets on the hosts: the steps that stage and remove them, and a list of what each host holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated

from toolkit.cluster.ownership import ours
from toolkit.core.command import command, script
from toolkit.core.disk_space import size
from toolkit.core.facts import Facts
from toolkit.core.printable import table
from toolkit.hostsfile.inventory import DataSet, Inventory
from toolkit.network.choose import DataPath
from toolkit.plan.steps import Phase, Plan, RemoveData, Run, SendData, Step
from toolkit.protocol.decode import DecodeError, Number, Text, decode_json
from toolkit.protocol.frames import ROW, rows
from toolkit.protocol.shards import Content

QUESTION = "data"
# The record of each folder, as container/transfer/data_folder.py writes it. The journal's last line about a
# complete shard contains the total bytes of all complete shards.
_ASK = (
    ROW
    + r"""
mine="${XDG_STATE_HOME:-$HOME/.local/state}/toolkit/.data/$(uname -n)"
set -- @folders@
while [ $# -gt 1 ]; do
  folder=$1 account=$mine/$2; shift 2
  row folder "$folder"
  [ -d "$folder" ] || continue
  echo there
  [ -O "$account" ] || continue
  [ -n "$(find "$folder/." ! -name . -prune -print | head -n 1)" ] || echo empty
  if [ -f "$account/mark" ]; then
    row mark "$(head -c 4096 "$account/mark")"
  elif [ -f "$account/journal" ]; then
    last=$(grep -a '^{"whole"' "$account/journal" | tail -n 1 | head -c 4096)
    row mark "$last"
  fi
done
"""
)


def account_of(facts: Facts, folder: str) -> str:
    """Return the folder on a host that records what was written to a data folder.

    It is in the SSH user's state directory, where ranks and other users cannot write. It is not in the part
    of one cluster: it stays after `down`, as the data does, and several clusters of one user can stage to
    the same path. Several hosts can share a home.
    """
    return f"{facts.state_dir.rsplit('/', 2)[0]}/.data/{facts.hostname}/{_account_name(folder)}"


def _account_name(folder: str) -> str:
    return hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:32]


@dataclass(frozen=True)
class HeldData:
    """State of one data set on a host.

    Args:
        folder: whether its folder exists.
        identity: content digest of the complete set there; empty if none is complete.
        files, size: of that set; if it is incomplete, ``size`` counts the bytes that have arrived.
        since: time of completion, in seconds since the epoch by the host's clock; 0 for never.
        begun: whether a transfer has begun and is not complete.
    """

    folder: bool = False
    identity: str = ""
    files: int = 0
    size: int = 0
    since: int = 0
    begun: bool = False


@dataclass(frozen=True)
class DataRow:
    """Row of `data ls`: one data set on one host.

    ``state`` is ``whole``, ``other`` (complete, but different from this machine's copy), ``part``, ``absent``
    or ``unreachable``; ``share`` is the percentage of this machine's copy, None if unknown.
    """

    host: str
    path: str
    target: str
    state: str
    size: int = 0
    files: int = 0
    share: int | None = None
    since: int = 0
    note: str = ""


def question(inventory: Inventory) -> tuple[tuple[str, str], ...]:
    """Return the additional probe query for hosts, see ``toolkit.cluster.probe``."""
    folders = command(
        *(word for one in inventory.data for word in (one.path, _account_name(one.path)))
    ).line()
    return ((QUESTION, _ASK.replace("@folders@", folders)),) if inventory.data else ()


@dataclass(frozen=True)
class _Mark:
    """Completion mark of a data set, or the journal's last line about a complete shard."""

    set: Annotated[str, Text(200)] = ""
    files: Annotated[int, Number(0)] = 0
    bytes: Annotated[int, Number(0)] = 0
    since: Annotated[int, Number(0, 10**11)] = 0


def parse_held(text: str) -> dict[str, HeldData]:
    """Return the state of each data set of a host by folder; an invalid mark counts as none."""
    found: dict[str, HeldData] = {}
    folder, empty = "", False
    for word, cells in rows(text):
        if word == "folder" and len(cells) == 1:
            folder, empty = cells[0], False
            found[folder] = HeldData()
        elif word == "there" and folder:
            found[folder] = HeldData(True)
        elif word == "empty":
            empty = True
        elif word == "mark" and len(cells) == 1 and folder:
            held = _held(cells[0])
            # The folder was removed, and another one is in its place.
            found[folder] = HeldData(True) if empty and (held.size or held.begun) else held
    return found


def _held(text: str) -> HeldData:
    try:
        mark = decode_json(_Mark, text)
    except DecodeError:
        return HeldData(True)
    if mark.set:
        return HeldData(True, mark.set, mark.files, mark.bytes, mark.since)
    return HeldData(True, size=mark.bytes, begun=True)


def plan_data(
    inventory: Inventory,
    facts: Mapping[str, Facts],
    paths: Mapping[str, DataPath],
    contents: Sequence[tuple[DataSet, str, Content]],
    image: str,
) -> Plan:
    """Return the plan that stages data sets to every host that answered.

    Args:
        paths: addresses at which hosts reach each other.
        contents: data sets with their absolute source on this machine and its content.
        image: reference of the image on the hosts.
    """
    phases = tuple(
        Phase(
            "data" if len(contents) == 1 else f"data {one.target}",
            tuple(
                _send_step(inventory.cluster, facts[name], paths[name], one, source, content, image)
                for name in inventory.names
                if name in facts and name in paths
            ),
        )
        for one, source, content in contents
    )
    return Plan(f"data send {inventory.cluster}", tuple(p for p in phases if p.steps))


def _send_step(
    cluster: str, facts: Facts, path: DataPath, one: DataSet, source: str, content: Content, image: str
) -> Step:
    link = facts.link(path.interface)
    return SendData(
        facts.host,
        f"send data {one.target}",
        source,
        content,
        one.path,
        account_of(facts, one.path),
        image,
        f"{facts.uid}:{facts.gid}",
        path.address,
        link.rate if link else 0.0,
        cluster,
    )


def folder_steps(inventory: Inventory, host: str) -> tuple[Step, ...]:
    """Return the steps that create the folders of data sets, so that containers start without the data."""
    folders = [one.path for one in inventory.data]
    if not folders:
        return ()
    make = script('umask 022; for d; do mkdir -p "$d" || exit; done', *folders)
    there = script('for d; do [ -d "$d" ] || exit 1; done', *folders)
    words = command(*folders).line()
    fix = (
        f"on {host}: sudo install -d -o $(id -un) {words}"
        "  # or, under data: in hosts.yaml, set path: to a folder that the SSH user can write to"
    )
    return (Run(host, "create the data folders", make, unless=there, fix=fix),)


def plan_remove(inventory: Inventory, facts: Mapping[str, Facts]) -> Plan:
    """Return the plan that removes the data sets of the hosts file from every host that answered."""
    steps = tuple(
        RemoveData(
            name,
            f"remove data {one.target}",
            one.path,
            account_of(facts[name], one.path),
            inventory.image,
            f"{facts[name].uid}:{facts[name].gid}",
            keep=bool(ours(inventory.cluster, facts[name])),
            cluster=inventory.cluster,
        )
        for name in inventory.names
        if name in facts
        for one in inventory.data
    )
    return Plan(f"data rm {inventory.cluster}", (Phase("data", steps),) if steps else ())


def data_rows(
    inventory: Inventory,
    held: Mapping[str, Mapping[str, HeldData]],
    contents: Mapping[str, Content],
    errors: Mapping[str, str],
) -> tuple[DataRow, ...]:
    """Return the state of every data set on every host of the file.

    Args:
        held: by host and folder.
        contents: content on this machine by folder; data sets that are not on this machine are left out.
        errors: by host that did not answer.
    """
    return tuple(
        DataRow(name, one.path, one.target, "unreachable", note=errors[name])
        if name in errors
        else _row(name, one, held.get(name, {}).get(one.path, HeldData()), contents.get(one.path))
        for one in inventory.data
        for name in inventory.names
        if name in errors or name in held
    )


def _row(host: str, one: DataSet, held: HeldData, content: Content | None) -> DataRow:
    share = None
    if held.identity:
        other = content is not None and content.identity != held.identity
        state, share = ("other", None) if other else ("whole", 100)
    elif held.begun:
        state = "part"
        if content is not None:
            whole = sum(shard.size for shard in content.shards)
            share = min(99, 100 * held.size // max(whole, 1))
    else:
        state, share = "absent", 0
    return DataRow(host, one.path, one.target, state, held.size, held.files, share, held.since)


def data_text(rows: Iterable[DataRow]) -> str:
    """Format one line for each data set on each host."""
    cells = [
        (
            row.host,
            row.target,
            row.path,
            _state(row),
            size(row.size) if row.size else "",
            str(row.files or ""),
            f"{datetime.fromtimestamp(row.since, timezone.utc):%Y-%m-%d %H:%M}" if row.since else "",
            row.note,
        )
        for row in rows
    ]
    return table(("host", "data", "folder", "state", "size", "files", "since (UTC)", "note"), cells)


def _state(row: DataRow) -> str:
    if row.state == "part":
        return "incomplete" if row.share is None else f"incomplete, {row.share} %"
    return {"other": "complete, but differs from the copy on your machine", "whole": "complete"}.get(
        row.state, row.state
    )


def lacking(held: Mapping[str, Mapping[str, HeldData]], inventory: Inventory) -> dict[str, str]:
    """Return the reason why a job must not start on a host, by host: incomplete or different data."""
    found: dict[str, str] = {}
    for one in inventory.data:
        sets = {name: folders.get(one.path, HeldData()) for name, folders in held.items()}
        seen = [own.identity for own in sets.values() if own.identity]
        # The version of most hosts counts as right; in a tie, that of the first host of the file.
        common = max(dict.fromkeys(seen), key=seen.count, default="")
        for name, own in sets.items():
            if not own.identity:
                found.setdefault(name, f"{one.path}: data set {one.target} is incomplete or missing")
            elif own.identity != common:
                what = f"{one.path}: data set {one.target} differs from the copy on other hosts"
                found.setdefault(name, what)
    return found
