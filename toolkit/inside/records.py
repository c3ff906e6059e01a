"""How the ranks of a job ended, by their own records, and which of them failed first."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import EXIT_BROKEN, Job


def blame(job: Job, found: Sequence[dict[str, Any]], host: str, launch: str, code: int) -> tuple[int, str]:
    """Exit code and reason of a failed launch: those of the first rank to fail, where known.

    `found` are the records of the job's ranks, as far as hosts have given theirs.
    """
    code = code or EXIT_BROKEN
    records = [record for record in found if record["exit_code"] != 0]
    if not records:
        return code, f"{launch} ended with exit code {code}"
    several = len(job["launches"]) > 1

    def lateness(record: dict[str, Any]) -> tuple[bool, bool, bool, float]:
        # mpirun's own code is that of the first rank to fail; torchrun's is always 1
        other_host = several and record["host"] != host
        other_code = job["launcher"] != "torchrun" and record["exit_code"] != code
        ended_by_us = record["exit_code"] == 128 + signal.SIGTERM
        return (other_host, other_code, ended_by_us, record["ended"])

    first = min(records, key=lateness)
    code = int(first["exit_code"])
    return code, f"rank {first['rank']} on {first['host']} ended with exit code {code}"


def own_records(folder: Path) -> list[dict[str, Any]]:
    """The records of the ranks that have ended on this host; `folder` is the job's."""
    records = []
    for path in sorted((folder / "logs").glob("rank-*.exit")):
        with suppress(OSError, ValueError):
            records.append(json.loads(path.read_text()))
    return records
