"""How the ranks of a job ended, by their own records, and which of them failed first."""

from __future__ import annotations

import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import EXIT_BROKEN, Job, job_folder, ssh_args

RECORDS_S = 15.0  # for asking a host how its ranks ended


def blame(job: Job, host: str, launch: str, code: int) -> tuple[int, str]:
    """Exit code and reason of a failed launch: those of the first rank to fail, where known."""
    code = code or EXIT_BROKEN
    names = [each["name"] for each in job["hosts"]]
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        found = [
            record for records in pool.map(lambda name: _records(job, name), names) for record in records
        ]
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


def _records(job: Job, host: str) -> list[dict[str, Any]]:
    logs = job_folder(job["id"]) / "logs"
    try:
        if host == job["main"]:
            texts = [path.read_text() for path in logs.glob("rank-*.exit")]
        else:
            command = 'cat "$0"/rank-*.exit'  # a pattern, so it takes a shell
            done = subprocess.run(
                ssh_args(host, ["sh", "-c", command, str(logs)]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=RECORDS_S,
            )
            texts = done.stdout.decode().splitlines()
        return [json.loads(text) for text in texts]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []  # a host that is gone leaves no record
