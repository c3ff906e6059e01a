"""One container, however it was started: what each field of Container comes to in `docker inspect`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolkit.core.container import Container

Inspect = Mapping[str, Any]

# Labels that compose adds to those of toolkit.
COMPOSE = "com.docker.compose."


def variants(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a value once for each place in it, with another value at that place and a name for the place.

    Works through dataclasses and tuples down to their leaves, so that new fields are included automatically.

    Raises:
        ValueError: a place is empty, so that a test cannot see whether it is expressed.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            for name, other in variants(getattr(value, field.name), f"{path}.{field.name}".lstrip(".")):
                yield name, dataclasses.replace(value, **{field.name: other})
    elif isinstance(value, tuple) and value:
        for index, item in enumerate(value):
            for name, other in variants(item, f"{path}[{index}]"):
                yield name, (*value[:index], other, *value[index + 1 :])
    elif isinstance(value, bool):
        yield path, not value
    elif isinstance(value, int):
        yield path, value + 1
    elif isinstance(value, str) and (value or path.endswith("]")):  # a word of a list may be empty
        yield path, f"{value}1"
    else:
        raise ValueError(f"{path} is {value!r}: give it a value in tests/unit/cluster_world.py")


def _gpus(inspect: Inspect) -> str:
    requests = [r for r in inspect["HostConfig"]["DeviceRequests"] or () if r["Driver"] != "cdi"]
    if not requests:
        return ""
    (request,) = requests
    assert (request["Driver"], request["Capabilities"]) == ("", [["gpu"]])
    return "all" if request["Count"] == -1 else ",".join(request["DeviceIDs"])


def _cdi(inspect: Inspect) -> list[str]:
    requests = [r for r in inspect["HostConfig"]["DeviceRequests"] or () if r["Driver"] == "cdi"]
    return sorted(name for request in requests for name in request["DeviceIDs"])


def _pairs(mine: dict[str, str], image: dict[str, str]) -> dict[str, str]:
    """Return what a container has beyond the image's own settings, which every container inherits."""
    return {k: v for k, v in mine.items() if image.get(k) != v and not k.startswith(COMPOSE)}


def _env(config: Mapping[str, Any]) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in config["Env"] or ())


# One row per field: how `docker inspect` shows it (of the container and of its image), and what is meant.
SHOWN: dict[str, tuple[Callable[[Inspect, Inspect], Any], Callable[[Container], Any]]] = {
    "name": (lambda i, _: i["Name"].lstrip("/"), lambda c: c.name),
    "hostname": (lambda i, _: i["Config"]["Hostname"], lambda c: c.hostname),
    "image": (lambda i, _: i["Config"]["Image"], lambda c: c.image),
    "argv": (lambda i, _: i["Config"]["Cmd"], lambda c: list(c.argv)),
    "entrypoint": (
        lambda i, _: i["Config"]["Entrypoint"],
        lambda c: [c.entrypoint] if c.entrypoint else None,
    ),
    "user": (lambda i, _: i["Config"]["User"], lambda c: c.user),
    "groups": (lambda i, _: sorted(i["HostConfig"]["GroupAdd"]), lambda c: sorted(map(str, c.groups))),
    "workdir": (lambda i, _: i["Config"]["WorkingDir"], lambda c: c.workdir),
    "env": (lambda i, image: _pairs(_env(i["Config"]), _env(image["Config"])), lambda c: dict(c.env)),
    "mounts": (
        lambda i, _: sorted((m["Source"], m["Destination"], not m["RW"]) for m in i["Mounts"]),
        lambda c: sorted((m.source, m.target, m.read_only) for m in c.mounts),
    ),
    "labels": (
        lambda i, image: _pairs(i["Config"]["Labels"], image["Config"]["Labels"] or {}),
        lambda c: dict(c.labels),
    ),
    "gpus": (lambda i, _: _gpus(i), lambda c: c.gpus),
    "cdi": (lambda i, _: _cdi(i), lambda c: sorted(c.cdi)),
    "devices": (
        lambda i, _: sorted(d["PathOnHost"] for d in i["HostConfig"]["Devices"] or ()),
        lambda c: sorted(c.devices),
    ),
    "shm_bytes": (lambda i, _: i["HostConfig"]["ShmSize"], lambda c: c.shm_bytes),
    "ulimits": (
        lambda i, _: sorted((u["Name"], u["Soft"], u["Hard"]) for u in i["HostConfig"]["Ulimits"] or ()),
        lambda c: sorted((u.name, u.soft, u.hard) for u in c.ulimits),
    ),
    "userns": (lambda i, _: i["HostConfig"]["UsernsMode"], lambda c: c.userns),
    "cap_drop": (lambda i, _: sorted(i["HostConfig"]["CapDrop"] or ()), lambda c: sorted(c.cap_drop)),
    "cap_add": (lambda i, _: sorted(i["HostConfig"]["CapAdd"] or ()), lambda c: sorted(c.cap_add)),
    "security": (lambda i, _: sorted(i["HostConfig"]["SecurityOpt"] or ()), lambda c: sorted(c.security)),
    "pids": (lambda i, _: i["HostConfig"]["PidsLimit"], lambda c: c.pids),
    "network": (lambda i, _: i["HostConfig"]["NetworkMode"], lambda c: c.network),
    "init": (lambda i, _: i["HostConfig"]["Init"], lambda c: c.init),
    "stop_seconds": (lambda i, _: i["Config"]["StopTimeout"], lambda c: c.stop_seconds),
}


def differences(container: Container, inspect: Inspect, image: Inspect) -> dict[str, tuple[Any, Any]]:
    """Return the fields that are not as meant, each with what is meant and what is there."""
    found = {name: (meant(container), shown(inspect, image)) for name, (shown, meant) in SHOWN.items()}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def settings(inspect: Inspect) -> dict[str, Any]:
    """Return all that decides how a container runs, in one form for every client and engine.

    Also what no field of Container speaks of: a restart policy, a port, another namespace.
    """
    host = dict(inspect["HostConfig"]) | {"Mounts": sorted(map(str, inspect["Mounts"])), "Binds": None}
    if host["RestartPolicy"]["Name"] == "no":
        host["RestartPolicy"] = None
    # `docker run` asks for CDI devices without a capability, Compose insists on one; CDI looks at none.
    host["DeviceRequests"] = [
        {**r, "Capabilities": None} if r["Driver"] == "cdi" else r for r in host["DeviceRequests"] or ()
    ]
    config = dict(inspect["Config"])
    config["Labels"] = {k: v for k, v in config["Labels"].items() if not k.startswith(COMPOSE)}
    # A client that stays attached to see it start: nothing of the container's own.
    for name in ("AttachStdin", "AttachStdout", "AttachStderr"):
        config.pop(name, None)
    return {"Config": _plain(config), "HostConfig": _plain(host)}


def _plain(value: Any) -> Any:
    """The same without what is empty, and lists in one order: null, [] and {} are one thing to an engine."""
    if isinstance(value, Mapping):
        plain = {k: _plain(v) for k, v in value.items()}
        return {k: v for k, v in sorted(plain.items()) if v not in (None, "", [], {}, 0, False)}
    if isinstance(value, list):
        return sorted((_plain(v) for v in value), key=str)
    return value
