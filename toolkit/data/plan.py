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
from toolkit.hostsfile.inventory import DataSet, Inventory
from toolkit.network.choose import DataPath
from toolkit.plan.show import table
from toolkit.plan.steps import Phase, Plan, RemoveData, Run, SendData, Step
from toolkit.protocol.decode import DecodeError, Number, Text, decode_json
from toolkit.protocol.frames import CELL, rows
from toolkit.protocol.shards import Content

QUESTION = "data"
# The account of each folder, as container/transfer/data_folder.py writes it. The journal's last line about a
# whole shard has the bytes of all that were whole by then.
_ASK = (
    CELL
    + r"""
mine="${XDG_STATE_HOME:-$HOME/.local/state}/toolkit/.data/$(uname -n)"
set -- @folders@
while [ $# -gt 1 ]; do
  folder=$1 account=$mine/$2; shift 2
  printf 'folder|%s\n' "$(cell "$folder")"
  [ -d "$folder" ] || continue
  echo there
  [ -O "$account" ] || continue
  [ -n "$(find "$folder/." ! -name . -prune -print | head -n 1)" ] || echo empty
  if [ -f "$account/mark" ]; then
    printf 'mark|%s\n' "$(cell "$(head -c 4096 "$account/mark")")"
  elif [ -f "$account/journal" ]; then
    last=$(grep -a '^{"whole"' "$account/journal" | tail -n 1 | head -c 4096)
    printf 'mark|%s\n' "$(cell "$last")"
  fi
done
"""
)


def account_of(facts: Facts, folder: str) -> str:
    """Return the folder on a host that says what was written to a data folder.

    It is in the ssh user's state folder, where ranks and other users cannot write. It is not in a cluster's
    part of that: it stays after `down`, as the data does, and clusters of one user may stage to one place.
    A home may be shared by several hosts.
    """
    return f"{facts.state_dir.rsplit('/', 2)[0]}/.data/{facts.hostname}/{_account_name(folder)}"


def _account_name(folder: str) -> str:
    return hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:32]


@dataclass(frozen=True)
class HeldData:
    """What a host holds of one data set.

    Args:
        folder: whether its folder is there.
        identity: of the set that is there whole; empty for none.
        files, size: of that set; ``size`` of what has come by now where it is not whole.
        since: when it was whole, in seconds since the epoch by the host's clock; 0 for never.
    """

    folder: bool = False
    identity: str = ""
    files: int = 0
    size: int = 0
    since: int = 0


@dataclass(frozen=True)
class DataRow:
    """One data set on one host.

    ``state`` is ``whole``, ``other`` (whole, and not what this machine has now), ``part``, ``absent`` or
    ``unreachable``; ``share`` is in percent of what this machine has, None for unknown.
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
    """Return what hosts are asked beside the probe's questions, see ``toolkit.cluster.probe``."""
    folders = command(
        *(word for one in inventory.data for word in (one.path, _account_name(one.path)))
    ).line()
    return ((QUESTION, _ASK.replace("@folders@", folders)),) if inventory.data else ()


@dataclass(frozen=True)
class _Mark:
    """The mark of a whole data set, or the journal's last line about a whole shard."""

    set: Annotated[str, Text(200)] = ""
    files: Annotated[int, Number(0)] = 0
    bytes: Annotated[int, Number(0)] = 0
    since: Annotated[int, Number(0)] = 0


def parse_held(text: str) -> dict[str, HeldData]:
    """Return by its folder what a host said about each data set; a mark that makes no sense is none."""
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
            # Somebody has removed the folder, and another one is in its place.
            found[folder] = HeldData(True) if empty and held.size else held
    return found


def _held(text: str) -> HeldData:
    try:
        mark = decode_json(_Mark, text)
    except DecodeError:
        return HeldData(True)
    if mark.set:
        return HeldData(True, mark.set, mark.files, mark.bytes, mark.since)
    return HeldData(True, size=mark.bytes)


def plan_data(
    inventory: Inventory,
    facts: Mapping[str, Facts],
    paths: Mapping[str, DataPath],
    contents: Sequence[tuple[DataSet, str, Content]],
    image: str,
) -> Plan:
    """Return the plan that stages data sets to every host that answered.

    Args:
        paths: where hosts reach each other.
        contents: data sets with their absolute source on this machine and what it holds.
        image: reference by which hosts know the image.
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
    """Return what makes the folders of data sets be there, so that containers start without the data."""
    folders = [one.path for one in inventory.data]
    if not folders:
        return ()
    make = script('umask 022; for d; do mkdir -p "$d" || exit; done', *folders)
    there = script('for d; do [ -d "$d" ] || exit 1; done', *folders)
    words = command(*folders).line()
    fix = f"on {host}: sudo install -d -o $(id -un) {words}; or correct data: in the hosts file"
    return (Run(host, "make the folders for data", make, unless=there, fix=fix),)


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
    """Return what every host of the file holds of every data set.

    Args:
        held: by host and folder.
        contents: by folder, what this machine has; those that are not here are left out.
        errors: of hosts that did not answer.
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
    elif held.size:
        state = "part"
        if content is not None:
            whole = sum(shard.size for shard in content.shards)
            share = min(99, 100 * held.size // max(whole, 1))
    else:
        state, share = "absent", 0
    return DataRow(host, one.path, one.target, state, held.size, held.files, share, held.since)


def data_text(rows: Iterable[DataRow]) -> str:
    """Return one line for each data set on each host."""
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
        return "part" if row.share is None else f"part, {row.share} %"
    return "whole, other than here" if row.state == "other" else row.state


def lacking(held: Mapping[str, Mapping[str, HeldData]], inventory: Inventory) -> dict[str, str]:
    """Return by host why a job must not start there: its data is not whole, or not that of the others."""
    found: dict[str, str] = {}
    for one in inventory.data:
        sets = {name: folders.get(one.path, HeldData()) for name, folders in held.items()}
        seen = [own.identity for own in sets.values() if own.identity]
        # What most hosts have is right; where none is ahead, what the first of the file has.
        common = max(dict.fromkeys(seen), key=seen.count, default="")
        for name, own in sets.items():
            if not own.identity:
                found.setdefault(name, f"the data of {one.target} is not whole in {one.path}")
            elif own.identity != common:
                what = f"the data of {one.target} in {one.path} is another than other hosts have"
                found.setdefault(name, what)
    return found
