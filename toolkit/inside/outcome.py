"""How an attempt at a job ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from records import Record


@dataclass(frozen=True)
class End:
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
    record: Record = field(default_factory=dict)
    wanted: bool = False
