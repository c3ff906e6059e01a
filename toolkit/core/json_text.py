"""JSON out of a program's output that other text may precede."""

from __future__ import annotations

import json
from typing import Any


def json_list(text: str) -> list[Any]:
    """Return the first JSON array in the text, an empty list when there is none."""
    start = text.find("[")
    if start < 0:
        return []
    found: list[Any] = json.JSONDecoder().raw_decode(text[start:])[0]
    return found
