"""Who holds which GPU, as text and as JSON, for `toolkit status`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from toolkit.cluster.gpu_usage import GpuUse, holders
from toolkit.core.facts import Facts
from toolkit.plan.show import table


def gpu_uses(facts: Iterable[Facts]) -> tuple[GpuUse, ...]:
    """Return every GPU of these hosts with those who hold it."""
    return tuple(use for one in facts for use in holders(one))


def gpus_json(facts: Iterable[Facts]) -> list[dict[str, Any]]:
    """Return one object for each GPU; ``holders`` is empty for one that is free."""
    return [{**asdict(use), "free": use.free} for use in gpu_uses(facts)]


def gpus_text(facts: Iterable[Facts]) -> str:
    """Return one line for each holder of each GPU; empty where no host has any."""
    rows = [
        (use.host, str(use.index), use.name, str(holder))
        for use in gpu_uses(facts)
        for holder in use.holders or ("free",)
    ]
    return table(("host", "gpu", "model", "held by"), rows) if rows else ""
