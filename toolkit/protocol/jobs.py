"""Answers about jobs: rows of toolkit/container/job_list.py, of follow.py and stop.py, and of session.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from toolkit.protocol.decode import DecodeError, Items, Number, OrEmpty, Text

# Job ids become names of folders on the client.
JobId = Annotated[str, Text(most=200, pattern="[A-Za-z0-9][A-Za-z0-9._-]*")]
Line = Annotated[str, Text(most=1 << 20, any=True)]  # output of a rank, or input of a user
Lines = tuple[Line, ...]
# Seconds since the epoch. With the difference of two clocks added, it is still a date.
Moment = Annotated[float, Number(-3e10, 3e10)]
ExitCode = Annotated[int, Number(-(2**31), 2**31)]
Count = Annotated[int, Number(0, 1 << 16)]  # of slots, and the number of one
MOST_SLOTS = 1 << 16  # of a job on all its hosts


def check_slots(slots: int) -> None:
    """Refuse more slots than a job can have."""
    if slots > MOST_SLOTS:
        raise DecodeError("hosts", f"contains more than {MOST_SLOTS} slots")


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
    elastic: bool | None = False

    def __post_init__(self) -> None:
        check_slots(self.slots)

    @property
    def slots(self) -> int:
        """The slots on all hosts; a host has at least one."""
        return sum(max(1, host.slots, len(host.taken or ())) for host in self.hosts or ())


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
        check_slots(sum(max(1, len(slots)) for slots in (self.hosts or {}).values()))


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


MOST_BYTES = 1 << 26  # of one message of a session: `needs` grows with the number of files
_Index = Annotated[int, Number(0, 1 << 32)]


@dataclass(frozen=True)
class SessionAnswer:
    """One message; its kind follows from the fields with a value. Without any value, the session has ended.

    Args:
        jobs: the jobs that the host lists.
        buckets, needs: the parts of the code that the host asks for.
        done: the request has been carried out.
        damage: what was damaged in the host's store of code, which was replaced; empty for nothing.
        started, forgot: ids of jobs.
        host, command: a program that the launcher starts on another host.
        begun: whether a rank of the job has begun on the host.
        refused, fix: why the request was refused.
        failed: the program on the host failed; its standard error contains the reason.
        working: a sign of life during long work.
    """

    jobs: tuple[JobRow, ...] | None = None
    buckets: Annotated[tuple[_Index, ...], Items(1 << 24)] | None = None
    needs: Annotated[tuple[tuple[_Index, _Index], ...], Items(1 << 24)] | None = None
    done: bool = False
    damage: Line = ""
    started: Line = ""
    forgot: Line = ""
    host: str = ""
    command: Annotated[str, Text(most=1 << 22, any=True)] = ""
    begun: bool = False
    refused: Line = ""
    fix: Line = ""
    failed: bool = False
    working: bool = False


ENDED = SessionAnswer()
