"""Checks of hosts.yaml across several values; the data can have other problems as well."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.core.printable import counted
from toolkit.hostsfile import fields
from toolkit.hostsfile.errors import Path, meant, path_text, shown
from toolkit.protocol.transport import EXEC, INSTEAD, WITHOUT_SSH

_SSH_PORT = 22

Fault = tuple[Path, str]


def check_across(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield faults that involve several values; values of a wrong type are skipped and reported elsewhere."""
    places = _host_places(data.get("hosts"))
    hosts = {name: settings for name, _, settings in places}
    main = data.get("main", next(iter(hosts), None))
    if data.get("hosts") in ({}, []):
        yield ("hosts",), "this key lists no host; write at least one host"
    if not isinstance(main, str):
        main = None
    if hosts and main is not None and main not in hosts:
        yield ("main",), f"no host is called {shown(main)}; {meant(main, hosts)}"
    yield from _spares(data.get("spares"), hosts, main)
    yield from _same_names(places)
    yield from _same_addresses(hosts)
    yield from _slots(hosts, main)
    yield from _same_targets(*_mounting(data))
    yield from _same_paths(data.get("data"))
    yield from _same_variables(data, hosts)
    yield from _limits(data.get("ulimits"))
    yield from _services(data, hosts)
    yield from _without_ssh(data)


def _without_ssh(data: Mapping[str, Any]) -> Iterator[Fault]:
    if data.get("transport") != EXEC:
        return
    yield from without_ssh(data.get("launcher"), "worker_port" in data, bool(data.get("spares")))


def without_ssh(launcher: object, worker_port: bool, spares: bool) -> Iterator[Fault]:
    """Yield the keys of a hosts file that need SSH between containers.

    Args:
        launcher: value of the key.
        worker_port, spares: whether the file has the key.
    """
    if (
        isinstance(launcher, str)
        and launcher in fields.LAUNCHER_NAMES
        and launcher not in (*WITHOUT_SSH, "auto")
    ):
        instead = INSTEAD.get(launcher) or f"one of {', '.join(WITHOUT_SSH)}"
        yield ("launcher",), f"{launcher} requires SSH, but transport is {EXEC}; write {instead}"
    if worker_port:
        yield (
            ("worker_port",),
            f"this key requires sshd in the containers, but transport is {EXEC}; remove the key",
        )
    if spares:
        yield ("spares",), f"restarts on spare hosts require SSH, but transport is {EXEC}; remove spares"


def _host_places(hosts: Any) -> list[tuple[str, Path, Mapping[str, Any]]]:
    """Name, place and settings of every host, from a list or a mapping."""
    if isinstance(hosts, dict):
        return [(n, ("hosts", n), s if isinstance(s, dict) else {}) for n, s in hosts.items()]
    if isinstance(hosts, list):
        return [(n, ("hosts", i), {}) for i, n in enumerate(hosts) if isinstance(n, str)]
    return []


def _spares(spares: Any, hosts: Mapping[str, Any], main: Any) -> Iterator[Fault]:
    names = [name for name in spares if isinstance(name, str)] if isinstance(spares, list) else []
    for index, name in enumerate(names):
        place = ("spares", index)
        if hosts and name not in hosts:
            yield place, f"no host is called {shown(name)}; {meant(name, hosts)}"
        elif name == main:
            what = f"{shown(name)} is the main host, which cannot be a spare host"
            yield place, f"{what}; remove {shown(name)} from spares, or set main to a different host"
        elif name in names[:index]:
            yield place, f"host {shown(name)} is listed twice; keep one entry"
    if names and set(hosts) <= {*names, main} and hosts.get(str(main), {}).get("slots") == 0:
        yield ("spares",), "all hosts with slots are spare hosts; remove one host from spares"


def _same_names(places: list[tuple[str, Path, Mapping[str, Any]]]) -> Iterator[Fault]:
    seen: set[str] = set()
    for name, place, _ in places:
        if name in seen:
            yield place, f"host {shown(name)} is listed twice; keep one entry"
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
                same = f"{shown(address)} port {port} is also the address of {path_text(('hosts', first))}"
                yield place, f"{same}; list each host once"
        own = settings.get("data_address")
        if isinstance(own, str) and (first := data.setdefault(own, name)) != name:
            where = path_text(("hosts", first))
            yield (
                ("hosts", name, "data_address"),
                f"{shown(own)} is already the data address of {where}; write a different address",
            )


def _slots(hosts: Mapping[str, Mapping[str, Any]], main: Any) -> Iterator[Fault]:
    empty = 0
    for name, settings in hosts.items():
        slots, gpus = settings.get("slots"), settings.get("gpus")
        if isinstance(gpus, list):
            yield from _gpu_list(("hosts", name, "gpus"), gpus)
            gpus = len(gpus)
        if type(slots) is not int:
            continue
        empty += slots == 0
        if slots == 0 and name != main and main in hosts:
            yield (
                ("hosts", name, "slots"),
                f"only the main host ({shown(main)}) can have 0 slots; write 1 or more",
            )
        if type(gpus) is int and 0 < gpus < slots:
            fix = f"set slots to at most {gpus}, or gpus to 0 for ranks on the CPU"
            yield (
                ("hosts", name, "slots"),
                f"should not be more than gpus, found {slots} slots and {counted(gpus, 'GPU')}; {fix}",
            )
    if hosts and empty == len(hosts):
        yield ("hosts",), "no host has a slot; set slots to 1 or more for at least one host"


