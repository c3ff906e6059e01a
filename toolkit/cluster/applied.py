"""Records of `up` on each host: its hosts, and digests of the keys that it turns into containers and files.

Keys that a job reads when it starts, such as ``env`` and ``launcher``, need no `up` and are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from toolkit.core.container import without_empty
from toolkit.core.facts import Facts
from toolkit.core.finding import Finding
from toolkit.hostsfile.errors import fits
from toolkit.hostsfile.fields import HOST_NAME
from toolkit.hostsfile.inventory import Host, Inventory
from toolkit.protocol.decode import DecodeError, decode_json
from toolkit.protocol.host_list import host_list
from toolkit.protocol.transport import AUTO, EXEC, SSH

# Below a host's state directory.
FILE = "applied.json"
# In a record: the image for which `up` chose the transport.
_CHOSEN_FOR = "transport chosen for"
# In a record: the names of the hosts, unless the list is longer than _MOST_CHARACTERS.
_HOSTS = "hosts of the cluster"

_OF_ALL: Mapping[str, Callable[[Inventory], object]] = {
    "image": lambda file: file.image,
    "main": lambda file: file.main,
    "hosts": lambda file: sorted(file.names),
    "engine": lambda file: file.engine,
    "transport": lambda file: file.used_transport,
    "worker_port": lambda file: [file.worker_port, file.worker_port_fixed],
    "network": lambda file: file.network,
    "mounts": lambda file: file.mounts,
    # The content of a data set has judges of its own.
    "data": lambda file: [(one.path, one.target, one.read_only) for one in file.data],
    "labels": lambda file: file.labels,
    "ulimits": lambda file: file.ulimits,
    "shm_size": lambda file: file.shm_bytes,
    "services": lambda file: file.services,
}
_OF_HOST: Mapping[str, Callable[[Host], object]] = {
    "data_address": lambda host: host.data_address,
    "gpus": lambda host: [-1 if host.gpus is None else host.gpus, host.gpu_ids],
}
_MOST_CHARACTERS = 4096
# At most this number of hosts is printed after a key; for more, only their number.
_NAMED = 3


def applied_text(inventory: Inventory, host: str, image: str = "") -> str:
    """Return the content of a host's record: values of keys are digests, since a variable can hold a secret.

    Args:
        image: content digest of the image of the containers.
    """
    chosen = {_CHOSEN_FOR: _digest(image)} if inventory.transport == AUTO and image else {}
    names = " ".join(sorted(inventory.names))
    hosts = {_HOSTS: names} if len(names) <= _MOST_CHARACTERS else {}
    return json.dumps(_digests(inventory, host) | chosen | hosts, indent=1, sort_keys=True) + "\n"


def with_recorded_transport(inventory: Inventory, facts: Mapping[str, Facts], image: str = "") -> Inventory:
    """Return the inventory with the transport that the last `up` chose for ``transport: auto``.

    The record of main takes precedence, then the first record of another host.

    Args:
        image: if given, accept only a choice of `up` for this content digest.
    """
    if inventory.transport != AUTO:
        return inventory
    for record in _records(inventory, facts):
        if image and record.get(_CHOSEN_FOR) != _digest(image):
            break
        for transport in (SSH, EXEC):
            if record.get("transport") == _digest(transport):
                return replace(inventory, chosen_transport=transport)
    return replace(inventory, chosen_transport="")


def parse_applied(text: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a record; none if there is no record, or if it is unreadable."""
    try:
        return tuple(sorted(decode_json(dict[str, str], text).items()))
    except DecodeError:
        return ()


def changed_keys(inventory: Inventory, facts: Mapping[str, Facts]) -> tuple[str, ...]:
    """Return the keys of hosts.yaml that differ from those of the last `up`, in the order of the file's page.

    A key that differs on some hosts only is followed by their names. Hosts without a record, and keys that
    an earlier toolkit did not record, are left out.
    """
    if not inventory.chosen_transport:
        inventory = with_recorded_transport(inventory, facts)
    kept = {name: dict(host.applied) for name, host in facts.items() if host.applied}
    differ: dict[str, list[str]] = {}
    known: dict[str, int] = {}
    for name, record in kept.items():
        for key, digest in _digests(inventory, name).items():
            if key in record:
                known[key] = known.get(key, 0) + 1
                differ.setdefault(key, [])
                differ[key] += [name] if record[key] != digest else []
    keys = [
        key if len(names) == known[key] else f"{key} ({host_list(names)})"
        for key in _OF_ALL
        if (names := differ.get(key))
    ]
    for key in _OF_HOST:
        names = [name for name in kept if differ.get(f"hosts/{name}/{key}")]
        keys += (
            [f"hosts/{name}/{key}" for name in names]
            if len(names) <= _NAMED
            else [f"hosts/NAME/{key} ({host_list(names)})"]
        )
    return tuple(keys)


def removed_finding(inventory: Inventory, facts: Mapping[str, Facts]) -> tuple[Finding, ...]:
    """Return the warning about hosts of the last `up` that hosts.yaml no longer contains.

    There is none if hosts.yaml also contains a new name, which can be that of the same machine.
    """
    record = next(_records(inventory, facts), {})
    then = record.get(_HOSTS, "").split()
    gone = [name for name in then if name not in inventory.names and fits(HOST_NAME, name)]
    if not gone or not set(inventory.names) <= set(then):
        return ()
    names = host_list(gone)
    what = f"no longer contains {names}, but {names} might still have containers and keys of the cluster"
    return (Finding("hosts-file", "warning", what, down_with_copy(names), subject="hosts.yaml"),)


def down_with_copy(names: str) -> str:
    """Return the command that removes the cluster from hosts that hosts.yaml does not contain."""
    # The parser refuses names of other hosts, and a file in which all hosts have 0 slots.
    copy = "a copy of hosts.yaml without the keys main, slots, spares and services"
    return f"toolkit down --hosts COPY  # COPY: {copy}, in which hosts: lists only {names}"


def change_finding(inventory: Inventory, facts: Mapping[str, Facts]) -> tuple[Finding, ...]:
    """Return the warnings that containers are not as hosts.yaml describes them; none if they are."""
    keys, removed = changed_keys(inventory, facts), removed_finding(inventory, facts)
    if not keys:
        return removed
    what = f"changed since `up`: {', '.join(keys)}"
    return (Finding("hosts-file", "warning", what, "toolkit up", subject="hosts.yaml"), *removed)


def _records(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[dict[str, str]]:
    """Yield the records of the hosts, that of main first."""
    names = sorted((name for name in inventory.names if name in facts), key=lambda n: n != inventory.main)
    return (dict(facts[name].applied) for name in names if facts[name].applied)


def _digests(inventory: Inventory, host: str) -> dict[str, str]:
    own = inventory.host(host)
    values = {key: value(inventory) for key, value in _OF_ALL.items()}
    values |= {f"hosts/{host}/{key}": value(own) for key, value in _OF_HOST.items()}
    return {key: _digest(value) for key, value in values.items()}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(without_empty(value), sort_keys=True).encode()).hexdigest()[:16]
