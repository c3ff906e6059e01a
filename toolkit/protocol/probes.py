"""Answers of probes: about a host's user, and of test containers and images, toolkit/container/check/."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from toolkit.protocol.decode import Number, Text
from toolkit.protocol.jobs import Count, Line, Lines, Moment

Port = Annotated[int, Number(1, 65535)]


@dataclass(frozen=True)
class Listening:
    """Ports on which a container listens, by kind."""

    ports: dict[str, Port]


@dataclass(frozen=True)
class Tried:
    """A connection: ``sent`` counts the pieces of a large message, ``seen`` is the address that was seen."""

    answer: str = ""
    sent: int | None = None
    seen: str | None = None


@dataclass(frozen=True)
class Limits:
    """Soft limits, -1 for none; ``memlock`` in bytes."""

    memlock: int = -1
    nofile: int = -1


@dataclass(frozen=True)
class Login:
    """A login of main at a worker: its limits there, or the error."""

    error: Line = ""
    memlock: int | None = None
    nofile: int | None = None


@dataclass(frozen=True)
class ImageReport:
    """The findings of container/check/image_probe.py about an image.

    Args:
        executable: path of python3.
        python: its version.
        versions: of Python packages and libraries by name, such as torch and libmpi.
        lacks: programs, and Python packages as ``python:NAME``, that the image does not have.
        mpirun: first line of ``mpirun --version``.
        cuda: CUDA version of torch's build; empty for a CPU build.
        nccl: version of NCCL.
        compiler: path of a C compiler; empty without a compiler.
        headers: True if Python.h is in the image.
    """

    executable: Line
    python: tuple[Count, Count, Count]
    versions: dict[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    mpirun: Line = ""
    cuda: Line = ""
    nccl: Line = ""
    compiler: Line = ""
    headers: bool = False


@dataclass(frozen=True)
class LookReport:
    """The findings of a container: connections by host and kind of port, mounts by path in the container.

    Args:
        gpus: lines of nvidia-smi, one for each GPU and MIG device; None without nvidia-smi.
        gpu_error: why the GPUs are not known; empty if they are.
        lacks: programs that the image does not have.
        shared: hosts whose files are on a mount.
        faults: why it cannot listen, by kind of port.
        taken: the kinds of these ports that another socket has.
        now: its clock.
    """

    pairs: dict[str, dict[str, Tried]] = field(default_factory=dict)
    shm: int = 0
    limits: Limits = Limits()
    versions: dict[str, str] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    gpus: Lines | None = None
    gpu_error: Line = ""
    lacks: tuple[str, ...] = ()
    shared: dict[str, tuple[str, ...]] = field(default_factory=dict)
    mounts: dict[str, Line] = field(default_factory=dict)
    faults: dict[str, Line] = field(default_factory=dict)
    taken: tuple[str, ...] = ()
    logins: dict[str, Login] = field(default_factory=dict)
    now: Moment = 0.0


_Name = Annotated[str, Text(most=256)]
_Id = Annotated[int, Number(0, 2**32 - 1)]
_Folder = Annotated[str, Text(pattern="(/.*)?")]


@dataclass(frozen=True)
class Who:
    """The SSH user: ``groups`` are ids and names, ``state`` the folder above those of toolkit."""

    user: _Name
    uid: _Id
    gid: _Id
    groups: tuple[tuple[_Id, _Name], ...]
    home: _Folder
    state: _Folder