def _gpu_list(place: Path, items: list[Any]) -> Iterator[Fault]:
    if not items:
        remove = "remove the key" if place[0] == "services" else "remove the key to use all GPUs"
        yield place, f"this key lists no GPU; write 0 for no GPU, or {remove}"
    if len({type(item) for item in items if type(item) in (int, str)}) > 1:
        # One GPU under two names would count twice, and only the host knows which they are.
        yield place, "the list contains indexes and UUIDs; write all GPUs as indexes or all as UUIDs"
    seen: dict[object, int] = {}
    for index, item in enumerate(items):
        if type(item) in (int, str) and (first := seen.setdefault(item, index)) != index:
            yield (*place, index), f"{shown(item)} is already in {path_text((*place, first))}; keep one entry"


def _same_variables(data: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]]) -> Iterator[Fault]:
    secrets = data.get("secrets")
    places: dict[Path, Any] = {("env",): data.get("env")}
    places |= {("hosts", name, "env"): settings.get("env") for name, settings in hosts.items()}
    for name in secrets if isinstance(secrets, dict) else ():
        for place, env in places.items():
            if isinstance(env, dict) and name in env:
                yield ("secrets", name), f"this variable is also in {path_text(place)}; keep one entry"


def _limits(ulimits: Any) -> Iterator[Fault]:
    for name, item in ulimits.items() if isinstance(ulimits, dict) else ():
        ends = (item.get("soft"), item.get("hard")) if isinstance(item, dict) else (item, item)
        if name == "nofile" and fields.UNLIMITED in ends:
            yield ("ulimits", name), "Linux does not allow an unlimited number of open files; write a number"
            continue
        soft, hard = map(_limit, ends)
        if soft is not None and hard is not None and soft > hard:
            yield ("ulimits", name), f"soft ({shown(ends[0])}) is greater than hard ({shown(ends[1])})"


def _limit(value: Any) -> float | None:
    if value == fields.UNLIMITED:
        return math.inf
    return value if type(value) is int else None


def _mounting(data: Mapping[str, Any]) -> list[tuple[Path, Any]]:
    return [((key,), data.get(key)) for key in ("mounts", "data")]


def _same_targets(*lists: tuple[Path, Any], last: bool = False) -> Iterator[Fault]:
    """Faults of what several lists mount in one container; with ``last`` those of the last list alone."""
    seen: dict[str, Path] = {}
    for number, (key, items) in enumerate(lists):
        for index, item in enumerate(items if isinstance(items, list) else []):
            try:
                text = isinstance(item, str)
                target = fields.mount(item).target if text else fields.mount_target(item["target"])
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
            place: Path = (*key, index)
            first = seen.setdefault(target, place)
            if first != place and (not last or number == len(lists) - 1):
                yield place, f"{shown(target)} is already the target of {path_text(first)}"


def _services(data: Mapping[str, Any], hosts: Mapping[str, Any]) -> Iterator[Fault]:
    services = data.get("services")
    for name, item in services.items() if isinstance(services, dict) else ():
        place: Path = ("services", name)
        if not isinstance(item, dict):
            continue
        host, ports = item.get("host"), item.get("ports")
        if hosts and isinstance(host, str) and host not in hosts:
            yield (*place, "host"), f"no host is called {shown(host)}; {meant(host, hosts)}"
        if "command" not in item and not item.get("image"):
            yield place, "a service without its own image requires a command; set command or image"
        if item.get("health") and not ports:
            yield (
                (*place, "health"),
                "a health check requires ports, because toolkit queries the path on the first port",
            )
        if isinstance(item.get("gpus"), list):
            yield from _gpu_list((*place, "gpus"), item["gpus"])
        numbers = [port for port in ports if type(port) is int] if isinstance(ports, list) else []
        for index, port in enumerate(numbers):
            if port in numbers[:index]:
                yield (*place, "ports", index), f"{port} is listed twice; keep one entry"
        yield from _same_targets(*_mounting(data), ((*place, "mounts"), item.get("mounts")), last=True)


def _same_paths(data: Any) -> Iterator[Fault]:
    """Each data set has a folder of its own, in which no other one is."""
    seen: list[tuple[int, str]] = []
    for index, item in enumerate(data if isinstance(data, list) else []):
        try:
            path = fields.data_path(item["path"])
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        for first, other in seen:
            if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
                yield (
                    ("data", index, "path"),
                    f"{shown(path)} and data/{first}/path overlap; write separate folders",
                )
                break
        seen.append((index, path))
