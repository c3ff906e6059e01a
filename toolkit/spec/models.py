"""The pydantic models of hosts.yaml; the only module that imports pydantic, which takes 80 ms or more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
)

from toolkit.core.names import DEFAULT_WORKER_PORT
from toolkit.spec import fields
from toolkit.spec.words import Path, kind, meant, shown


def _text(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


def _range(least: int, most: int) -> tuple[AfterValidator, WithJsonSchema]:
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return AfterValidator(lambda number: fields.between(number, least, most)), WithJsonSchema(schema)


def _mount(text: str) -> str:
    fields.mount(text)
    return text


_PORT, _WORKER_PORT, _COUNT = _range(1, 65535), _range(1024, 65535), _range(0, 1024)

Cluster = Annotated[str, AfterValidator(fields.cluster), _text(fields.CLUSTER)]
HostName = Annotated[str, AfterValidator(fields.host_name), _text(fields.HOST_NAME)]
Address = Annotated[str, AfterValidator(fields.address), _text(fields.ADDRESS)]
DataAddress = Annotated[
    str, AfterValidator(fields.data_address), WithJsonSchema({"type": "string", "format": "ipv4"})
]
User = Annotated[str, AfterValidator(fields.user), _text(fields.USER)]
Jump = Annotated[str, AfterValidator(fields.jump), _text(fields.JUMP)]
LocalPath = Annotated[str, AfterValidator(fields.path)]
IdentityFile = Annotated[str, AfterValidator(fields.identity_file)]
Image = Annotated[str, AfterValidator(fields.image), _text(fields.IMAGE)]
Port = Annotated[int, _PORT[0], _PORT[1]]
WorkerPort = Annotated[int, _WORKER_PORT[0], _WORKER_PORT[1]]
Count = Annotated[int, _COUNT[0], _COUNT[1]]
ShmSize = Annotated[str, AfterValidator(fields.shm_size), _text(fields.SHM_SIZE)]
Launcher = Annotated[
    str, AfterValidator(fields.launcher), WithJsonSchema({"type": "string", "enum": list(fields.LAUNCHERS)})
]
Network = Annotated[
    str, AfterValidator(fields.network), WithJsonSchema({"type": "string", "enum": list(fields.NETWORKS)})
]
Env = dict[Annotated[str, AfterValidator(fields.env_name), _text(fields.ENV_NAME)], str]
MountSource = Annotated[str, AfterValidator(fields.mount_source)]
MountTarget = Annotated[str, AfterValidator(fields.mount_target)]
MountText = Annotated[str, AfterValidator(_mount), _text(fields.MOUNT)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _absent(kind: Callable[[], Any], description: str) -> Any:
    """A key without a default here: the Inventory's own holds when the file does not give it."""
    return Field(default_factory=kind, description=description)


class HostSettings(_Strict):
    """One host."""

    address: Address = _absent(
        str, "Where ssh connects to: name, IPv4 address or alias; the host's name if absent."
    )
    data_address: DataAddress = _absent(str, "IPv4 address where ranks reach this host; found out if absent.")
    user: User = _absent(str, "The ssh user; what ssh's configuration says if absent.")
    port: Port = _absent(int, "The port of the host's own sshd; what ssh's configuration says if absent.")
    identity_file: IdentityFile = _absent(str, "The private key for ssh; '~' is this machine's home.")
    jump: Jump = _absent(str, "Reach the host through this one: [user@]host[:port].")
    slots: Count = _absent(int, "Room for ranks; one per GPU if absent, one without a GPU. 0 for main only.")
    gpus: Count = _absent(int, "How many GPUs the host must have; not checked if absent.")
    env: Env | None = _absent(dict, "Variables for the ranks on this host, on top of the cluster's.")


class MountSettings(_Strict):
    """A folder or file of each host, seen in its container."""

    source: MountSource = Field(description="Absolute path on the hosts.")
    target: MountTarget = Field(description="Absolute path in the containers.")
    read_only: bool = Field(default=False, description="Whether ranks may only read it.")


def _form(value: Any) -> str | None:
    """Which of the ways to write a value was taken; becomes one element of an error's place."""
    if isinstance(value, dict):
        return "mapping"
    return "list" if isinstance(value, list) else "text" if isinstance(value, str) else None


Hosts = Annotated[
    Annotated[dict[HostName, HostSettings | None], Tag("mapping")] | Annotated[list[HostName], Tag("list")],
    Discriminator(_form),
]
MountItem = Annotated[
    Annotated[MountText, Tag("text")] | Annotated[MountSettings, Tag("mapping")], Discriminator(_form)
]


