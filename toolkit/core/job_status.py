"""A job as main's records show it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolkit.errors import NotReady
from toolkit.protocol.jobs import Cause, Record, Status

# What PyTorch puts before a traceback, and the last line of one.
_RANK = re.compile(r"^\[rank\d+\]: ?")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")

# lost: nobody was left to write how it ended. unknown: some host of it does not say.
FINAL = ("succeeded", "failed", "stopped", "timeout", "lost", "unknown")


@dataclass(frozen=True)
class JobStatus:
    """A job and how it stands.

    Args:
        state: starting, running or restarting, or one of ``FINAL``.
        exit_code: None until it has ended.
        started, ended: seconds since the epoch by main's clock; ``ended`` None until it has.
        reason: why it ended as it did; empty when it succeeded.
        unswept: hosts of which nobody could say that nothing of the job is left there.
        owner: who started it, by the name on the machine that did.
        command: what each rank executes.
        hosts: names of its hosts in rank order, each with the slots that it has there.
        restarts: why each attempt before this one ended.
        last_lines: what the rank that failed first said last.
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
    restarts: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()

    @property
    def error(self) -> str:
        """The last line of an exception that the rank which failed first printed; else its last line."""
        lines = [_RANK.sub("", line).strip() for line in self.last_lines]
        found = [line for line in lines if _EXCEPTION.match(line)]
        return next(iter(reversed(found or [line for line in lines if line])), "")

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def ranks(self) -> int:
        """The world size."""
        return sum(len(slots) for _, slots in self.hosts)

    def host_of(self, rank: int) -> str:
        """Return the host on which a rank runs.

        Raises:
            NotReady: the job has no such rank.
        """
        first = 0
        for name, slots in self.hosts:
            first += len(slots)
            if 0 <= rank < first:
                return name
        raise NotReady(f"job {self.id} has no rank {rank}; it has {self.ranks}", f"--rank 0 to {first - 1}")


def parse_status(job: str, status: Status, alive: bool = True, record: Record | None = None) -> JobStatus:
    """Return a job from status.json and record.json, see toolkit/inside/common.py."""
    record = record or Record()
    # What `run` asked for, unless a restart has made it others since.
    asked = {host.name: host.taken or tuple(range(host.slots)) for host in record.hosts or ()}
    return JobStatus(
        id=job,
        # Main's container or host went down under it, so nobody was left to write how it ended.
        state=status.state if alive or status.state in FINAL else "lost",
        exit_code=status.exit_code,
        started=status.started or 0.0,
        ended=status.ended,
        reason=status.reason,
        unswept=status.unswept or (),
        owner=record.owner or "",
        launcher=record.launcher or "",
        command=record.command or (),
        hosts=tuple((status.hosts or asked).items()),
        restarts=tuple(one.reason for one in status.restarts or ()),
        last_lines=(status.cause or Cause()).last or (),
    )
