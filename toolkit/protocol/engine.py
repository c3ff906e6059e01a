"""Answers of container engines: ``info``, ``inspect`` of containers and of images, and image configs.

Fields as in https://docs.docker.com/reference/api/engine/; null means an empty list or object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from toolkit.protocol.decode import Key, Number, OrEmpty, Text

# Names, labels and variables come from users and images, and have any content.
Any_ = Annotated[str, Text(most=1 << 20, any=True)]
Texts = tuple[Any_, ...]
Bytes = Annotated[int, Number(0)]
_Labels = dict[Any_, Any_]


@dataclass(frozen=True)
class Device:
    """A device that the engine can pass to containers by CDI."""

    id: Annotated[Any_, Key("ID")] = ""


@dataclass(frozen=True)
class Containerd:
    """The containerd that the engine uses; ``address`` is the address of its socket."""

    address: Annotated[Any_, Key("Address")] = ""


@dataclass(frozen=True)
class Registries:
    mirrors: Annotated[Texts | None, Key("Mirrors")] = None


@dataclass(frozen=True)
class EngineInfo:
    """The answer of ``docker info``.

    Args:
        engine: docker or podman; not part of the answer.
    """

    version: Annotated[Any_, Key("ServerVersion")] = ""
    driver: Annotated[Any_, Key("Driver")] = ""
    driver_status: Annotated[tuple[Texts, ...] | None, Key("DriverStatus")] = None
    root: Annotated[Any_, Key("DockerRootDir")] = ""
    security_options: Annotated[Texts | None, Key("SecurityOptions")] = None
    default_runtime: Annotated[Any_, Key("DefaultRuntime")] = ""
    runtimes: Annotated[dict[Any_, object] | None, Key("Runtimes")] = None
    logging_driver: Annotated[Any_, Key("LoggingDriver")] = ""
    cgroup_driver: Annotated[Any_, Key("CgroupDriver")] = ""
    cgroup_version: Annotated[Any_, Key("CgroupVersion")] = ""
    name: Annotated[Any_, Key("Name")] = ""
    system: Annotated[Any_, Key("OperatingSystem")] = ""
    errors: Annotated[Texts | None, Key("ServerErrors")] = None
    cdi_folders: Annotated[Texts | None, Key("CDISpecDirs")] = None
    devices: Annotated[tuple[Device, ...] | None, Key("DiscoveredDevices")] = None
    id: Annotated[Any_, Key("ID")] = ""
    containerd: Annotated[Containerd | None, Key("Containerd")] = None
    registries: Annotated[Registries | None, Key("RegistryConfig")] = None
    http_proxy: Annotated[Any_, Key("HttpProxy")] = ""
    https_proxy: Annotated[Any_, Key("HttpsProxy")] = ""
    engine: str = "docker"

    @property
    def is_rootless(self) -> bool:
        return any("rootless" in option for option in self.security_options or ())

    @property
    def uses_selinux(self) -> bool:
        """True if the engine labels containers for SELinux."""
        return "name=selinux" in (self.security_options or ())

    @property
    def uses_containerd(self) -> bool:
        """True if containerd stores the images."""
        return any("io.containerd.snapshotter" in " ".join(pair) for pair in self.driver_status or ())


@dataclass(frozen=True)
class PodmanSecurity:
    rootless: bool = False
    rootless_enabled: Annotated[bool, Key("rootlessEnabled")] = False
    selinux_enabled: Annotated[bool, Key("selinuxEnabled")] = False


@dataclass(frozen=True)
class PodmanRuntime:
    name: Any_ = ""


@dataclass(frozen=True)
class PodmanHost:
    security: PodmanSecurity | None = None
    runtime: Annotated[PodmanRuntime | None, Key("ociRuntime")] = None
    log_driver: Annotated[Any_, Key("logDriver")] = ""
    cgroup_manager: Annotated[Any_, Key("cgroupManager")] = ""
    cgroup_version: Annotated[Any_, Key("cgroupVersion")] = ""
    hostname: Any_ = ""


@dataclass(frozen=True)
class PodmanStore:
    driver: Annotated[Any_, Key("graphDriverName")] = ""
    root: Annotated[Any_, Key("graphRoot")] = ""


@dataclass(frozen=True)
class PodmanVersion:
    version: Annotated[Any_, Key("Version")] = ""


@dataclass(frozen=True)
class PodmanInfo:
    """The answer of ``podman info``."""

    host: PodmanHost
    store: PodmanStore
    version: PodmanVersion | None = None


@dataclass(frozen=True)
class ContainerState:
    """State of a container; times are RFC 3339 texts."""

    status: Annotated[Any_, Key("Status")] = ""
    running: Annotated[bool, Key("Running")] = False
    paused: Annotated[bool, Key("Paused")] = False
    out_of_memory: Annotated[bool, Key("OOMKilled")] = False
    exit_code: Annotated[Annotated[int, Number(-(2**31), 2**32)] | None, Key("ExitCode")] = None
    error: Annotated[Any_, Key("Error")] = ""
    started: Annotated[Any_ | None, Key("StartedAt")] = None
    finished: Annotated[Any_ | None, Key("FinishedAt")] = None


@dataclass(frozen=True)
class ContainerConfig:
    labels: Annotated[_Labels | None, Key("Labels")] = None


@dataclass(frozen=True)
class ContainerMount:
    """A mount of a container; ``source`` is a path of the host."""

    source: Annotated[Any_, Key("Source")] = ""


@dataclass(frozen=True)
class ContainerInspect:
    """An object of ``docker inspect``."""

    id: Annotated[Any_, Key("Id")] = ""
    name: Annotated[Any_, Key("Name")] = ""
    image: Annotated[Any_, Key("Image")] = ""
    state: Annotated[ContainerState | None, Key("State")] = None
    config: Annotated[ContainerConfig | None, Key("Config")] = None
    mounts: Annotated[tuple[ContainerMount, ...] | None, Key("Mounts")] = None


@dataclass(frozen=True)
class Healthcheck:
    """The health check of an image; times in nanoseconds, 0 for the engine's default."""

    test: Annotated[Texts | None, Key("Test"), OrEmpty()] = None
    interval: Annotated[int, Key("Interval")] = 0
    timeout: Annotated[int, Key("Timeout")] = 0
    start_period: Annotated[int, Key("StartPeriod")] = 0
    retries: Annotated[int, Key("Retries")] = 0


