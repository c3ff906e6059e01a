"""Status of a job from the records of its hosts, as a value, a table row and JSON."""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from toolkit.core.printable import counted, table
from toolkit.errors import NotReady
from toolkit.protocol.host_list import host_list
from toolkit.protocol.jobs import Cause, Record, Status
from toolkit.protocol.names import OWN_LINE
from toolkit.protocol.outcomes import FINAL_STATES

# PyTorch's prefix of a line, its warnings, and the last line of a traceback.
_RANK = re.compile(r"^\[rank\d+\]: ?")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
# A frame of a traceback, and the line after the last frame, which names an exception of any class. An
# ExceptionGroup has a margin before these lines, and a wider margin before its exceptions. Frames of
# faulthandler have no comma before "in". After the stack of a logger, any line can follow: INFO:root:step 3.
_FRAME = re.compile(r'  File ".*", line \d+, in ')
_CLASS = re.compile(r"(?:(?:[A-Za-z_]\w*\.(?:<locals>\.)?)+\w+|[A-Z_]\w*)(?::(?: |$)|$)")
_MARGIN = "  | "
_WARNING = re.compile(r"\[W\d* ")
# The exception that ended a C++ thread, such as PyTorch's NCCL watchdog.
_CPP = re.compile(r"what\(\):\s+(?:.*thread terminated with exception: )?(?:\[Rank \d+\] )?(.+)")
# The watchdog aborts the communicator after an error, and Python then raises this exception.
_ABORTED = "NCCL communicator was aborted on rank"

# lost: no process was left to record its end. unknown: a host of the job does not report.
FINAL = (*FINAL_STATES, "lost", "unknown")
# The first cause has priority over its consequences.
FAULTS = ("failed", "timeout", "lost")
_ENDED_BY_OTHERS = 128 + 15
_NO_CAUSE = Cause()
_COMMAND_WIDTH = 48


@dataclass(frozen=True)
class JobStatus:
    """A job and its state.

    Args:
        state: starting, running or restarting, or one of ``FINAL``.
        exit_code: None until it has ended.
        started, ended: seconds since the epoch by main's clock; ``ended`` None until it has.
        reason: the reason of its result; empty after success.
        unswept: hosts on which the cleanup of the job is not confirmed.
        owner: who started it, by the name on the machine that did.
        command: what each rank executes.
        hosts: names of its hosts in rank order, each with the slots that it has there.
        former_hosts: hosts that the job used before a restart, and uses no longer.
        restarts: why each attempt before this one ended.
        last_lines: last output of the rank that failed first.
        failed_rank: the rank that failed first, None if no rank did or if it is not known.
        lost_host: the host whose loss ended the job, empty if it ended for another reason.
        elastic: the launcher restarts ranks itself, and numbers ranks in its own order of the hosts.
    """

    id: str
    state: str
    exit_code: int | None
    started: float
    ended: float | None
    reason: str
    unswept: tuple[str, ...] = ()
    owner: str = ""
    launcher: str = ""
    command: tuple[str, ...] = ()
    hosts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    former_hosts: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    failed_rank: int | None = None
    lost_host: str = ""
    elastic: bool = False

    def __repr__(self) -> str:
        # Without the command and the output, which can contain secrets.
        ranks = counted(self.ranks, "rank")
        return f"JobStatus({self.id!r}, {self.state!r}, exit_code={self.exit_code}, {ranks})"

    @property
    def error(self) -> str:
        """The last line of the exception of the rank that failed first, or its last line of output."""
        return exception_of(self.last_lines) or last_line_of(self.last_lines)

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def ranks(self) -> int:
        """The world size."""
        return sum(len(slots) for _, slots in self.hosts)

    def host_of(self, rank: int) -> str:
        """Return the host on which a rank runs, unless the job is elastic.

        Raises:
            NotReady: the job has no such rank.
        """
        first = 0
        for name, slots in self.hosts:
            first += len(slots)
            if 0 <= rank < first:
                return name
        what = f"job {self.id} has no rank {rank}, because the world size is {first}"
        raise NotReady(what, f"run the same command again with a rank less than {first}")


def exception_of(lines: Sequence[str]) -> str:
    """Return the last line that names an exception, without the rank that PyTorch puts before it.

    The message of a C++ exception counts only without another exception of Python.

    >>> exception_of(["[rank1]: KeyError: 'b'", "terminate called without an active exception"])
    "KeyError: 'b'"
    """
    bare = _bare(lines)
    raised = _raised(lines)
    own = [line for line in raised if _ABORTED not in line]
    thrown = [found[1] for line in bare if (found := _CPP.match(line))]
    grouped = [inner for line in bare if _EXCEPTION.match(inner := line.lstrip("| "))]
    return next(iter((*own, *thrown, *raised, *grouped)), "")


def _raised(lines: Sequence[str]) -> list[str]:
    """Return the lines that name an exception of Python, in reverse order."""
    found = []
    is_frame = False
    for line in lines:
        text = _RANK.sub("", line).removeprefix(_MARGIN).rstrip()
        if _EXCEPTION.match(text.strip()) or (is_frame and _CLASS.match(text)):
            found.append(text.strip())
        is_frame = bool(_FRAME.match(text)) or (is_frame and text.startswith("  "))
    return found[::-1]


def last_line_of(lines: Sequence[str]) -> str:
    """Return the last line that is neither a warning of PyTorch nor a line of toolkit, or the last line.

    >>> last_line_of(["[rank1]: bye", "[rank1]:[W1126 22:29:30.914 ProcessGroupNCCL.cpp:1575] Warning: …"])
    'bye'
    """
    bare = _bare(lines)
    plain = [line for line in bare if not _WARNING.match(line)]
    own = [line for line in plain if not line.startswith(OWN_LINE)]
    return next(iter((*own, *plain, *bare)), "")


