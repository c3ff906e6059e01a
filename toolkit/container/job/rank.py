"""Runs one rank under any launcher: environment of its host, secrets of the job, log, exit record."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from toolkit.container.conventions import (
    IMAGE_TMPDIR,
    JOB_TAG,
    RANK_TAG,
    STOPPING,
    SUPERVISOR_TAG,
    fail,
    job_folder,
    lease_path,
    temporary_folder,
)
from toolkit.container.files import content, read, reserve, write_text
from toolkit.container.job.child import Child
from toolkit.container.job.elastic import hosts_of
from toolkit.container.job.nccl_log import NcclLog, log_settings
from toolkit.container.job.rank_records import keep_record
from toolkit.container.job.variables import Variables, require
from toolkit.container.job_file import HostFile, Job, load_host, load_job
from toolkit.container.logs.lines import Stream, write_lines
from toolkit.container.logs.log import Log, last_lines, size_of
from toolkit.protocol.names import WITHOUT_NUMA_CALLS
from toolkit.protocol.outcomes import EXIT_NO_INPUT, EXIT_NO_LOG, EXIT_USAGE

# Open MPI's choice of algorithms by size of message; see toolkit/network/tuning.py.
RULES, RULES_VARIABLE = "allreduce.rules", "OMPI_MCA_coll_tuned_dynamic_rules_filename"
RECORD_BYTES = 1 << 15  # more than the longest record: 8 lines of 300 characters, each 12 bytes in JSON
MOST_STARTS = 100  # most starts of a rank that are recorded for the report
QUIET = "TORCH_CPP_LOG_LEVEL"
COMPILED = "/tmp/toolkit-compiled"
# Launchers that set MASTER_ADDR and MASTER_PORT; torchrun listens there.
SETS_MASTER = ("accelerate", "deepspeed", "torchrun")


class Place(NamedTuple):
    """Rank, local rank and sizes of this rank's world."""

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
    """Return the place that the launcher sets in `env`, or None.

    Open MPI is checked first: it also passes main's variables on, so a RANK next to its own can be unrelated.
    """
    for rank, size, local_rank, local_size in PLACE_NAMES:
        if rank in env and size in env:
            local = int(env.get(local_rank, 0)), int(env.get(local_size, 1))
            return Place(int(env[rank]), int(env[size]), *local)
    return None


def tuned_env(job: Job) -> dict[str, str]:
    """Return the tuned variables of these hosts, with the path of the rules file in the job's folder."""
    rules = {RULES_VARIABLE: str(job_folder(job["id"]) / RULES)} if job["rules"] else {}
    return {**job["tuned"], **rules}


def keep_rules(path: Path, text: str) -> None:
    """Write the rules file, unless another rank of this host or an earlier attempt has written the same.

    Raises:
        OSError: it cannot be written.
    """
    with suppress(OSError):
        if content(path) == text.encode():
            return
    write_text(path, text)


