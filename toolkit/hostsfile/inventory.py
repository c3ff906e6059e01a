"""The Inventory: hosts.yaml after validation, with all defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from toolkit.core.container import Mount, Ulimit
from toolkit.core.engines import DOCKER
from toolkit.protocol.names import DEFAULT_LOG_BYTES, DEFAULT_WORKER_PORT, MAIN, WORKER
from toolkit.protocol.transport import AUTO, EXEC, SSH


@dataclass(frozen=True)
class Host:
    """A machine that toolkit reaches by SSH.

    Args:
        name: the name in the file, the container's hostname, and the name that ranks resolve.
        address: the SSH address: a name, an address, or an alias of ``~/.ssh/config``.
        data_address: IPv4 address where ranks talk to each other; empty means: ask the host.
        user, port, identity_file, jump: empty (0 for the port) means: what ``ssh -G`` says.
        slots: room for ranks; None means one per GPU that the host has, or one without a GPU.
        gpus: declared number of GPUs; None means whatever the host has.
        gpu_ids: which ones, as indexes or UUIDs; empty means that only the number counts.
        env: variables for the ranks on this host, on top of the cluster's.
    """

    name: str
    address: str
    data_address: str = ""
    user: str = ""
    port: int = 0
    identity_file: str = ""
    jump: str = ""
    slots: int | None = None
    gpus: int | None = None
    gpu_ids: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class DataSet:
    """Files of this machine that are staged to a folder of every host, and seen in its container.

    Args:
        source: folder or file on this machine; relative to the hosts file's folder.
        path: folder on every host.
        target: folder inside the containers.
    """

    source: str
    path: str
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class Service:
    """An additional container on one host.

    Args:
        image: empty for the cluster's own.
        argv: empty for the command of the image.
        ports: where it listens, in its own network namespace.
        gpus: how many of the host's GPUs it gets.
        gpu_ids: which ones, as indexes or UUIDs; empty means that only the number counts.
        health: path of a URL on the first port; empty for none.
        start_within: seconds until ``health`` is to be answered.
        mounts: on top of the cluster's.
    """

    name: str
    host: str
    image: str = ""
    argv: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    gpus: int = 0
    gpu_ids: tuple[str, ...] = ()
    health: str = ""
    start_within: int = 120
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """One cluster.

    Args:
        main: the name of the host on which the launcher runs.
        engine: what runs containers on the hosts: docker or podman.
        transport: how ranks are started on workers, see ``toolkit.protocol.transport``.
        chosen_transport: ssh or exec, as `up` chose for auto; empty if it is not known yet.
        pull: ``never`` (the image is sent to hosts that lack it), ``missing`` or ``always``.
        hosts: in the file's order, main included.
        spares: names of hosts that take no ranks until a job is started again without one of its own.
        worker_port_fixed: True when the file names the port: then it is never moved.
        mounts: what containers see of the hosts' own files.
        data: what is staged to the hosts from here; see ``all_mounts``.
        secrets: variables and the files that hold their values; relative to the hosts file's folder.
        labels: more labels for every container.
        services: by name, in the file's order.
        log_bytes: the most that each log of a job takes on a disk.
        network: what ranks use between hosts: auto, ethernet, infiniband or efa.
        state_dir: folder on the hosts with one folder per SSH user; empty means the user's state directory.
        known_hosts: file with the hosts' ssh keys; empty means ``~/.ssh/known_hosts``.
        source: the hosts file's name.
    """

    cluster: str
    image: str
    main: str
    hosts: tuple[Host, ...]
    spares: tuple[str, ...] = ()
    worker_port: int = DEFAULT_WORKER_PORT
    worker_port_fixed: bool = False
    mounts: tuple[Mount, ...] = ()
    data: tuple[DataSet, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    secrets: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    ulimits: tuple[Ulimit, ...] = ()
    shm_bytes: int = 8 * 1024**3
    log_bytes: int = DEFAULT_LOG_BYTES
    launcher: str = "auto"
    network: str = "auto"
    state_dir: str = ""
    known_hosts: str = ""
    services: tuple[Service, ...] = ()
    engine: str = DOCKER
    transport: str = AUTO
    chosen_transport: str = ""
    pull: str = "never"
    # Two files with the same content describe the same cluster.
    source: str = field(default="", compare=False)

    @property
    def all_mounts(self) -> tuple[Mount, ...]:
        """The mounts of every container, those of data sets included."""
        return (*self.mounts, *(Mount(one.path, one.target, one.read_only) for one in self.data))

    @property
    def used_transport(self) -> str:
        """The transport of jobs, ssh or exec. For auto, ssh is assumed until `up` has chosen."""
        return (self.chosen_transport or SSH) if self.transport == AUTO else self.transport

    @property
    def in_parts(self) -> bool:
        """True if each host has a part of every job and reports it. Otherwise main reports for all."""
        return self.used_transport == EXEC

    @property
    def answering(self) -> tuple[str, ...]:
        """The hosts that report the jobs and their states."""
        return self.names if self.in_parts else (self.main,)

    def host(self, name: str) -> Host:
        """Return the host of that name.

        Raises:
            KeyError: no host has this name.
        """
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    def services_on(self, host: str) -> tuple[Service, ...]:
        """Return the services of a host."""
        return tuple(service for service in self.services if service.host == host)

    def service(self, name: str) -> Service:
        """Return the service of that name.

        Raises:
            KeyError: no service has this name.
        """
        for service in self.services:
            if service.name == name:
                return service
        raise KeyError(name)

    def role(self, name: str) -> str:
        """Return ``main`` or ``worker``."""
        return MAIN if name == self.main else WORKER

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name != self.main)
