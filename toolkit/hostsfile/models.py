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
from toolkit.protocol.transport import AUTO, TRANSPORTS


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
    """Settings of one host."""

    address: Address = _absent(
        str, "SSH address: DNS name, IPv4 address or SSH alias (default: the host's name)."
    )
    data_address: DataAddress = _absent(
        str, "IPv4 address at which ranks reach this host (default: toolkit selects the address)."
    )
    user: User = _absent(str, "SSH user (default: as in the SSH configuration).")
    port: Port = _absent(int, "SSH port of the host (default: as in the SSH configuration).")
    identity_file: IdentityFile = _absent(
        str,
        "Path of the private SSH key on your machine; '~' is your home folder (default: as in the SSH "
        "configuration).",
    )
    jump: Jump = _absent(
        str,
        "Jump hosts for SSH, separated by ',': [user@]host[:port] (default: as in the SSH configuration).",
    )
    slots: Count = _absent(
        int, "Number of slots (default: one per GPU, or 1 without GPUs). Only the main host can have 0 slots."
    )
    gpus: Gpus = _absent(
        int,
        "GPUs for ranks: a number N for the first N GPUs, or a list of indexes or UUIDs (default: all GPUs).",
    )
    env: Env | None = _absent(
        dict,
        "Environment variables for the ranks on this host. A variable of a host overrides a variable of the "
        "same name in the top-level `env`.",
    )


class MountSettings(_Strict):
    """A folder or file of each host that toolkit mounts in the containers."""

    source: MountSource = Field(description="Absolute path of the folder or file on the hosts.")
    target: MountTarget = Field(description="Absolute path of the folder or file in the containers.")
    read_only: bool = Field(default=False, description="Mount the source read-only.")


class DataSettings(_Strict):
    """Files of your machine that toolkit copies to a folder of every host and mounts in the containers."""

    source: DataSource = Field(
        description="Folder or file on your machine; a relative path is relative to hosts.yaml."
    )
    path: DataPath = Field(
        description="Absolute path of the copy: a folder on every host, preferably on a local disk."
    )
    target: MountTarget = Field(description="Absolute path of the copy in the containers.")
    read_only: bool = Field(default=True, description="Mount the data read-only.")


class ImageSettings(_Strict):
    """The image of the containers, and its source."""

    name: Image = Field(description="Name of the image.")
    pull: Pull = Field(
        default="never",
        description="never: toolkit sends the image from your machine. missing: hosts without the image pull "
        "it. always: hosts pull the image at every `up` and `image send`.",
    )


class LimitSettings(_Strict):
    """Soft and hard value of a limit."""

    soft: Limit = Field(description="Soft limit, which applies when a process starts.")
    hard: Limit = Field(description="Hard limit, the maximum to which a process can raise the soft limit.")


Words = Annotated[list[str], Field(min_length=1)]
CommandItem = Annotated[Annotated[CommandText, _TEXT] | Annotated[Words, _LIST], _ONE_OF]
MountItem = Annotated[Annotated[MountText, _TEXT] | Annotated[MountSettings, _MAPPING], _ONE_OF]


