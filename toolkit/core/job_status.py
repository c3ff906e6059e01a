"""A job as main's records show it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.core.names import JOB_ID, JOBS
from toolkit.errors import NotReady, ToolkitError

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


def parse_status(
    job: str, status: Mapping[str, Any], alive: bool = True, record: Mapping[str, Any] | None = None
) -> JobStatus:
    """Return a job from status.json and record.json, see toolkit/inside/common.py."""
    state, record = str(status.get("state", "")), record or {}
    # What `run` asked for, unless a restart has made it others since.
    asked = {
        str(host["name"]): host.get("taken") or range(host["slots"]) for host in record.get("hosts") or ()
    }
    hosts: Mapping[str, Any] = status.get("hosts") or asked
    return JobStatus(
        id=job,
        # Main's container or host went down under it, so nobody was left to write how it ended.
        state=state if alive or state in FINAL else "lost",
        exit_code=status.get("exit_code"),
        started=float(status.get("started") or 0),
        ended=status.get("ended"),
        reason=str(status.get("reason", "")),
        unswept=tuple(status.get("unswept") or ()),
        owner=str(record.get("owner", "")),
        launcher=str(record.get("launcher", "")),
        command=tuple(map(str, record.get("command") or ())),
        hosts=tuple((name, tuple(slots)) for name, slots in hosts.items()),
        restarts=tuple(str(one.get("reason", "")) for one in status.get("restarts") or ()),
        last_lines=tuple(map(str, (status.get("cause") or {}).get("last") or ())),
    )


def job_id_from(host: str, value: object) -> str:
    """Return a job's id as a host reports it.

    Raises:
        ToolkitError: the value cannot be an id; names the host.
    """
    if not isinstance(value, str) or not JOB_ID.fullmatch(value):
        what = f"reports a job whose id is not valid: {ascii(value)[:80]}"
        raise ToolkitError(what, f"look at {JOBS} in its container", host)
    return value