class HostsFile(_Strict):
    """hosts.yaml: the machines of one cluster and what its containers are like."""

    cluster: Cluster = Field(description="The cluster's name, part of container and folder names.")
    image: Image = Field(description="The image that every container is made from.")
    main: HostName = _absent(str, "The host where the launcher runs; the first one if absent.")
    hosts: Hosts = Field(description="The machines: a mapping of names to settings, or a list of names.")
    worker_port: WorkerPort = Field(
        default=DEFAULT_WORKER_PORT,
        description="The port of the workers' sshd. Written here it is never moved, even when it is busy.",
    )
    mounts: list[MountItem] | None = _absent(
        list, "What ranks see of the hosts' files: /source:/target[:ro]."
    )
    env: Env | None = _absent(dict, "Variables for all ranks; values are text.")
    shm_size: ShmSize = Field(default="8g", description="Size of /dev/shm, which data loaders share.")
    launcher: Launcher = Field(default="horovodrun", description="What starts the ranks.")
    network: Network = Field(default="auto", description="What ranks use between hosts beside plain TCP.")
    known_hosts: LocalPath = _absent(str, "File with the hosts' ssh keys; ~/.ssh/known_hosts if absent.")


_REQUIRED = {
    "cluster": "write a name for the cluster, as in 'cluster: demo'",
    "image": "write the image to run, as in 'image: trainer:1.0'",
    "hosts": "write the machines, as in 'hosts: [gpu1, gpu2]'",
    "source": "write the absolute path on the hosts",
    "target": "write the absolute path in the containers",
}
_KEYS = {model: tuple(model.model_fields) for model in (HostsFile, HostSettings, MountSettings)}

# pydantic's error types that tell no more than a wrong sort of value; hosts and mounts have their own words.
_SORTS = {
    "int_type": "an integer",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "list_type": "a list",
}
_FORMS = {
    "hosts": "a mapping of names to settings, or a list of names",
    "mounts": "'/source:/target' or a mapping with source and target",
}


def validate(data: Mapping[str, Any]) -> tuple[HostsFile | None, list[tuple[Path, str, bool]]]:
    """Return the model, or None and every fault as (path, message, whether the key itself is at fault)."""
    try:
        return HostsFile.model_validate(data), []
    except ValidationError as error:
        return None, [_fault(item) for item in error.errors(include_url=False)]


def _fault(error: Mapping[str, Any]) -> tuple[Path, str, bool]:
    place, sort, value = list(error["loc"]), error["type"], error["input"]
    # Drop what pydantic adds to the place: the form taken, and a mark behind a key.
    if place[0] == "hosts" and len(place) > 1:
        del place[1]
    elif place[0] == "mounts" and len(place) > 2:
        del place[2]
    at_key = sort == "extra_forbidden"
    if not at_key and len(place) > 1 and place[-1] == "[key]" and place[-2] != "[key]":
        at_key = True
        place.pop()
    path = tuple(place)
    if sort == "extra_forbidden":
        return path, _unknown(path), True
    if sort == "value_error":
        return path, str(error["ctx"]["error"]), at_key
    if sort == "missing":
        return path, f"is missing; {_REQUIRED[str(path[-1])]}", at_key
    return path, _wrong_sort(path, sort, value), at_key


def _unknown(path: Path) -> str:
    key = str(path[-1])
    model = HostsFile if len(path) == 1 else HostSettings if path[0] == "hosts" else MountSettings
    if model is HostsFile and key in _KEYS[HostSettings]:
        return f"belongs to a host; write it as hosts/NAME/{key}"
    if model is HostSettings and key in _KEYS[HostsFile]:
        return "belongs to the cluster; write it at the top level"
    return f"unknown key; {meant(key, _KEYS[model])}"


def _wrong_sort(path: Path, sort: str, value: object) -> str:
    env = path[2:] if path[0] == "hosts" else path
    if env[:1] == ("env",):  # may hold secrets: never shown
        should = "a mapping such as NAME: 'value'" if len(env) == 1 else "text"
        quotes = "; write '' for an empty value" if value is None else "; put it in quotes"
        hint = quotes if len(env) > 1 and not isinstance(value, dict | list) else ""
        return f"should be {should}, found {kind(value)}{hint}"
    if sort in ("union_tag_not_found", "union_tag_invalid"):
        return f"should be {_FORMS[str(path[0])]}, found {shown(value)}"
    if sort == "model_type":
        return f"should be settings such as 'address: 10.0.0.1', or nothing, found {shown(value)}"
    message = f"should be {_SORTS.get(sort, 'something else')}, found {shown(value)}"
    if value is None:
        return f"{message}; write a value or remove the key"
    if path == ("shm_size",):
        return f"{message}; write it with a unit, as in 8g"
    if sort == "string_type" and not isinstance(value, dict | list):
        return f"{message}; put it in quotes"
    if sort == "int_type" and isinstance(value, str) and value.isdecimal():
        return f"{message}; remove the quotes"
    return message