@dataclass(frozen=True)
class ImageConfig:
    """The part of an image's config that engines apply to a container made from the image.

    Engine versions differ in the value of an absent field: null, "", [] or {}. ``toolkit.core.image`` gives
    the reason for each field that is left out.
    """

    env: Annotated[Texts | None, Key("Env"), OrEmpty()] = None
    entrypoint: Annotated[Texts | None, Key("Entrypoint"), OrEmpty()] = None
    cmd: Annotated[Texts | None, Key("Cmd"), OrEmpty()] = None
    workdir: Annotated[Any_ | None, Key("WorkingDir"), OrEmpty()] = None
    user: Annotated[Any_ | None, Key("User"), OrEmpty()] = None
    labels: Annotated[_Labels | None, Key("Labels"), OrEmpty()] = None
    stop_signal: Annotated[Any_ | None, Key("StopSignal"), OrEmpty()] = None
    volumes: Annotated[dict[Any_, object] | None, Key("Volumes"), OrEmpty()] = None
    exposed_ports: Annotated[dict[Any_, object] | None, Key("ExposedPorts"), OrEmpty()] = None
    healthcheck: Annotated[Healthcheck | None, Key("Healthcheck"), OrEmpty()] = None


@dataclass(frozen=True)
class RootFs:
    """Digests of uncompressed layers, base first."""

    layers: Annotated[Texts | None, Key("Layers")] = None


@dataclass(frozen=True)
class Metadata:
    tagged: Annotated[Any_ | None, Key("LastTagTime")] = None


@dataclass(frozen=True)
class ImageInspect:
    """An object of ``docker image inspect``."""

    id: Annotated[Any_, Key("Id")] = ""
    os: Annotated[Any_ | None, Key("Os")] = None
    arch: Annotated[Any_ | None, Key("Architecture")] = None
    config: Annotated[ImageConfig | None, Key("Config")] = None
    rootfs: Annotated[RootFs | None, Key("RootFS")] = None
    tags: Annotated[Texts | None, Key("RepoTags")] = None
    digests: Annotated[Texts | None, Key("RepoDigests")] = None
    size: Annotated[Bytes | None, Key("Size")] = None
    created: Annotated[Any_ | None, Key("Created")] = None
    metadata: Annotated[Metadata | None, Key("Metadata")] = None


@dataclass(frozen=True)
class OciRootFs:
    diff_ids: Texts | None = None


@dataclass(frozen=True)
class OciConfig:
    """The config file of an image: https://github.com/opencontainers/image-spec/blob/main/config.md."""

    os: Any_ | None = None
    architecture: Any_ | None = None
    config: ImageConfig | None = None
    rootfs: OciRootFs | None = None