class ServiceSettings(_Strict):
    """An additional container, for example TensorBoard, a notebook or an inference server."""

    image: Image = _absent(str, "Image of the service (default: the image of the cluster).")
    command: CommandItem = _absent(
        str,
        "Command as a list of words, or as text with shell quoting. Required if `image` is not set (default: "
        "the command of the image).",
    )
    host: HostName = _absent(str, "Host of the service (default: the main host).")
    ports: list[Port] | None = _absent(
        list,
        "Ports of the service in the container. toolkit does not publish the ports on the host. "
        "`toolkit forward` makes the ports available on your machine.",
    )
    gpus: Gpus = _absent(int, "Number of GPUs of the service, or a list of GPUs (default: 0).")
    health: Health = _absent(
        str, "URL path on the first port. The service is ready when the path returns HTTP status 200 to 399."
    )
    start_within: StartWithin = Field(
        default=120, description="Seconds from the start of the container until `health` must succeed."
    )
    env: Env | None = _absent(
        dict,
        "Environment variables of the service; each value is text. The service does not receive the "
        "variables of ranks.",
    )
    mounts: list[MountItem] | None = _absent(
        list,
        "Mounts of the service, each /source:/target[:ro] or a mapping. The service also has the cluster's "
        "mounts.",
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
    """hosts.yaml: the hosts of one cluster and the settings of its containers."""

    cluster: Cluster = Field(description="Name of the cluster, also used in container and folder names.")
    image: ImageItem = Field(
        description="Image of main and worker containers, and default image of services: a name, or a "
        "mapping with `name` and `pull`."
    )
    main: HostName = _absent(str, "Host of the main container (default: the first host).")
    hosts: Hosts = Field(description="Hosts: a mapping of names to settings, or a list of names.")
    spares: list[HostName] | None = _absent(
        list,
        "Spare hosts: `toolkit run` uses a spare host only to replace a host after a failure, or if `--only` "
        "names the spare host.",
    )
    worker_port: WorkerPort = Field(
        default=DEFAULT_WORKER_PORT,
        description="Port of sshd in the worker containers. If `worker_port` is not set and the default "
        "port is busy, toolkit uses another port.",
    )
    mounts: list[MountItem] | None = _absent(
        list,
        "Folders or files on the hosts that toolkit mounts in all containers, each /source:/target[:ro] or a "
        "mapping.",
    )
    data: list[DataSettings] | None = _absent(
        list, "Data that `up` and `data send` copy from your machine to the hosts."
    )
    env: Env | None = _absent(dict, "Environment variables of all ranks; each value is text.")
    secrets: dict[EnvName, SecretFile] | None = _absent(
        dict,
        "Environment variables of all ranks, each with the content of a file on your machine. Relative paths "
        "are relative to hosts.yaml.",
    )
    labels: dict[LabelName, LabelValue] | None = _absent(dict, "Additional labels for every container.")
    ulimits: dict[LimitName, LimitItem] | None = _absent(
        dict,
        "Limits of processes in main and worker containers: a number, unlimited, or a soft and a hard limit "
        "(default: unlimited memlock on hosts with RDMA devices).",
    )
    shm_size: ShmSize = Field(
        default="8g",
        description="Size of the shared memory (/dev/shm) through which data loaders pass batches.",
    )
    log_size: LogSize = Field(
        default="64m",
        description="Maximum size of the log of each rank, and of the job log.",
    )
    launcher: Launcher = Field(
        default="auto",
        description="Program that starts the ranks. auto selects the launcher for the distributed-training "
        "library that the script imports, or python if the script imports none.",
    )
    engine: Engine = Field(default="docker", description="Container engine of the hosts.")
    transport: Transport = Field(
        default=AUTO,
        description="Method to start ranks on worker hosts. ssh uses sshd in the worker containers. exec "
        "uses neither sshd nor SSH keys in containers. auto selects ssh if the image contains sshd and ssh, "
        "otherwise exec.",
    )
    network: Network = Field(
        default="auto",
        description="Network between ranks. auto selects InfiniBand, RoCE or EFA if all hosts support "
        "this network, otherwise TCP. infiniband requires InfiniBand or RoCE on every host, "
        "efa requires EFA on every host, and ethernet disables RDMA.",
    )
    services: dict[ServiceName, ServiceSettings] | None = _absent(
        dict,
        "Additional containers, by name.",
    )
    state_dir: StateDir = _absent(
        str,
        "Folder for SSH keys and job records, on a local disk of each host (default: in the home folder of "
        "the SSH user).",
    )
    known_hosts: LocalPath = _absent(
        str, "File with SSH host keys (default: the files in the SSH configuration)."
    )


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

# Faults with a search for the name that was meant; more than are printed.
_MOST_HINTS = 1000


def validate(data: Mapping[str, Any]) -> tuple[HostsFile | None, list[tuple[Path, str, bool]]]:
    """Return the model, or None and every fault as (path, message, whether the key itself is at fault)."""
    try:
        return HostsFile.model_validate(data), []
    except ValidationError as error:
        items = enumerate(error.errors(include_url=False))
        return None, [fault(item, _KEYS, _MODEL_OF, number < _MOST_HINTS) for number, item in items]
