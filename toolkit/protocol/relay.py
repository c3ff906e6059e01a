"""Messages of programs that take part in a transfer: container/transfer/{relay,data_set,image_layers}.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from toolkit.protocol.decode import Items, Number, Text
from toolkit.protocol.jobs import Line
from toolkit.protocol.probes import Port

Chunk = Annotated[int, Number(0, 2**40)]  # the number of one
Bytes = Annotated[int, Number(0)]


@dataclass(frozen=True)
class RelayMessage:
    """One message; the fields with a value determine its kind.

    Args:
        missing: reason that the program cannot run on the host.
        ready: the program runs; ``zstd`` is true if it can decompress Zstandard.
        port: port on which it listens for other hosts.
        loaded: number of the item that was stored, with its ``status``; ``said`` is the output.
        at, limit: the chunk that it needs next, and the first chunk that must not be sent yet.
        busy: it processes less than it receives. ``wire`` counts the received bytes.
        takes: the host from which it receives now.
        lost: the host that it lost; ``begun`` is true if that host received anything, ``gone`` is the first
            chunk still in memory, if that host needs an earlier chunk.
    """

    missing: Line | None = None
    ready: bool = False
    zstd: bool = False
    port: Port | None = None
    loaded: Annotated[int, Number(0, 2**32)] | None = None
    status: int = 0
    said: Line = ""
    at: Chunk | None = None
    limit: Chunk | None = None
    busy: bool = False
    wire: Bytes = 0
    takes: str | None = None
    lost: str | None = None
    begun: bool = False
    gone: Chunk | None = None
    why: Line = ""


@dataclass(frozen=True)
class NoProgram:
    """The reason that a program cannot run on a host."""

    missing: Line


@dataclass(frozen=True)
class DataSeen:
    """A folder of a data set: numbers of missing shards, its mark, free bytes and files (-1: unknown).

    Args:
        unknown: the folder is not empty, and no account lists its files.
    """

    missing: Annotated[tuple[Annotated[int, Number(0, 2**32)], ...], Items(1 << 22)]
    set: str
    free: Bytes
    inodes: Annotated[int, Number(-1)]
    unknown: bool = False


@dataclass(frozen=True)
class DataDone:
    """Files of a data set that were removed, that others changed, and that are not toolkit's."""

    gone: Bytes
    stay: Bytes
    left: Bytes = 0


@dataclass(frozen=True)
class LayersSeen:
    """An image in the engine of this machine: its config in base64, and sizes of its layers."""

    config: Annotated[str, Text(most=1 << 24)]
    sizes: tuple[Bytes, ...]
