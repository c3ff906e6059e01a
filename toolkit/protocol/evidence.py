"""Answers of toolkit/container/diagnose/inspect_ranks.py: the state of a job's ranks on a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from toolkit.protocol.account import Rank
from toolkit.protocol.decode import Items, Number, Text
from toolkit.protocol.jobs import Count, ExitCode, JobId, Line, Lines, Moment, Record, check_slots

MOST_BYTES = 1 << 26  # of an answer: dumps of NCCL's flight recorder are part of it
Output = Annotated[str, Text(most=1 << 22, any=True)]
Blob = Annotated[str, Text(most=1 << 26)]
Pid = Annotated[int, Number(0, 2**31)]


@dataclass(frozen=True)
class StackFrame:
    """A frame of a Python stack, with its line of source."""

    name: Line
    file: Line
    line: int
    text: Line | None = ""
    handler: bool | None = False


@dataclass(frozen=True)
class ThreadStack:
    """A thread, whether it is the first of its process, and its frames, the innermost first."""

    first: bool = False
    frames: tuple[StackFrame, ...] = ()


@dataclass(frozen=True)
class SeenProcess:
    """A process; ``states`` are those of two samples, ``woken`` counts the wakeups in between."""

    pid: Pid
    state: Line
    parent: Pid = 0
    name: Line = ""
    states: Line | None = None
    call: Line = ""
    target: Line = ""
    cpu: float = 0.0
    threads_seen: tuple[ThreadStack, ...] | None = ()
    no_stack: Line = ""
    moved: bool | None = False
    woken: int = 0


@dataclass(frozen=True)
class SeenRank:
    """A rank; ``age``: seconds since its last output, ``dumps``: files in base64.

    Args:
        started: its last start on this host, in seconds since the epoch; None in older reports.
        oom: whether the kernel killed it because memory ran out; None if this is not known.
    """

    rank: Rank
    started: Moment | None = None
    age: float | None = None
    lines: Lines = ()
    tail: Output = ""
    exit_code: ExitCode | None = None
    oom: bool | None = None
    processes: tuple[SeenProcess, ...] = ()
    dumps: dict[str, Blob] | None = None


@dataclass(frozen=True)
class Socket:
    """A TCP connection of a process; ``unsent`` and ``unread`` in bytes."""

    pid: Pid
    peer: str
    state: str = ""
    unsent: int = 0
    unread: int = 0
    retries: int = 0


@dataclass(frozen=True)
class GpuUse:
    """A GPU, in the words of nvidia-smi."""

    index: str = ""
    busy: str = ""
    watts: str = ""
    mib: str = ""


@dataclass(frozen=True)
class PlacedHost:
    """A host of a job, with its data address."""

    name: str
    address: str = ""
    slots: Count = 0


@dataclass(frozen=True)
class AboutJob:
    """The job as recorded on the host."""

    id: JobId
    hosts: tuple[PlacedHost, ...] | None = ()
    owner: Line | None = ""
    launcher: Line | None = ""
    command: Lines | None = ()

    @property
    def record(self) -> Record:
        return Record(self.owner, self.launcher, self.command)


@dataclass(frozen=True)
class Inspected:
    """The inspection of one host, or its ``error``; see ``HostSeen`` for ``is_predicate``."""

    host: str = ""
    error: Line | None = ""
    job: AboutJob | None = None
    ranks: tuple[SeenRank, ...] = ()
    sockets: tuple[Socket, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    gpu_error: Line | None = ""
    ras: Output | None = ""
    oom_kills: int | None = 0
    py_spy: bool | None = False
    output: Output | None = ""
    lease: Output | None = ""
    is_predicate: bool | None = False


@dataclass(frozen=True)
class Kept:
    """An inspection that a watchdog saved: its time, its reason, and the result of each host.

    Args:
        slots: hosts of the job at that time in rank order, with their slots; None in older files.
        over: whether the ranks have continued since.
    """

    hosts: tuple[Inspected, ...]
    at: Moment = 0.0
    why: Line | None = ""
    slots: dict[str, Annotated[tuple[Count, ...], Items(4096)]] | None = None
    over: bool | None = False

    def __post_init__(self) -> None:
        check_slots(sum(len(slots) for slots in (self.slots or {}).values()))


@dataclass(frozen=True)
class InspectedNow(Inspected):
    """The inspection of one host, and the inspection that a watchdog saved before."""

    kept: Kept | None = None