def _bare(lines: Sequence[str]) -> list[str]:
    """Return the non-empty lines in reverse order, without the rank that PyTorch puts before a line."""
    return [bare for line in reversed(lines) if (bare := _RANK.sub("", line).strip())]


@functools.cache
def _slots(count: int) -> tuple[int, ...]:
    # Shared, because a list of jobs can be long.
    return tuple(range(count))


def parse_status(job: str, status: Status, alive: bool = True, record: Record | None = None) -> JobStatus:
    """Return a job from status.json and record.json, see toolkit/container/job_file.py."""
    record, cause = record or Record(), status.cause or Cause()
    # The hosts that `run` requested, unless a restart has changed them.
    requested = {host.name: host.taken or _slots(host.slots) for host in record.hosts or ()}
    hosts = status.hosts or requested
    earlier = dict.fromkeys((*requested, *(name for one in status.restarts or () for name in one.hosts)))
    return JobStatus(
        id=job,
        # Main's container or host stopped during the job, so no process could record its end.
        state=status.state if alive or status.state in FINAL else "lost",
        exit_code=status.exit_code,
        started=status.started or 0.0,
        ended=status.ended,
        reason=status.reason,
        unswept=status.unswept or (),
        owner=record.owner or "",
        launcher=record.launcher or "",
        command=record.command or (),
        hosts=tuple(hosts.items()),
        former_hosts=tuple(name for name in earlier if name not in hosts),
        restarts=tuple(one.reason for one in status.restarts or ()),
        last_lines=cause.last or (),
        failed_rank=cause.rank,
        lost_host=status.lost_host or "",
        elastic=record.elastic or False,
    )


def together(parts: Mapping[str, Status]) -> Status:
    """Return the status of a job from those of its parts by host.

    Args:
        parts: at least one; ``state`` can also be ``lost``, see ``toolkit.jobs.status``.
    """
    statuses = list(parts.values())
    ended = [one.ended for one in statuses]
    merged = replace(
        _telling(statuses),
        started=min(one.started or 0.0 for one in statuses),
        unswept=tuple(sorted({name for one in statuses for name in one.unswept or ()})),
        ended=None if None in ended else max(each or 0.0 for each in ended),
    )
    if any(one.state not in FINAL for one in statuses):
        started = any(one.state != "starting" for one in statuses)
        state = "running" if started else "starting"
        merged = replace(merged, state=state, exit_code=None, reason="", ended=None, cause=None, lost_host="")
    return merged


def shifted(status: Status, seconds: float) -> Status:
    """Return a status with its moments moved: hosts' clocks differ by more than a failure takes to spread.

    Args:
        seconds: by which the clock that it was written by is behind the one that counts.
    """

    def moved(moment: float | None) -> float | None:
        return moment + seconds if moment else moment

    cause = status.cause
    return replace(
        status,
        started=moved(status.started),
        ended=moved(status.ended),
        asked=moved(status.asked),
        cause=replace(cause, ended=moved(cause.ended)) if cause else None,
    )


def _telling(statuses: list[Status]) -> Status:
    """Return the part with the result of the job: the first that failed, preferably with a rank's own record.

    Unless a user stopped the job before: later failures are a consequence of that.
    """
    stopped_at = min((one.asked for one in statuses if one.asked), default=math.inf)

    def lateness(status: Status) -> tuple[int, bool, bool, float]:
        cause = status.cause or _NO_CAUSE
        when = (status.ended if cause.ended is None else cause.ended) or 0.0
        if status.state in FAULTS and when <= stopped_at:
            order = 0
        elif status.state in ("stopped", *FAULTS):
            order = 1 if status.asked else 2
        else:
            order = 3
        # A launcher that has lost one rank ends the others by SIGTERM.
        return order, cause == _NO_CAUSE, cause.exit_code == _ENDED_BY_OTHERS, when

    return min(statuses, key=lateness)


def jobs_table(jobs: Sequence[JobStatus]) -> str:
    """Return one line for each job."""
    head = ("job", "owner", "state", "exit", "ranks", "hosts", "started", "took", "command", "reason")
    return table(head, [_row(job) for job in jobs])


def job_json(job: JobStatus) -> dict[str, Any]:
    """Return a job in the form of the JSON output."""
    found = asdict(job) | {"ranks": job.ranks, "hosts": {name: list(slots) for name, slots in job.hosts}}
    del found["failed_rank"], found["lost_host"]  # `reason` contains both as text
    del found["elastic"], found["former_hosts"]
    return found


def _row(job: JobStatus) -> tuple[str, ...]:
    command = shlex.join(job.command)
    started = datetime.fromtimestamp(job.started).strftime("%m-%d %H:%M") if job.started else ""
    return (
        job.id,
        job.owner,
        job.state,
        "" if job.exit_code is None else str(job.exit_code),
        str(job.ranks),
        host_list((name for name, _ in job.hosts), ","),
        started,
        length(job.ended - job.started) if job.ended else "",
        command if len(command) <= _COMMAND_WIDTH else f"{command[: _COMMAND_WIDTH - 1]}…",
        job.reason or (f"restarted after: {job.restarts[-1]}" if job.restarts else ""),
    )


def length(seconds: float) -> str:
    """Return a length of time in its two greatest units.

    >>> length(7.04), length(3725), length(200000)
    ('7.0 s', '1 h 2 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
