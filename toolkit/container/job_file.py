"""job.json and host.json, as the client writes them to every host."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TypedDict, cast

from toolkit.container.conventions import ATTEMPT, GRACE, fail, in_memory, job_folder, root
from toolkit.container.files import content
from toolkit.container.job.exec_mode import EXEC, own_part
from toolkit.protocol.outcomes import EXIT_NO_INPUT


class Host(TypedDict):
    """One host of a job, in rank order."""

    name: str
    address: str
    slots: int
    taken: list[int]  # numbers of the host's slots
    gpus: list[str]  # UUIDs of the GPUs that belong to these slots
    # CUDA_VISIBLE_DEVICES of the ranks; empty if the job has all of the container's GPUs. With MIG devices,
    # one UUID per rank.
    visible: str


class Launch(TypedDict):
    """One command that the supervisor starts on one host."""

    host: str
    argv: list[str]
    env: dict[str, str]
    serves: bool  # stopped after the others have ended; if it ends earlier, the job fails
    name: str  # name for users; empty for the program's own name


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
    local_rank_word: str  # the option by which the script receives its local rank; empty for none
    variables: bool  # whether it has variables, which are only in memory; see variables.py
    secret_names: list[str]  # the variables under `secrets:` of the hosts file, for redaction
    world_sizes: list[int]  # minimum and maximum number of simultaneous ranks
    attempt: int  # number of restarts so far


class HostFile(TypedDict):
    """host.json, as `up` writes it for each host."""

    cluster: str
    host: str
    address: str
    interface: str
    network: dict[str, str]


def load_job(job_id: str) -> Job:
    """Return job.json of `job_id`; exit with EXIT_NO_INPUT if it is missing."""
    try:
        return read_job(job_id)
    except (OSError, ValueError, RecursionError) as error:
        fail(EXIT_NO_INPUT, f"cannot read {job_folder(job_id) / 'job.json'}: {error}")


def read_job(job_id: str) -> Job:
    """Return job.json of `job_id`, overridden by the fields of this attempt or of this host's part.

    Raises:
        OSError, ValueError, RecursionError: it is missing or damaged.
    """
    path = job_folder(job_id) / "job.json"
    job = json.loads(content(path))
    with suppress(FileNotFoundError):
        job |= json.loads(content(path.parent / ATTEMPT))
    if job.get("transport") == EXEC:
        job = own_part(job, load_host()["host"], path.parent)
    return cast(Job, job)


def load_host() -> HostFile:
    """Return host.json of this host; exit with EXIT_NO_INPUT if it is missing."""
    path = root() / "conf" / "host.json"
    try:
        return cast(HostFile, json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        fail(EXIT_NO_INPUT, f"cannot read {path}: {error}")


def grace_of(job: Job) -> float:
    """Return the seconds between TERM and KILL: the user's from `stop` if given, otherwise the job's."""
    folder = job_folder(job["id"])
    for path in (in_memory(folder, GRACE), folder / GRACE):
        with suppress(OSError, ValueError):
            return float(content(path))
    return job["grace"]
