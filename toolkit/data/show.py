"""What hosts hold of data sets, as text for people."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from toolkit.core.disk_space import size
from toolkit.data.plan import DataRow
from toolkit.plan.show import table


def data_text(rows: Iterable[DataRow]) -> str:
    """Return one line for each data set on each host."""
    cells = [
        (
            row.host,
            row.target,
            row.path,
            _state(row),
            size(row.size) if row.size else "",
            str(row.files or ""),
            f"{datetime.fromtimestamp(row.since, timezone.utc):%Y-%m-%d %H:%M}" if row.since else "",
            row.note,
        )
        for row in rows
    ]
    return table(("host", "data", "folder", "state", "size", "files", "since (UTC)", "note"), cells)


def _state(row: DataRow) -> str:
    if row.state == "part":
        return "part" if row.share is None else f"part, {row.share} %"
    return "whole, other than here" if row.state == "other" else row.state
