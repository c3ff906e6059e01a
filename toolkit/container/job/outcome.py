"""How an attempt at a job ended."""

from __future__ import annotations

from typing import NamedTuple

from toolkit.container.job.rank_records import Record


class End(NamedTuple):
    """How an attempt ended.

    Args:
        state: a final state.
        host: where the cause lies, empty where it lies nowhere or is not known.
        record: of the rank that failed first.
        wanted: somebody asked for it, so ranks have the whole of their grace.
    """

    state: str
    code: int
    reason: str
    host: str = ""
    record: Record = {}  # noqa: RUF012 - nobody writes into it
    wanted: bool = False
