"""Runs one rank under any launcher: its host's environment, the job's secrets, its log, its end."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from common import (
    BEAT_S,
    EXIT_NO_INPUT,
    EXIT_USAGE,
    JOB_MARK,
    LEASE,
    LEASE_S,
    RANK_MARK,
    STOPPING,
    SUPERVISOR_MARK,
    HostFile,
    Job,
    exit_code_of,
    fail,
    job_folder,
    load_host,
    load_job,
    write_json,
    write_text,
)
from lines import Stream, write_lines
from logs import Log

IDLE_S = 0.2  # after this long a line without an end (a prompt, a progress bar) is shown as it is
DRAIN_S = 1.0  # how long a process which outlives its rank may hold our pipes open
PR_SET_PDEATHSIG = 1
# Open MPI's choice of algorithms by size of message; see toolkit/network/tuning.py.
RULES, RULES_VARIABLE = "allreduce.rules", "OMPI_MCA_coll_tuned_dynamic_rules_filename"


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
    visible = next((each["visible"] for each in job["hosts"] if each["name"] == host), "")
    return {"CUDA_VISIBLE_DEVICES": visible} if visible else {}


def rank_env(base: Mapping[str, str], host: HostFile, job: Job, place: Place) -> dict[str, str]:
    """The user's command's environment; what is nearer to the person and the host comes later and wins:

    the launcher's, what was tuned, this host's network and GPUs, the cluster's, this host's own, the command
    line's, ours.
    """
    given = {**host["network"], **own_gpus(job, host["host"])}
    env = {**base, **tuned_env(job), **given, **job["env"], **host["env"], **job["override"]}
    env.pop(SUPERVISOR_MARK, None)
    env.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.size),
        LOCAL_RANK=str(place.local_rank),
        LOCAL_WORLD_SIZE=str(place.local_size),
        # torchrun has set these two and listens there; under MPI they are ours to set
        MASTER_ADDR=base.get("MASTER_ADDR", job["master_address"]),
        MASTER_PORT=base.get("MASTER_PORT", str(job["master_port"])),
        HOSTNAME=socket.gethostname(),  # horovodrun hands main's to every rank
        TOOLKIT_HOST=host["host"],
        PYTHONUNBUFFERED="1",
    )
    env[JOB_MARK], env[RANK_MARK] = job["id"], str(place.rank)
    return env


class Child:
    """The user's command: its group gets our signals, and it dies when we do."""

    def __init__(self, argv: list[str], workdir: str, env: dict[str, str], lease: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: list[int] = []
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._forward)
        libc = ctypes.CDLL(None)  # loaded before the fork: after it little is safe
        parent = os.getpid()

        def prepare() -> None:
            os.setpgid(0, 0)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # we died before the line above
                os._exit(128 + signal.SIGKILL)

        self._process = subprocess.Popen(
            argv,
            cwd=workdir,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=prepare,
            bufsize=0,
        )
        self._launcher = os.getppid()
        self._lost: float | None = None
        self._lease = lease
        self._looked = time.monotonic()
        for early in self._asked:
            self.signal(early)

    def _forward(self, signum: int, _frame: FrameType | None) -> None:
        self._asked.append(signum)
        self.signal(signum)

    def signal(self, signum: int) -> None:
        """Signal the child's group, unless the child has been waited for."""
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, signum)

    def watch(self, grace: float) -> None:
        """End the child, TERM then KILL, once our launcher is gone or the lease has lapsed."""
        now = time.monotonic()
        if self._lost is None and (os.getppid() != self._launcher or self._has_lapsed(now)):
            self._lost = now
            self.signal(signal.SIGTERM)
        elif self._lost is not None and now > self._lost + grace:
            self.signal(signal.SIGKILL)

    def _has_lapsed(self, now: float) -> bool:
        """Whether the lease has ended, and lease.py, whose duty we are then, has done nothing about it."""
        if now < self._looked + BEAT_S:
            return False
        self._looked = now
        try:
            return now > float(self._lease.read_bytes()) + LEASE_S / 2
        except (OSError, ValueError):
            return False  # it is only just being written, or the job is over

    def hold(self, stopping: Path, limit: float) -> None:
        """While the job's other ranks use their grace, keep our child's end to ourselves."""
        deadline = time.monotonic() + limit
        while stopping.exists() and not self._asked and time.monotonic() < deadline:
            if os.getppid() != self._launcher:
                break
            time.sleep(IDLE_S / 2)

    def copy(self, streams: tuple[Stream, Stream], log: Log, grace: float) -> int:
        """Copy the output until the child has ended; returns the exit code, 128+n for signal n."""
        process = self._process
        assert process is not None and process.stdout is not None and process.stderr is not None
        selector = selectors.DefaultSelector()
        selector.register(process.stdout, selectors.EVENT_READ, streams[0])
        selector.register(process.stderr, selectors.EVENT_READ, streams[1])
        heard = dict.fromkeys(streams, time.monotonic())
        ended: float | None = None
        while selector.get_map():
            for key, _ in selector.select(IDLE_S / 2):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                with suppress(OSError):  # a full disk costs the rank its log, not its life
                    log.write(data)
                heard[key.data] = time.monotonic()
                write_lines(key.data.out, key.data.feed(data))
            now = time.monotonic()
            for stream in streams:
                if stream.pending and now > heard[stream] + IDLE_S:
                    write_lines(stream.out, stream.flush())
            self.watch(grace)
            if process.poll() is not None:
                ended = ended or now
                if now > max(ended, *heard.values()) + DRAIN_S:
                    break
        for stream in streams:
            write_lines(stream.out, stream.flush(last=True))
        while process.poll() is None:  # it has closed its outputs and works on
            time.sleep(IDLE_S / 2)
            self.watch(grace)
        return exit_code_of(process.returncode)


def main() -> int:
    if len(sys.argv) != 2:
        fail(EXIT_USAGE, "usage: rank.py JOB")
    job = load_job(sys.argv[1])
    host = load_host()
    place = find_place(os.environ)
    if place is None:
        fail(EXIT_USAGE, f"{host['host']}: the launcher has set no rank and no world size")
    name = f"{host['host']} {place.rank}"
    if place.size != job["world_size"]:
        fail(
            EXIT_USAGE,
            f"{name}: the launcher made a world of {place.size} ranks, the job asked for {job['world_size']}",
        )
    if not Path(job["workdir"]).is_dir():
        fail(EXIT_NO_INPUT, f"{name}: there is no folder {job['workdir']}")
    folder = job_folder(job["id"])
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if job["rules"]:
        write_text(folder / RULES, job["rules"])  # by every rank of a host: each time the same
    prefix = f"[{name}] ".encode()
    streams = (Stream(1, prefix), Stream(2, prefix))
    with closing(Log(logs / f"rank-{place.rank}.log", job["log_bytes"])) as log:
        child = None
        try:
            env = rank_env(os.environ, host, job, place)
            child = Child(job["command"], job["workdir"], env, folder / LEASE)
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            text = f"[toolkit] cannot start {job['command'][0]}: {error.strerror}\n".encode()
            log.write(text)
            write_lines(2, streams[1].feed(text))
        else:
            code = child.copy(streams, log, job["grace"])
    # torchrun ends with 1 whatever its ranks' codes; the supervisor reads the true one here
    record = {"rank": place.rank, "host": host["host"], "exit_code": code, "ended": time.time()}
    write_json(logs / f"rank-{place.rank}.exit", record)
    if child is not None:
        child.hold(folder / STOPPING, 2 * job["grace"])
    return code


if __name__ == "__main__":
    sys.exit(main())
