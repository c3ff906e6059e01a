"""What the programs share: where things lie, how a job is read, how processes are marked."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypedDict, cast

from files import write_reserved, write_text
from listing import content, early_status, in_memory, kept_status
from part import EXEC, own_part

JOB_MARK = "TOOLKIT_JOB"  # carried by every process of a job
RANK_MARK = "TOOLKIT_RANK"  # by the user's command alone: not rank.py, not the launcher
SUPERVISOR_MARK = "TOOLKIT_SUPERVISOR"  # by the supervisor, which the sweep must spare

# To a supervisor: another host's part of the job has failed, so that its ranks wait for what never comes.
PEER_FAILED = signal.SIGUSR1

HOST_MARK = "TOOLKIT_TO"  # by the ssh of a launcher on main: the host to which it leads

# In a job's folder while its ranks are being ended. A launcher kills all ranks within a second once
# one has ended, so rank.py stays until the others have had their whole grace as well.
STOPPING = "stopping"

BEAT_S = 0.5  # how often main says that it is there
LOST_S = 4.0  # a host that has not answered for so long is lost
LEASE_S = 10.0  # a host that has not heard from main for so long ends its ranks
# In a job's folder on main: the grace that a person gave with `stop`, in seconds.
GRACE = "grace"

# In a job's folder on the hosts of an attempt after the first: what of job.json is another then.
ATTEMPT = "attempt.json"

FINAL_STATES = frozenset({"succeeded", "failed", "stopped", "timeout"})

EXIT_USAGE = 64  # the numbers of sysexits.h: a wrong call or a wrong world size
EXIT_STARTED = 65  # this job has been started before
EXIT_NO_INPUT = 66  # there is no such job on this host
EXIT_LOST = 69  # a host of the job is gone
EXIT_BROKEN = 70  # we failed, not the job
EXIT_NO_LOG = 73  # a log cannot be written


class Host(TypedDict):
    """One host of a job, in rank order."""

    name: str
    address: str
    slots: int
    taken: list[int]  # which of the host's slots
    gpus: list[str]  # UUIDs of the GPUs that belong to these slots
    visible: str  # CUDA_VISIBLE_DEVICES of the ranks; empty where the job has all of the container's GPUs


class Launch(TypedDict):
    """One command that the supervisor starts on one host."""

    host: str
    argv: list[str]
    env: dict[str, str]
    serves: bool  # ended when the others have ended; its own end before that is a failure
    name: str  # what a person calls it; empty for the program's own name


class Job(TypedDict):
    """job.json, as `run` writes it to every host of the job."""

    id: str
    cluster: str
    owner: str
    world_size: int
    command: list[str]
    launcher: str
    tuned: dict[str, str]
    rules: str
    workdir: str
    hosts: list[Host]
    main: str
    master_address: str
    master_port: int
    timeout: float | None
    grace: float
    share: bool
    log_bytes: int
    launches: list[Launch]
    transport: str
    spares: list[Host]
    max_restarts: int
    min_hosts: int
    stall_after: float | None
    elastic: bool
    local_rank_word: bool
    variables: bool  # it has some, which are in memory alone; see variables.py
    world_sizes: list[int]  # the least and the most ranks that there may be at once
    attempt: int  # 0, then how often it was started again


class HostFile(TypedDict):
    """host.json, as `up` writes it for each host."""

    cluster: str
    host: str
    address: str
    interface: str
    network: dict[str, str]


class Status(TypedDict):
    """status.json; times are seconds since the epoch."""

    state: str
    exit_code: int | None
    started: float
    ended: float | None
    pid: int
    reason: str
    unswept: list[str]  # hosts of which nobody could say that nothing is left there
    hosts: dict[str, list[int]]  # of this attempt: names in rank order, with the slots taken there
    restarts: list[dict[str, Any]]  # what each attempt before this one ended by: at, reason, host, hosts
    cause: dict[str, Any]  # the record of the rank that failed first; empty where none did
    asked: float | None  # when somebody asked for the end; None where nobody did
    lost_host: str  # the host whose loss ended the job; empty if it ended for another reason


def fail(code: int, message: str) -> NoReturn:
    """Print `message` as ours to stderr and exit with `code`."""
    sys.stderr.write(f"[toolkit] {message}\n")
    sys.stderr.flush()
    sys.exit(code)


def root() -> Path:
    """Return the folder of toolkit in this container; read at each call, so that no import fixes it."""
    return Path(os.environ.get("TOOLKIT_ROOT", "/run/toolkit"))


def job_folder(job_id: str) -> Path:
    """The job's own folder on this host; a job id is never a path."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", job_id):
        fail(EXIT_USAGE, f"{job_id!r} is not a job id")
    return root() / "jobs" / job_id


