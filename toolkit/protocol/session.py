"""Messages of the container session, toolkit/container/session.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from toolkit.protocol.decode import Items, Number, Text
from toolkit.protocol.jobs import JobRow, Line

MOST_BYTES = 1 << 26  # of one message: `needs` grows with the number of files
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
