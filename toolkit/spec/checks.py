"""What several values of hosts.yaml must be together; works on plain data, whatever else is wrong in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.spec import fields
from toolkit.spec.words import Path, meant, path_text, shown

_SSH_PORT = 22

Fault = tuple[Path, str]


def check_across(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults that lie between values; a value of a wrong type is passed over, others report it."""
    places = _host_places(data.get("hosts"))
    hosts = {name: settings for name, _, settings in places}
    main = data.get("main", next(iter(hosts), None))
    if data.get("hosts") in ({}, []):
        yield ("hosts",), "lists no host; write at least one"
    if hosts and isinstance(main, str) and main not in hosts:
        yield ("main",), f"no host is called {shown(main)}; {meant(main, hosts)}"
    yield from _same_names(places)
    yield from _same_addresses(hosts)
    yield from _slots(hosts, main)
    yield from _same_targets(data.get("mounts"))


def _host_places(hosts: Any) -> list[tuple[str, Path, Mapping[str, Any]]]:
    """Name, place and settings of every host, from either way to write them."""
    if isinstance(hosts, dict):
        return [(n, ("hosts", n), s if isinstance(s, dict) else {}) for n, s in hosts.items()]
    if isinstance(hosts, list):
        return [(n, ("hosts", i), {}) for i, n in enumerate(hosts) if isinstance(n, str)]
    return []


def _same_names(places: list[tuple[str, Path, Mapping[str, Any]]]) -> Iterator[Fault]:
    seen: set[str] = set()
    for name, place, _ in places:
        if name in seen:
            yield place, f"host {shown(name)} is listed twice; keep one of them"
        seen.add(name)


def _same_addresses(hosts: Mapping[str, Mapping[str, Any]]) -> Iterator[Fault]:
    control: dict[tuple[str, int, object], str] = {}
    data: dict[str, str] = {}
    for name, settings in hosts.items():
        address, port = settings.get("address", name), settings.get("port", _SSH_PORT)
        if isinstance(address, str) and isinstance(port, int):
            # Behind different jump hosts the same private address is another machine.
            first = control.setdefault((address.lower(), port, str(settings.get("jump"))), name)
            if first != name:
                place: Path = ("hosts", name, "address") if "address" in settings else ("hosts", name)
                same = f"reached as {shown(address)} port {port}, like {path_text(('hosts', first))}"
                yield place, f"{same}; name a machine once"
        own = settings.get("data_address")
        if isinstance(own, str) and (first := data.setdefault(own, name)) != name:
            where = path_text(("hosts", first))
            yield ("hosts", name, "data_address"), f"{shown(own)} is the data address of {where} already"


def _slots(hosts: Mapping[str, Mapping[str, Any]], main: Any) -> Iterator[Fault]:
    empty = 0
    for name, settings in hosts.items():
        slots, gpus = settings.get("slots"), settings.get("gpus")
        if type(slots) is not int:
            continue
        empty += slots == 0
        if slots == 0 and name != main and main in hosts:
            yield ("hosts", name, "slots"), f"only main ({shown(main)}) may have 0 slots; write 1 or more"
        if type(gpus) is int and 0 < gpus < slots:
            most = f"a slot is one GPU, so write at most {gpus}, or gpus: 0 for ranks on the CPU"
            yield ("hosts", name, "slots"), f"{slots} slots but gpus says {gpus}; {most}"
    if hosts and empty == len(hosts):
        yield ("hosts",), "no host has a slot; give at least one host slots: 1 or more"


def _same_targets(mounts: Any) -> Iterator[Fault]:
    seen: dict[str, int] = {}
    for index, item in enumerate(mounts if isinstance(mounts, list) else []):
        try:
            text = isinstance(item, str)
            target = fields.mount(item).target if text else fields.mount_target(item["target"])
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        if (first := seen.setdefault(target, index)) != index:
            yield ("mounts", index), f"{shown(target)} is the target of mounts/{first} already"
