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

from toolkit.core.engines import ENGINES
from toolkit.hostsfile import fields
from toolkit.hostsfile.errors import FORM, Path, fault
from toolkit.protocol.names import DEFAULT_WORKER_PORT
from toolkit.protocol.transport import SSH, TRANSPORTS


def _text(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


def _range(least: int, most: int) -> tuple[AfterValidator, WithJsonSchema]:
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return AfterValidator(lambda number: fields.between(number, least, most)), WithJsonSchema(schema)


def _mount(text: str) -> str:
    fields.mount(text)
    return text


_PORT, _WORKER_PORT, _COUNT = _range(1, 65535), _range(1024, 65535), _range(0, 1024)
_START = _range(1, 86400)
_MAPPING, _LIST, _TEXT, _NUMBER = (Tag(f"{FORM}{form}") for form in ("mapping", "list", "text", "number"))

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
StartWithin = Annotated[int, _START[0], _START[1]]
ShmSize = Annotated[str, AfterValidator(fields.shm_size), _text(fields.SHM_SIZE)]
LogSize = Annotated[str, AfterValidator(fields.log_size), _text(fields.SHM_SIZE)]
Launcher = Annotated[
    str,
    AfterValidator(fields.launcher),
    WithJsonSchema({"type": "string", "enum": list(fields.LAUNCHER_NAMES)}),
]
EnvName = Annotated[str, AfterValidator(fields.env_name), _text(fields.ENV_NAME)]
Env = dict[EnvName, str]
Network = Annotated[
    str, AfterValidator(fields.network), WithJsonSchema({"type": "string", "enum": list(fields.NETWORKS)})
]
Engine = Annotated[
    str, AfterValidator(fields.engine), WithJsonSchema({"type": "string", "enum": list(ENGINES)})
]
Transport = Annotated[
    str, AfterValidator(fields.transport), WithJsonSchema({"type": "string", "enum": list(TRANSPORTS)})
]
MountSource = Annotated[str, AfterValidator(fields.mount_source)]
StateDir = Annotated[str, AfterValidator(fields.state_dir), _text("/.+")]
MountTarget = Annotated[str, AfterValidator(fields.mount_target)]
MountText = Annotated[str, AfterValidator(_mount), _text(fields.MOUNT)]
DataSource = Annotated[str, AfterValidator(fields.data_source)]
DataPath = Annotated[str, AfterValidator(fields.data_path)]
SecretFile = Annotated[str, AfterValidator(fields.secret_file)]
Pull = Annotated[
    str,
    AfterValidator(fields.pull),
    WithJsonSchema({"type": "string", "enum": list(fields.PULLS)}),
]
LimitName = Annotated[
    str,
    AfterValidator(fields.ulimit_name),
    WithJsonSchema({"type": "string", "enum": list(fields.ULIMITS)}),
]
LimitNumber = Annotated[
    int, AfterValidator(fields.limit_number), WithJsonSchema({"type": "integer", "minimum": 0})
]
LimitText = Annotated[
    str,
    AfterValidator(fields.limit_text),
    WithJsonSchema({"const": fields.UNLIMITED}),
]
GpuId = Annotated[str, AfterValidator(fields.gpu_id), _text(fields.GPU_ID)]
LabelName = Annotated[str, AfterValidator(fields.label_name), _text(fields.LABEL)]
ServiceName = Annotated[str, AfterValidator(fields.service_name), _text(fields.SERVICE_NAME)]
Health = Annotated[str, AfterValidator(fields.health), _text(fields.HEALTH)]
CommandText = Annotated[str, AfterValidator(fields.command)]
LabelValue = Annotated[str, AfterValidator(fields.label_value)]


def _form(value: Any) -> str | None:
    """Mark the form in which a value is written, as one element of an error's place."""
    if isinstance(value, dict):
        return _MAPPING.tag
    if isinstance(value, list):
        return _LIST.tag
    if isinstance(value, str):
        return _TEXT.tag
    return _NUMBER.tag if type(value) is int else None


_ONE_OF = Discriminator(_form)
Limit = Annotated[Annotated[LimitNumber, _NUMBER] | Annotated[LimitText, _TEXT], _ONE_OF]
Gpu = Annotated[Annotated[Count, _NUMBER] | Annotated[GpuId, _TEXT], _ONE_OF]
Gpus = Annotated[Annotated[Count, _NUMBER] | Annotated[list[Gpu], _LIST], _ONE_OF]


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
    gpus: Gpus = _absent(
        int, "How many GPUs the host must have and gives, or which: indexes or UUIDs. All it has if absent."
    )
    env: Env | None = _absent(dict, "Variables for the ranks on this host, on top of the cluster's.")


class MountSettings(_Strict):
    """A folder or file of each host, seen in its container."""

    source: MountSource = Field(description="Absolute path on the hosts.")
    target: MountTarget = Field(description="Absolute path in the containers.")
    read_only: bool = Field(default=False, description="Whether ranks may only read it.")


class DataSettings(_Strict):
    """Files of this machine that are staged to a folder of every host, and seen in its container."""

    source: DataSource = Field(description="Folder or file on this machine; starts at this file's folder.")
    path: DataPath = Field(description="Absolute path of a folder on every host, best on a local disk.")
    target: MountTarget = Field(description="Absolute path in the containers.")
    read_only: bool = Field(default=True, description="Whether ranks may only read it.")


class ImageSettings(_Strict):
    """The image, and who brings it to the hosts."""

    name: Image = Field(description="The image that every container is made from.")
    pull: Pull = Field(
        default="never",
        description="never: it is sent to hosts that lack it. missing: they pull it. always: every up pulls.",
    )


class LimitSettings(_Strict):
    """Both ends of a limit."""

    soft: Limit = Field(description="The limit that processes start with.")
    hard: Limit = Field(description="How far a process may raise it.")


Words = Annotated[list[str], Field(min_length=1)]
CommandItem = Annotated[Annotated[CommandText, _TEXT] | Annotated[Words, _LIST], _ONE_OF]
MountItem = Annotated[Annotated[MountText, _TEXT] | Annotated[MountSettings, _MAPPING], _ONE_OF]


class ServiceSettings(_Strict):
    """A container beside training: TensorBoard, a notebook, an inference server."""

    image: Image = _absent(str, "The image it is made from; the cluster's if absent.")
    command: CommandItem = _absent(
        str, "What it executes: words, or text that is split at blanks; what the image says if absent."
    )
    host: HostName = _absent(str, "The host that it runs on; main if absent.")
    ports: list[Port] | None = _absent(
        list, "Its ports in its container. Reach them with `toolkit forward`; they are not published."
    )
    gpus: Gpus = _absent(int, "How many of the host's GPUs it is given, or which. None if absent.")
    health: Health = _absent(str, "Path of a URL on its first port, answered with 200 to 399 once it serves.")
    start_within: StartWithin = Field(
        default=120, description="Seconds for that, from the start of its container on."
    )
    env: Env | None = _absent(dict, "Variables for it; values are text. Ranks' variables are not for it.")
    mounts: list[MountItem] | None = _absent(
        list, "What it sees of its host's files, on top of what ranks do: /source:/target[:ro]."
    )


Hosts = Annotated[
    Annotated[dict[HostName, HostSettings | None], _MAPPING] | Annotated[list[HostName], _LIST], _ONE_OF
]
ImageItem = Annotated[Annotated[Image, _TEXT] | Annotated[ImageSettings, _MAPPING], _ONE_OF]
LimitItem = Annotated[
    Annotated[LimitNumber, _NUMBER] | Annotated[LimitText, _TEXT] | Annotated[LimitSettings, _MAPPING],
    _ONE_OF,
]


class HostsFile(_Strict):
    """hosts.yaml: the machines of one cluster and what its containers are like."""

    cluster: Cluster = Field(description="The cluster's name, part of container and folder names.")
    image: ImageItem = Field(
        description="The image that every container is made from: its name, or a mapping with name and pull."
    )
    main: HostName = _absent(str, "The host where the launcher runs; the first one if absent.")
    hosts: Hosts = Field(description="The machines: a mapping of names to settings, or a list of names.")
    spares: list[HostName] | None = _absent(
        list, "Hosts that take no ranks until a job is started again without one of its own."
    )
    worker_port: WorkerPort = Field(
        default=DEFAULT_WORKER_PORT,
        description="The port of the workers' sshd. Written here it is never moved, even when it is busy.",
    )
    mounts: list[MountItem] | None = _absent(
        list, "What ranks see of the hosts' files: /source:/target[:ro]."
    )
    data: list[DataSettings] | None = _absent(
        list, "Data that `up` and `data send` bring from this machine to the hosts."
    )
    env: Env | None = _absent(dict, "Variables for all ranks; values are text.")
    secrets: dict[EnvName, SecretFile] | None = _absent(
        dict, "Variables for all ranks whose values are in files here; paths start at this file's folder."
    )
    labels: dict[LabelName, LabelValue] | None = _absent(dict, "More labels for every container.")
    ulimits: dict[LimitName, LimitItem] | None = _absent(
        dict, "Limits of the containers' processes: a number, unlimited, or soft and hard."
    )
    shm_size: ShmSize = Field(default="8g", description="Size of /dev/shm, which data loaders share.")
    log_size: LogSize = Field(
        default="64m", description="The most that one log of a job takes on a disk: each rank's, the merged."
    )
    launcher: Launcher = Field(
        default="auto",
        description="The program that starts the ranks. auto chooses by the script's imports; without a "
        "library that connects ranks it chooses python.",
    )
    engine: Engine = Field(default="docker", description="What runs containers on the hosts.")
    transport: Transport = Field(
        default=SSH,
        description="How ranks are started on workers: ssh, or exec: no sshd and no key in any container.",
    )
    network: Network = Field(default="auto", description="What ranks use between hosts beside plain TCP.")
    services: dict[ServiceName, ServiceSettings] | None = _absent(
        dict, "Containers beside training, by name; reached by `toolkit forward`."
    )
    state_dir: StateDir = _absent(
        str, "Folder on the hosts' local disks; keys and jobs go to one per user there, not to the home."
    )
    known_hosts: LocalPath = _absent(str, "File with the hosts' ssh keys; ~/.ssh/known_hosts if absent.")


_MODELS: dict[str, type[_Strict]] = {
    "": HostsFile,
    "hosts": HostSettings,
    "mounts": MountSettings,
    "data": DataSettings,
    "image": ImageSettings,
    "ulimits": LimitSettings,
    "services": ServiceSettings,
}
_MODEL_OF = {key: model.__name__ for key, model in _MODELS.items()}
_KEYS = {model.__name__: tuple(model.model_fields) for model in _MODELS.values()}


def validate(data: Mapping[str, Any]) -> tuple[HostsFile | None, list[tuple[Path, str, bool]]]:
    """Return the model, or None and every fault as (path, message, whether the key itself is at fault)."""
    try:
        return HostsFile.model_validate(data), []
    except ValidationError as error:
        return None, [fault(item, _KEYS, _MODEL_OF) for item in error.errors(include_url=False)]