def temporary_folder(job_id: str) -> Path:
    """Where launchers put their own files on this host: what they leave when they are killed goes with it.

    Its name is short: sockets below it may have names of 107 letters in all.
    """
    return Path("/tmp", f"toolkit-{zlib.crc32(job_id.encode()):08x}")


def lease_path(folder: Path) -> Path:
    """The file of a host that says until when, by its monotonic clock, ranks of the job may run.

    It lies in memory: a disk that is busy with a checkpoint, or a file server, may let who writes wait for
    longer than a host may be silent.

    Args:
        folder: the job's own; the file lies there where the container has no memory to write to.
    """
    return in_memory(folder, "lease")


def load_job(job_id: str) -> Job:
    """job.json of `job_id`, and over it what is this attempt's own, or this host's where each has a part.

    Exits with EXIT_NO_INPUT without one.
    """
    path = job_folder(job_id) / "job.json"
    try:
        job = json.loads(content(path))
        with suppress(FileNotFoundError):
            job |= json.loads(content(path.parent / ATTEMPT))
        if job.get("transport") == EXEC:
            job = own_part(job, load_host()["host"], path.parent)
        return cast(Job, job)
    except (OSError, ValueError, RecursionError) as error:
        fail(EXIT_NO_INPUT, f"cannot read {path}: {error}")


def load_host() -> HostFile:
    """host.json of this host; exits with EXIT_NO_INPUT where there is none."""
    path = root() / "conf" / "host.json"
    try:
        return cast(HostFile, json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        fail(EXIT_NO_INPUT, f"cannot read {path}: {error}")


def grace_of(job: Job) -> float:
    """Seconds between TERM and KILL: what a person gave with `stop`, where that has come, else the job's."""
    folder = job_folder(job["id"])
    for path in (in_memory(folder, GRACE), folder / GRACE):
        with suppress(OSError, ValueError):
            return float(content(path))
    return job["grace"]


def read_status(job_id: str) -> Status | None:
    """status.json, or what stands for it until there is one; None where the job was not started here."""
    folder = job_folder(job_id)
    return cast("Status | None", kept_status(folder) or early_status(folder))


def keep_status(folder: Path, status: Status) -> None:
    """Write status.json, the final one in reserved space. If the disk is full, write it to memory instead."""
    path, memory = folder / "status.json", in_memory(folder, "status")
    write = write_reserved if status["state"] in FINAL_STATES else write_text
    text = json.dumps(status) + "\n"
    try:
        write(path, text)
        memory.unlink(missing_ok=True)
    except OSError:
        with suppress(OSError):  # no other place is left
            write_text(memory, text)


def is_marked(pid: int, mark: str, job_id: str, ranks: bool = False) -> bool:
    """Whether process `pid` was started with `mark` set to exactly `job_id`.

    With `ranks`, only where it is the user's command of a rank or was started by one.
    """
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # gone, or another user's
    of_rank = any(entry.startswith(RANK_MARK.encode() + b"=") for entry in environ)
    return f"{mark}={job_id}".encode() in environ and (of_rank or not ranks)


def exit_code_of(returncode: int) -> int:
    """A subprocess return code as a shell would give it: 128+n for signal n."""
    return 128 - returncode if returncode < 0 else returncode


def program(name: str) -> str:
    """The path of one of these programs, which is the same on every host."""
    return str(root() / "inside" / name)


def ssh_args(host: str, command: Sequence[str]) -> list[str]:
    """The argv which runs `command` on `host` through the cluster's own sshd."""
    return ["ssh", "-F", str(root() / "conf" / "ssh_config"), host, shlex.join(command)]
