"""Runs one rank under any launcher: its host's environment, the job's secrets, its log, its end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from toolkit.container.exits import fail
from toolkit.container.files import read, reserve, write_text
from toolkit.container.job.child import Child
from toolkit.container.job.elastic import hosts_of
from toolkit.container.job.rank_records import keep_record
from toolkit.container.job.variables import Variables, require
from toolkit.container.job_file import HostFile, Job, load_host, load_job
from toolkit.container.logs.lines import Stream, write_lines
from toolkit.container.logs.log import Log, last_lines, size_of
from toolkit.container.marks import JOB_MARK, RANK_MARK, SUPERVISOR_MARK
from toolkit.container.paths import STOPPING, job_folder, lease_path, temporary_folder
from toolkit.protocol.exit_codes import EXIT_NO_INPUT, EXIT_NO_LOG, EXIT_USAGE

# Open MPI's choice of algorithms by size of message; see toolkit/network/tuning.py.
RULES, RULES_VARIABLE = "allreduce.rules", "OMPI_MCA_coll_tuned_dynamic_rules_filename"
RECORD_BYTES = 1 << 15  # over the longest record: 8 lines of 300 characters, each 12 bytes in JSON
MOST_STARTS = 100  # of a rank that are remembered, for the report
QUIET = "TORCH_CPP_LOG_LEVEL"


class Place(NamedTuple):
    """Where in the world this rank stands."""

    rank: int
    size: int
    local_rank: int
    local_size: int


PLACE_NAMES: list[tuple[str, str, str, str]] = [
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
]


def find_place(env: Mapping[str, str]) -> Place | None:
    """What the launcher says in `env`, or None. Open MPI first: it also hands on main's variables,
    so that a RANK beside it may be a stranger's."""
    for rank, size, local_rank, local_size in PLACE_NAMES:
        if rank in env and size in env:
            local = int(env.get(local_rank, 0)), int(env.get(local_size, 1))
            return Place(int(env[rank]), int(env[size]), *local)
    return None


def tuned_env(job: Job) -> dict[str, str]:
    """What was tuned for these hosts; a file of rules is named from the job's folder."""
    rules = {RULES_VARIABLE: str(job_folder(job["id"]) / RULES)} if job["rules"] else {}
    return {**job["tuned"], **rules}


def own_gpus(job: Job, host: str) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES where the job has some of this container's GPUs and other jobs the rest."""
    visible = next((each["visible"] for each in hosts_of(job) if each["name"] == host), "")
    return {"CUDA_VISIBLE_DEVICES": visible} if visible else {}


def without_gpus(job: Job, host: str) -> dict[str, str]:
    """What ranks need to be told where the job has no GPU.

    Accelerate makes a world of one rank of every rank there, and says nothing (state.py of 1.15).
    """
    gpus = next((each["gpus"] for each in hosts_of(job) if each["name"] == host), [])
    return {} if gpus else {"ACCELERATE_USE_CPU": "true"}


def rank_env(
    base: Mapping[str, str], host: HostFile, job: Job, variables: Variables, place: Place
) -> dict[str, str]:
    """The user's command's environment; what is nearer to the person and the host comes later and wins:

    the launcher's, what was tuned, this host's network and GPUs, the hosts file's, the command line's, ours.
    """
    given = {**host["network"], **own_gpus(job, host["host"])}
    least = {**without_gpus(job, host["host"]), **tuned_env(job)}
    env = {**base, **least, **given, **variables["env"], **variables["override"]}
    env.pop(SUPERVISOR_MARK, None)
    # Of torchrun itself, and not for what it starts.
    launch = next((each["env"] for each in job["launches"] if each["host"] == host["host"]), {})
    if env.get(QUIET, "") == launch.get(QUIET):
        del env[QUIET]
    # The launcher's: what ranks keep for the next run (compiled kernels) is to stay.
    if env.get("TMPDIR") == str(temporary_folder(job["id"])):
        del env["TMPDIR"]
    env.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.size),
        LOCAL_RANK=str(place.local_rank),
        LOCAL_WORLD_SIZE=str(place.local_size),
        # torchrun has set these two and listens there; under MPI they are ours to set
        MASTER_ADDR=base.get("MASTER_ADDR", job["master_address"]),
        MASTER_PORT=base.get("MASTER_PORT", str(job["master_port"])),
        HOSTNAME=os.uname().nodename,  # horovodrun hands main's to every rank
        TOOLKIT_HOST=host["host"],
        TOOLKIT_RESTART=str(job["attempt"]),
        PYTHONUNBUFFERED="1",
        # setproctitle would write over /proc/PID/environ, by which what a job has started is found.
        SPT_NOENV="1",
    )
    env[JOB_MARK], env[RANK_MARK] = job["id"], str(place.rank)
    return env