def own_gpus(job: Job, host: str, place: Place) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES if the job has only some of this container's GPUs, or MIG devices.

    If several MIG devices are visible, CUDA uses only the first of them, in every rank
    (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html).
    """
    own = next((each for each in hosts_of(job) if each["name"] == host), None)
    visible = own["visible"] if own else ""
    if "MIG-" in visible and place.local_size > 1:
        visible = visible.split(",")[place.local_rank]
    if own and not visible and job["launcher"] == "deepspeed":
        visible = ",".join(own["gpus"])  # its launcher hides the GPUs beyond the number of slots
    return {"CUDA_VISIBLE_DEVICES": visible} if visible else {}


def by_gpus(base: Mapping[str, str], job: Job, host: str) -> dict[str, str]:
    """Return the variables that ranks need because the job has GPUs on this host, or has none.

    - ACCELERATE_USE_CPU: without it, Accelerate silently makes every rank a world of its own (state.py of
      1.15).
    - NCCL_CUMEM_HOST_ENABLE: NCCL 2.24 and newer allocates memory of the host by NUMA calls, which Docker
      refuses without SYS_NICE. NCCL 2.26.2 then fails, and ranks of newer versions can disagree about the
      fallback to /dev/shm (https://github.com/NVIDIA/nccl/issues/2190). A value of the image has priority.
    """
    gpus = next((each["gpus"] for each in hosts_of(job) if each["name"] == host), [])
    if not gpus:
        return {"ACCELERATE_USE_CPU": "true"}
    return {name: value for name, value in WITHOUT_NUMA_CALLS.items() if name not in base}


def compiled_code(base: Mapping[str, str]) -> dict[str, str]:
    """Return the folders in which torch.compile and Triton keep compiled code, unless the image sets them.

    All ranks of this host and later jobs use the same folders, which are on the local disk of the container
    and end with it. By default Triton uses the home folder, which can be on a file server: locks are slow on
    it, files count towards a quota, and libraries cannot be loaded if it is mounted with noexec.
    """
    folders = {"TORCHINDUCTOR_CACHE_DIR": f"{COMPILED}/inductor", "TRITON_CACHE_DIR": f"{COMPILED}/triton"}
    return {name: folder for name, folder in folders.items() if name not in base}


def rank_env(
    base: Mapping[str, str], host: HostFile, job: Job, variables: Variables, place: Place
) -> dict[str, str]:
    """Return the environment of the user's command. Later sources override earlier ones:

    the launcher's, tuned values, this host's network and GPUs, the hosts file's, the command line's,
    toolkit's.
    """
    given = {**host["network"], **own_gpus(job, host["host"], place)}
    least = {**compiled_code(base), **by_gpus(base, job, host["host"]), **tuned_env(job)}
    env = {**base, **least, **given, **variables["env"], **variables["override"]}
    env.pop(SUPERVISOR_TAG, None)
    # A variable of torchrun itself, not for its ranks.
    launch = next((each["env"] for each in job["launches"] if each["host"] == host["host"]), {})
    if env.get(QUIET, "") == launch.get(QUIET):
        del env[QUIET]
    # The launcher's folder is removed, but files that ranks keep for the next run (compiled kernels) must
    # stay.
    kept = env.pop(IMAGE_TMPDIR, "")
    if env.get("TMPDIR") == str(temporary_folder(job["id"])):
        del env["TMPDIR"]
        if kept:
            env["TMPDIR"] = kept
    # Otherwise variables of the image.
    master = base if job["launcher"] in SETS_MASTER else {}
    env.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.size),
        LOCAL_RANK=str(place.local_rank),
        LOCAL_WORLD_SIZE=str(place.local_size),
        MASTER_ADDR=master.get("MASTER_ADDR", job["master_address"]),
        MASTER_PORT=master.get("MASTER_PORT", str(job["master_port"])),
        HOSTNAME=os.uname().nodename,  # horovodrun passes main's value to every rank
        TOOLKIT_HOST=host["host"],
        TOOLKIT_RESTART=str(job["attempt"]),
        PYTHONUNBUFFERED="1",
        # setproctitle would overwrite /proc/PID/environ, by which the job's processes are found.
        SPT_NOENV="1",
    )
    env[JOB_TAG], env[RANK_TAG] = job["id"], str(place.rank)
    return env


def nccl_log(job: Job, host: str, place: Place, env: dict[str, str]) -> NcclLog | None:
    """Let NCCL log its start, by ``env``, in the first rank of each GPU host of a job on several hosts."""
    gpus = next((each["gpus"] for each in hosts_of(job) if each["name"] == host), [])
    path = job_folder(job["id"]) / f"nccl-{place.rank}.log"
    if place.local_rank or place.size <= place.local_size or not gpus:
        return None
    settings = log_settings(env, path)
    with suppress(OSError):  # left by a killed rank of an earlier attempt
        path.unlink()
    env |= settings
    return NcclLog(path) if settings else None


def command_of(job: Job, given: Sequence[str], place: Place) -> list[str]:
    """Return the command of this rank: the job's, or the one that a launcher passed."""
    words = list(given or job["command"])
    if job["local_rank_word"]:
        # The same position as with torch's and DeepSpeed's launchers: before the script's own arguments.
        script = next(number for number, word in enumerate(words) if word.endswith(".py"))
        words.insert(script + 1, f"{job['local_rank_word']}={place.local_rank}")
    return words


def with_known_python(command: list[str], env: Mapping[str, str]) -> list[str]:
    """Return the command with ``python3`` for ``python`` if the image has only the former.

    Debian, Ubuntu and many images have no program ``python``, and toolkit requires only ``python3``.
    """
    missing = command[0] == "python" and shutil.which("python", path=":".join(os.get_exec_path(env))) is None
    return ["python3", *command[1:]] if missing else command


class _Records:
    """The files of this rank in the job's folder: its log, its start and its end."""

    def __init__(self, job: Job, host: str, rank: int) -> None:
        logs = job_folder(job["id"]) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._run, self._exit = logs / f"rank-{rank}.run", logs / f"rank-{rank}.exit"
        self._who = {"rank": rank, "attempt": job["attempt"], "pid": os.getpid()}
        self._host, self._began = host, time.monotonic()
        self.log = logs / f"rank-{rank}.log"
        self._start = 0

    def begin(self) -> None:
        """Record the start, from which the lease detects that this process was killed without a record."""
        starts = [*((read(self._run) or {}).get("starts") or ())[-MOST_STARTS:], time.time()]
        # Separates the output of this attempt from that of an earlier one.
        self._start = size_of(self.log)
        start = {"began": self._began, "starts": starts, "from": self._start}
        keep_record(self._run, {**self._who, **start})
        with suppress(OSError):  # otherwise the record is kept in memory
            reserve(self._exit, RECORD_BYTES)

    def last_lines(self) -> list[str]:
        """Return the last lines that the rank printed since its start."""
        return last_lines(self.log, self._start)

    def end(self, how: Mapping[str, object], last: Sequence[str], ended: float) -> None:
        """Record the end.

        Args:
            how: see ``Child.how_it_ended``.
            last: the last lines that the rank printed.
        """
        record = {**self._who, "host": self._host, **how, "ended": ended, "last": last}
        keep_record(self._exit, {**record, "lasted": time.monotonic() - self._began})


def _place_in(job: Job, host: str) -> Place:
    """Return the place of this rank; exit if the launcher set none, or one that the job does not have."""
    place = find_place(os.environ)
    if place is None:
        fail(EXIT_USAGE, f"{host}: the launcher did not set the rank or the world size")
    name = f"{host} {place.rank}"
    least, most = job["world_sizes"]
    if not least <= place.size <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        fail(
            EXIT_USAGE,
            f"{name}: the launcher set the world size to {place.size}, but the job requires {wanted}",
        )
    if not Path(job["workdir"]).is_dir():
        fail(EXIT_NO_INPUT, f"{name}: the folder {job['workdir']} does not exist")
    return place


def main() -> int:
    if len(sys.argv) < 2:
        fail(EXIT_USAGE, "usage: job.rank JOB [COMMAND...]")
    job = load_job(sys.argv[1])
    host = load_host()
    place = _place_in(job, host["host"])
    name = f"{host['host']} {place.rank}"
    variables = require(job, name)
    command = command_of(job, sys.argv[2:], place)
    folder = job_folder(job["id"])
    records = _Records(job, host["host"], place.rank)
    records.begin()
    written = folder / RULES
    try:
        if job["rules"]:
            keep_rules(written, job["rules"])
        written = records.log
        opened = Log(written, job["log_bytes"])
    except OSError as error:
        text = f"{name}: cannot write {written}: {error.strerror}"
        records.end({"exit_code": EXIT_NO_LOG, "signal": 0, "oom": False}, [text], time.time())
        fail(EXIT_NO_LOG, text)
    prefix = f"[{name}] ".encode()
    streams = (Stream(1, prefix), Stream(2, prefix))
    with closing(opened) as log:
        child = None
        try:
            env = rank_env(os.environ, host, job, variables, place)
            nccl = nccl_log(job, host["host"], place, env)
            command = with_known_python(command, env)
            child = Child(command, job["workdir"], env, lease_path(folder))
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            line = f"[toolkit] cannot start {command[0]}: {error.strerror}\n".encode()
            with suppress(OSError):
                log.write(line)
            write_lines(2, streams[1].feed(line))
        else:
            code = child.copy(streams, log, job["grace"], nccl.poll if nccl else None)
            if nccl:
                nccl.close()
        # torchrun exits with 1 for any exit code of its ranks; the supervisor reads the true code here
        how = child.how_it_ended() if child else {"exit_code": code, "signal": 0, "oom": False}
        ended = child.ended if child else time.time()
        records.end(how, records.last_lines() if code else [], ended)
        # After the record: the job must not wait for orphaned processes of the rank.
        if child is not None:
            child.end_group(job["grace"], folder / STOPPING)
    if child is not None:
        child.hold(folder / STOPPING, job["grace"])
    return code
