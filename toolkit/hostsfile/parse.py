"""hosts.yaml from text to Inventory: every problem at once, in the file's order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.core.container import Mount, Ulimit
from toolkit.core.engines import PODMAN
from toolkit.core.image import with_registry
from toolkit.core.printable import counted
from toolkit.errors import BadInput, Problem
from toolkit.hostsfile import fields
from toolkit.hostsfile.checks import check_across
from toolkit.hostsfile.errors import Path, path_text
from toolkit.hostsfile.fields import command_words, limit
from toolkit.hostsfile.inventory import DataSet, Host, Inventory, Service
from toolkit.hostsfile.yaml import KEY, Document, read_yaml

if TYPE_CHECKING:
    from toolkit.hostsfile.models import (
        HostSettings,
        HostsFile,
        LimitSettings,
        MountSettings,
        ServiceSettings,
    )

# More than a user reads; a file of another kind has thousands.
MAX_PROBLEMS = 100


# Keys that hold variables of the ranks.
_VARIABLES = ("env", "secrets")


def parse_inventory(text: str | bytes, source: str) -> Inventory:
    """Return the Inventory that a hosts.yaml describes. Reads no file and contacts nothing.

    Args:
        text: the file's content.
        source: the file's name, for messages.

    Raises:
        BadInput: with all problems, those without a line first, then by line.
    """
    # Not at the top of the module: commands without a hosts file do not import pydantic.
    from toolkit.hostsfile.models import validate

    document = read_yaml(text, secret_keys=_VARIABLES)
    problems = list(document.problems)
    model = None
    if document.data is not None:
        model, faults = validate(document.data)
        judged = [*faults, *((path, message, False) for path, message in check_across(document.data))]
        # A variable with a refused name has one problem, so that no advice for its value contradicts it.
        refused = {path for path, _, at_key in faults if at_key and _is_variable(document, path)}
        places = {path_text(path) for path in refused}
        problems = [problem for problem in problems if problem.path not in places]
        problems += _problems(document, [each for each in judged if each[2] or each[0] not in refused])
    if model is None or problems:
        raise BadInput(source, _ordered(problems))
    return _inventory(model, source)


def _is_variable(document: Document, path: Path) -> bool:
    return path[-2:-1] != () and path[-2] in _VARIABLES and (*path, KEY) not in document.opaque


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of hosts.yaml, for editors."""
    from toolkit.hostsfile.models import HostsFile

    dialect = "https://json-schema.org/draft/2020-12/schema"
    schema = HostsFile.model_json_schema(mode="validation")
    _close(schema)
    return {"$schema": dialect, **schema}


def _close(node: Any) -> None:
    """Refuse names that fit no pattern; pydantic's schema lists the patterns and refuses nothing."""
    if isinstance(node, dict):
        if "patternProperties" in node:
            node.setdefault("additionalProperties", False)
        node = list(node.values())
    for below in node if isinstance(node, list) else ():
        _close(below)


def _problems(document: Document, faults: Iterable[tuple[Path, str, bool]]) -> Iterable[Problem]:
    for path, message, at_key in faults:
        above = (path[:n] for n in range(len(path)))
        if not document.opaque.intersection((*above, (*path, KEY) if at_key else path)):
            yield Problem(path_text(path), message, _line(document, path))


def _line(document: Document, path: Path) -> int | None:
    """The line of the path or, for a key that is missing, of what should hold it; None for the whole file."""
    for n in range(len(path), 0, -1):
        if path[:n] in document.lines:
            return document.lines[path[:n]]
    return None


def _ordered(problems: Collection[Problem]) -> tuple[Problem, ...]:
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)
    more = len(ordered) - MAX_PROBLEMS
    if more <= 0:
        return tuple(ordered)
    return (*ordered[:MAX_PROBLEMS], Problem("", f"and {counted(more, 'more problem')}"))


