"""Numbers in lines of text that hosts send; what is no number within its bounds is None."""

from __future__ import annotations

import re

_WHOLE = re.compile(r"-?[0-9]{1,19}")
_REAL = re.compile(r"-?[0-9]{1,19}(\.[0-9]{0,30})?")
_HEXADECIMAL = re.compile(r"[0-9A-Fa-f]{1,16}")
MOST = 2**63 - 1


def whole(text: str, most: int = MOST, least: int = 0) -> int | None:
    """Return a decimal integer within bounds, which are included."""
    value = int(text) if _WHOLE.fullmatch(text) else None
    return value if value is not None and least <= value <= most else None


def real(text: str) -> float | None:
    """Return a decimal number without an exponent, of at most 19 digits before the point."""
    return float(text) if _REAL.fullmatch(text) else None


def hexadecimal(text: str, most: int = 2**32 - 1) -> int | None:
    """Return a hexadecimal number without a prefix, 0 to ``most``."""
    value = int(text, 16) if _HEXADECIMAL.fullmatch(text) else None
    return value if value is not None and value <= most else None
