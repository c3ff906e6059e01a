"""Exit records of a job's ranks, the rank that failed first, and the end of an attempt."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.container.conventions import JOB_TAG, in_memory, is_tagged
from toolkit.container.files import read, write_reserved, write_text
from toolkit.container.job_file import Job
from toolkit.protocol.outcomes import EXIT_BROKEN

# A rank's record, `logs/rank-N.exit`: rank, attempt, host, exit_code, signal (0 for none), oom, ended
# (seconds since the epoch), lasted (seconds), last (its last lines). Written first is `logs/rank-N.run`:
# rank, attempt, began (by the host's monotonic clock), starts (of all its attempts, seconds since the epoch).
# Both have the pid of its rank.py: in an elastic job the same rank can be started several times.
Record = dict[str, Any]

# Errors of ranks after the rank at the other end of a connection has ended: Gloo, and NCCL and TCPStore in
# PyTorch, Horovod, and Python's sockets.
_PEER_GONE = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Broken pipe|ncclRemoteError|HorovodInternalError"
    r"|[Ff]ailed to recv, got 0 bytes"
)

# Launchers that exit with the code of the first rank to fail.
_TRUE_CODE = frozenset(("deepspeed", "horovodrun", "mpirun", "python", "ray"))


_FIELDS: dict[str, type | tuple[type, ...]] = {
    **{"rank": int, "attempt": int, "pid": int, "host": str, "exit_code": int, "last": list},
    **{"ended": (int, float), "lasted": (int, float)},
}
RUN_FIELDS: dict[str, type | tuple[type, ...]] = {
    **{"rank": int, "attempt": int, "pid": int, "began": (int, float)},
}


def is_record(value: object, fields: dict[str, type | tuple[type, ...]] = _FIELDS) -> bool:
    """Return True for a value that has the fields of a rank's record."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), kind) for name, kind in fields.items())
        and all(isinstance(line, str) for line in value.get("last", ()))
    )


def own_records(folder: Path, host: str, attempt: int) -> list[Record]:
    """Return the exit records of an attempt's ranks on this host; `folder` is the job's."""
    logs = folder / "logs"
    ended = {record["rank"]: record for record in _read(logs, "exit", attempt)}
    for run in _read(logs, "run", attempt):
        rank, pid = run["rank"], run["pid"]
        if ended.get(rank, {}).get("pid") == pid or is_tagged(pid, JOB_TAG, folder.name):
            continue
        # It writes its record last, so the record can have appeared meanwhile.
        late = [record for record in _read(logs, "exit", attempt) if record["pid"] == pid]
        ended[rank] = late[0] if late else _vanished(run, host)
    return list(ended.values())


def keep_record(path: Path, record: Record) -> None:
    """Write a file of a rank; if the disk is full, in reserved space or in memory for the host's lease.

    Args:
        path: in the folder `logs` of the job.
    """
    text = json.dumps(record) + "\n"
    memory = in_memory(path.parent.parent, path.name)
    try:
        write_reserved(path, text)
        memory.unlink(missing_ok=True)
    except OSError:
        with suppress(OSError):  # no other place is left
            write_text(memory, text)


def move_records(folder: Path) -> None:
    """Move records from memory to the job's folder, now that the job has ended; drop them if it is full."""
    for path in _in_memory(folder, "*"):
        with suppress(OSError):
            # A record of an earlier attempt stays if the disk is full.
            write_text(folder / "logs" / path.name.partition(".")[2], path.read_text())
        with suppress(OSError):
            path.unlink()


def _in_memory(folder: Path, kind: str) -> list[Path]:
    pattern = in_memory(folder, f"rank-*.{kind}")
    return sorted(pattern.parent.glob(pattern.name))


def _read(logs: Path, kind: str, attempt: int) -> list[Record]:
    records = []
    for path in (*sorted(logs.glob(f"rank-*.{kind}")), *_in_memory(logs.parent, kind)):
        if (record := read(path)) is not None:
            records.append(record)
    fields = _FIELDS if kind == "exit" else RUN_FIELDS
    return [record for record in records if is_record(record, fields) and record["attempt"] == attempt]


def _vanished(run: Record, host: str) -> Record:
    about = {name: run[name] for name in ("rank", "attempt", "pid")}
    how = {"exit_code": 128 + signal.SIGKILL, "signal": int(signal.SIGKILL), "oom": False, "vanished": True}
    lasted = time.monotonic() - run["began"]
    return {**about, "host": host, **how, "ended": time.time(), "lasted": lasted, "last": []}


def blames_another(record: Record) -> bool:
    """Return whether a rank failed because another one had gone: it is hardly the first, then.

    Its host can report it before the host of the first one does: a core dump takes time, and a busy host
    reports late.
    """
    by_error = record["exit_code"] in (1, 128 + signal.SIGABRT)  # of Python; of C++
    return by_error and any(_PEER_GONE.search(line) for line in record["last"])


def first_cause(job: Job, found: Sequence[Record], host: str = "", code: int = 0) -> Record | None:
    """Return the record of the rank that failed first; None if no rank has failed.

    Args:
        found: in the order in which main received them.
        host, code: of the failed launch, if a launch reported the failure.
    """
    records = [record for record in found if record["exit_code"] != 0]
    several = len(job["launches"]) > 1

    def lateness(numbered: tuple[int, Record]) -> tuple[bool, bool, bool, bool, float, int]:
        number, record = numbered
        # Other launchers exit with 1 for any code of their ranks.
        other_host = bool(host) and several and record["host"] != host
        other_code = bool(code) and job["launcher"] in _TRUE_CODE and record["exit_code"] != code
        # A launcher that has lost one rank ends the others by SIGTERM.
        ended_by_others = record["exit_code"] == 128 + signal.SIGTERM
        follows = ended_by_others or blames_another(record)
        return (follows, other_host, other_code, ended_by_others, record["ended"] if host else 0.0, number)

    return min(enumerate(records), key=lateness)[1] if records else None


def words(record: Record) -> str:
    """Describe the end of a rank."""
    who = f"rank {record['rank']} on {record['host']}"
    if record.get("oom"):
        return f"{who} was killed by the out-of-memory killer"
    if record.get("vanished"):
        return f"{who} exited without an exit record (probably killed)"
    if record.get("signal"):
        return f"{who} was killed by {signal_name(record['signal'])}"
    code = record["exit_code"]
    # A shell between rank.py and the program reports a signal as an exit code.
    like = f", which usually means {signal_name(code - 128)}" if 128 < code < 128 + 32 else ""
    return f"{who} exited with code {code}{like}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time one


def blame(job: Job, found: Sequence[Record], host: str, launch: str, code: int) -> tuple[int, str, Record]:
    """Return exit code, reason and record of a failed launch: those of the first failed rank, if any."""
    first = first_cause(job, found, host, code or EXIT_BROKEN)
    if first is None:
        return code or EXIT_BROKEN, f"{launch} exited with code {code}", {}
    return int(first["exit_code"]), words(first), first


class End(NamedTuple):
    """End of an attempt.

    Args:
        state: a final state.
        host: the host of the cause, empty if there is none or it is unknown.
        record: record of the rank that failed first.
        lost_host: the host whose loss ended it, empty if it ended for another reason.
        wanted: a user requested it, so ranks have their complete grace.
    """

    state: str
    code: int
    reason: str
    host: str = ""
    record: Record = {}  # noqa: RUF012 - never modified
    wanted: bool = False
    lost_host: str = ""
