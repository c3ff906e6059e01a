"""Job records: the rows of toolkit/container/job_list.py, and the answers of follow.py and stop.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from toolkit.protocol.decode import DecodeError, Items, Number, OrEmpty, Text

# Job ids become names of folders on the client.
JobId = Annotated[str, Text(most=200, pattern="[A-Za-z0-9][A-Za-z0-9._-]*")]
Line = Annotated[str, Text(most=1 << 20, any=True)]  # output of a rank, or input of a user
Lines = tuple[Line, ...]
Moment = Annotated[float, Number(-1e12, 1e12)]  # seconds since the epoch
ExitCode = Annotated[int, Number(-(2**31), 2**31)]
Count = Annotated[int, Number(0, 1 << 16)]  # of slots, and the number of one
MOST_SLOTS = 1 << 16  # of a job on all its hosts


def _check_slots(slots: int) -> None:
    if slots > MOST_SLOTS:
        raise DecodeError("hosts", f"more than {MOST_SLOTS} slots")


@dataclass(frozen=True)
class RecordHost:
    """A host of a job: ``taken`` lists its slots, None in records of earlier toolkits."""

    name: str
    slots: Annotated[int, Number(0, 4096)] = 0
    taken: tuple[Count, ...] | None = None


@dataclass(frozen=True)
class Record:
    """record.json: the request of ``run``."""

    owner: Line | None = ""
    launcher: Line | None = ""
    command: Lines | None = ()
    hosts: tuple[RecordHost, ...] | None = ()
    transport: str | None = ""

    def __post_init__(self) -> None:
        _check_slots(sum(max(1, host.slots, len(host.taken or ())) for host in self.hosts or ()))


@dataclass(frozen=True)
class Cause:
    """The record of the rank that failed first; without values if no rank did."""

    rank: Annotated[int | None, Number(0, 1 << 24)] = None
    last: Lines | None = ()
    ended: Moment | None = None
    exit_code: ExitCode | None = None


@dataclass(frozen=True)
class Restart:
    """The end of an attempt: ``at`` in seconds since the epoch, ``host`` to blame."""

    at: Moment = 0.0
    reason: Line = ""
    host: str = ""
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """status.json, see ``Status`` in toolkit/container/job_file.py.

    Args:
        lost_host: the host whose loss ended the job; empty if it ended for another reason.
    """

    state: Annotated[str, Text(most=40)] = ""
    exit_code: ExitCode | None = None
    started: Moment | None = 0.0
    ended: Moment | None = None
    reason: Line = ""
    unswept: tuple[str, ...] | None = ()
    hosts: dict[str, Annotated[tuple[Count, ...], Items(4096)]] | None = None
    restarts: tuple[Restart, ...] | None = ()
    cause: Cause | None = field(default_factory=Cause)
    asked: Moment | None = None
    lost_host: str | None = ""

    def __post_init__(self) -> None:
        _check_slots(sum(max(1, len(slots)) for slots in (self.hosts or {}).values()))


@dataclass(frozen=True)
class JobRow:
    """A row of job_list.py; ``now`` is the host's clock."""

    id: JobId
    alive: bool
    status: Status
    record: Annotated[Record | None, OrEmpty()] = None
    now: Moment = 0.0


@dataclass(frozen=True)
class Ended:
    """The last line of follow.py with ``--status``; ``now`` is the host's clock."""

    status: Status
    now: Moment = 0.0
