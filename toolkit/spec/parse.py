"""hosts.yaml from text to Inventory: every problem at once, in the file's order."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from toolkit.core.container import Mount
from toolkit.errors import BadInput, Problem
from toolkit.spec import fields
from toolkit.spec.checks import check_across
from toolkit.spec.inventory import Host, Inventory
from toolkit.spec.words import Path, path_text
from toolkit.spec.yaml import KEY, Document, read_yaml

if TYPE_CHECKING:
    from toolkit.spec.models import HostsFile

# More than anybody reads; a file that is something else altogether has thousands.
MAX_PROBLEMS = 100


def parse_inventory(text: str | bytes, source: str) -> Inventory:
    """Return the Inventory that a hosts.yaml describes. Reads no file and contacts nothing.

    Args:
        text: the file's content.
        source: the file's name, for messages.

    Raises:
        BadInput: with all problems, those without a line first, then by line.
    """
    # Here and not above: commands without a hosts file need not pay for importing pydantic.
    from toolkit.spec.models import validate

    document = read_yaml(text, secret_keys=("env",))
    problems = list(document.problems)
    model = None
    if document.data is not None:
        model, faults = validate(document.data)
        judged = [*faults, *((path, message, False) for path, message in check_across(document.data))]
        problems += _problems(document, judged)
    if model is None or problems:
        raise BadInput(source, _ordered(problems))
    return _inventory(model)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of hosts.yaml, for editors."""
    from toolkit.spec.models import HostsFile

    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **HostsFile.model_json_schema(mode="validation")}


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
    return (*ordered[:MAX_PROBLEMS], Problem("", f"and {more} more"))


def _inventory(model: HostsFile) -> Inventory:
    hosts = model.hosts if isinstance(model.hosts, dict) else dict.fromkeys(model.hosts)
    made = []
    for name, settings in hosts.items():
        values = {key: getattr(settings, key) for key in settings.model_fields_set} if settings else {}
        made.append(Host(**{"name": name, "address": name, **values, "env": _pairs(values.get("env"))}))
    mounts = (
        fields.mount(item) if isinstance(item, str) else Mount(item.source, item.target, item.read_only)
        for item in model.mounts or ()
    )
    return Inventory(
        cluster=model.cluster,
        image=_with_tag(model.image),
        main=model.main or made[0].name,
        hosts=tuple(made),
        worker_port=model.worker_port,
        worker_port_fixed="worker_port" in model.model_fields_set,
        mounts=tuple(mounts),
        env=_pairs(model.env),
        shm_bytes=fields.shm_bytes(model.shm_size),
        launcher=model.launcher,
        network=model.network,
        known_hosts=model.known_hosts,
    )


def _pairs(env: dict[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((env or {}).items()))


def _with_tag(image: str) -> str:
    # As docker itself reads it; hosts list their images under the whole name.
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"