def _inventory(model: HostsFile, source: str) -> Inventory:
    hosts = model.hosts if isinstance(model.hosts, dict) else dict.fromkeys(model.hosts)
    image, main = model.image, model.main or next(iter(hosts))
    name, pull = (image, "never") if isinstance(image, str) else (image.name, image.pull)
    return Inventory(
        cluster=model.cluster,
        image=_listed(name, model.engine, pull == "always"),
        main=main,
        hosts=tuple(_host(name, settings) for name, settings in hosts.items()),
        spares=tuple(model.spares or ()),
        worker_port=model.worker_port,
        worker_port_fixed="worker_port" in model.model_fields_set,
        mounts=_mounts(model.mounts),
        data=tuple(DataSet(item.source, item.path, item.target, item.read_only) for item in model.data or ()),
        env=_pairs(model.env),
        secrets=_pairs(model.secrets),
        labels=_pairs(model.labels),
        ulimits=tuple(_ulimit(name, item) for name, item in sorted((model.ulimits or {}).items())),
        engine=model.engine,
        transport=model.transport,
        shm_bytes=fields.size_bytes(model.shm_size),
        log_bytes=fields.size_bytes(model.log_size),
        launcher=model.launcher,
        network=model.network,
        state_dir=model.state_dir,
        services=tuple(
            _service(name, item, main, model.engine) for name, item in (model.services or {}).items()
        ),
        known_hosts=model.known_hosts,
        pull=pull,
        source=source,
    )


def _host(name: str, settings: HostSettings | None) -> Host:
    values = {key: getattr(settings, key) for key in settings.model_fields_set} if settings else {}
    if "gpus" in values:
        values["gpus"], values["gpu_ids"] = _gpus(values["gpus"])
    return Host(**{"name": name, "address": name, **values, "env": _pairs(values.get("env"))})


def _gpus(value: int | list[int | str]) -> tuple[int, tuple[str, ...]]:
    """Return the number of GPUs, and their IDs if the file lists them."""
    return (len(value), tuple(map(str, value))) if isinstance(value, list) else (value, ())


def _service(name: str, item: ServiceSettings, main: str, engine: str) -> Service:
    count, ids = _gpus(item.gpus)
    return Service(
        name=name,
        host=item.host or main,
        image=_listed(item.image, engine) if item.image else "",
        argv=command_words(item.command),
        ports=tuple(item.ports or ()),
        gpus=count,
        gpu_ids=ids,
        health=item.health,
        start_within=item.start_within,
        env=_pairs(item.env),
        mounts=_mounts(item.mounts),
    )


def _mounts(items: Sequence[str | MountSettings] | None) -> tuple[Mount, ...]:
    return tuple(
        fields.mount(item) if isinstance(item, str) else Mount(item.source, item.target, item.read_only)
        for item in items or ()
    )


def _ulimit(name: str, item: int | str | LimitSettings) -> Ulimit:
    if isinstance(item, int | str):
        return Ulimit(name, limit(item), limit(item))
    return Ulimit(name, limit(item.soft), limit(item.hard))


def _pairs(values: dict[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((values or {}).items()))


def _listed(image: str, engine: str, pulled: bool = False) -> str:
    """Return the reference as the engine lists it.

    Podman lists an image that it pulled from Docker Hub with its registry.

    Args:
        pulled: the image is pulled in any case. Otherwise, the host can have it under the short name.
    """
    familiar = _familiar(image)
    hub = pulled or image.startswith(("index.docker.io/", "docker.io/"))
    return with_registry(familiar) if engine == PODMAN and hub else familiar


def _familiar(image: str) -> str:
    """Return the reference as Docker lists it: complete, but without the parts that Docker assumes."""
    for prefix in ("index.docker.io/", "docker.io/", "library/"):
        image = image.removeprefix(prefix)
    name, at, digest = image.partition("@")
    folder, slash, last = name.rpartition("/")
    if at:  # the digest identifies the image, so a tag is dropped
        return f"{folder}{slash}{last.partition(':')[0]}@{digest}"
    return image if ":" in last else f"{image}:latest"
