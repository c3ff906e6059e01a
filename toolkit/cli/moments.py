"""Moments and lengths of time as people write them."""

from __future__ import annotations

import re
from datetime import datetime

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTH = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_MOST = 1e9


def since(text: str) -> tuple[float | None, float | None]:
    """Return seconds ago, or seconds since the epoch, of what ``--since`` names; the other is None.

    A length counts back on the clock of the host that has the log, a moment is one of this machine's zone.

    >>> since("1h30m"), since("1970-01-02T00:00:00Z")
    ((5400.0, None), (None, 86400.0))

    Raises:
        ValueError: it is neither.
    """
    if _LENGTH.fullmatch(text):
        seconds = sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([\d.]+)([smhd])", text))
        if seconds <= _MOST:
            return seconds, None
    try:
        moment = datetime.fromisoformat(re.sub("Z$", "+00:00", text))
        return None, moment.timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    raise ValueError(
        f"should be a length such as 90s, 10m or 1h30m, or a moment as 2026-11-21T09:30, found {text!r}"
    )