def command_of(job: Job, given: Sequence[str], place: Place) -> list[str]:
    """What this rank executes: the job's command, or what a launcher has made of it."""
    words = list(given or job["command"])
    if job["local_rank_word"]:
        # Where DeepSpeed's launcher puts it: in front of the script's own arguments.
        script = next(number for number, word in enumerate(words) if word.endswith(".py"))
        words.insert(script + 1, f"--local_rank={place.local_rank}")
    return words


def main() -> int:
    if len(sys.argv) < 2:
        fail(EXIT_USAGE, "usage: job.rank JOB [COMMAND...]")
    job = load_job(sys.argv[1])
    host = load_host()
    place = find_place(os.environ)
    if place is None:
        fail(EXIT_USAGE, f"{host['host']}: the launcher has set no rank and no world size")
    name = f"{host['host']} {place.rank}"
    least, most = job["world_sizes"]
    if not least <= place.size <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        fail(
            EXIT_USAGE,
            f"{name}: the launcher made a world of {place.size} ranks, the job asked for {wanted}",
        )
    if not Path(job["workdir"]).is_dir():
        fail(EXIT_NO_INPUT, f"{name}: there is no folder {job['workdir']}")
    variables = require(job, name)
    command = command_of(job, sys.argv[2:], place)
    folder = job_folder(job["id"])
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if job["rules"]:
        write_text(folder / RULES, job["rules"])  # by every rank of a host: each time the same
    prefix = f"[{name}] ".encode()
    streams = (Stream(1, prefix), Stream(2, prefix))
    path = logs / f"rank-{place.rank}.log"
    # So that lease.py can tell when we are killed and leave no record.
    began = time.monotonic()
    who = {"rank": place.rank, "attempt": job["attempt"], "pid": os.getpid()}
    run = logs / f"rank-{place.rank}.run"
    starts = [*((read(run) or {}).get("starts") or ())[-MOST_STARTS:], time.time()]
    # So that what an earlier attempt printed can be told from what this one prints.
    keep_record(run, {**who, "began": began, "starts": starts, "from": size_of(path)})
    record_path = logs / f"rank-{place.rank}.exit"
    with suppress(OSError):  # else it goes through memory
        reserve(record_path, RECORD_BYTES)
    try:
        opened = Log(path, job["log_bytes"])
    except OSError as error:
        text = f"{name}: cannot write {path}: {error.strerror}"
        told = {**who, "host": host["host"], "ended": time.time(), "lasted": 0.0, "last": [text]}
        keep_record(record_path, {**told, "exit_code": EXIT_NO_LOG, "signal": 0, "oom": False})
        fail(EXIT_NO_LOG, text)
    with closing(opened) as log:
        child = None
        try:
            env = rank_env(os.environ, host, job, variables, place)
            child = Child(command, job["workdir"], env, lease_path(folder))
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            line = f"[toolkit] cannot start {command[0]}: {error.strerror}\n".encode()
            with suppress(OSError):
                log.write(line)
            write_lines(2, streams[1].feed(line))
        else:
            code = child.copy(streams, log, job["grace"])
        # torchrun ends with 1 whatever its ranks' codes; the supervisor reads the true one here
        how = child.how_it_ended() if child else {"exit_code": code, "signal": 0, "oom": False}
        last = last_lines(path) if code else []
        ended = child.ended if child else time.time()
        record = {**who, "host": host["host"], **how, "ended": ended, "last": last}
        record["lasted"] = time.monotonic() - began
        keep_record(record_path, record)
        # Only now: the job is not to wait for the end of what the rank has left.
        if child is not None:
            child.end_group(job["grace"], folder / STOPPING)
    if child is not None:
        child.hold(folder / STOPPING, 2 * job["grace"])
    return code
