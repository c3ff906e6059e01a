"""What hosts hold of images, as a table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from toolkit.core.disk_space import size
from toolkit.image.inventory import ImageRow
from toolkit.plan.show import table


def images_text(rows: Iterable[ImageRow]) -> str:
    """Return what hosts hold of ours, for people."""
    cells = [
        (
            row.host,
            row.names[0] if row.kind == "wanted" and row.state in ("absent", "unreachable") else _names(row),
            row.identity,
            _state(row),
            size(row.size) if row.size else "",
            f"{datetime.fromtimestamp(row.since, timezone.utc):%Y-%m-%d %H:%M}" if row.since else "",
            ", ".join(row.users),
            row.note,
        )
        for row in rows
    ]
    return table(("host", "image", "identity", "state", "size", "since (UTC)", "used by", "note"), cells)


def _names(row: ImageRow) -> str:
    # The tag that repeats the identity, in the next column, is said only where there is no other.
    other = [name for name in row.names if row.identity not in name]
    return ", ".join(other or row.names) or "(no name)"


def _state(row: ImageRow) -> str:
    if row.state == "absent" and row.layers:
        return f"absent, lacks {len(row.missing)} of {row.layers} layers"
    return row.state
