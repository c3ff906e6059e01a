"""Launches of a job: the supervisor's side, its open files for them, and the program that runs one on a host.

The program runs the launch for as long as the supervisor holds its standard input open.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from toolkit.container.conventions import (
    JOB_TAG,
    SUPERVISOR_TAG,
    exit_code_of,
    fail,
    launcher_env,
    program,
    root,
    temporary_folder,
)
from toolkit.container.job.exec_mode import EXEC
from toolkit.container.job_file import Job, grace_of, load_host, load_job
from toolkit.container.logs.lines import Merger
from toolkit.protocol.outcomes import EXIT_USAGE

# The end of stdin is the order to stop. It arrives in the same way on main and through ssh, and also if the
# supervisor, its host or the connection dies: a launch never outlives its supervisor. A number before the end
# is the grace in seconds.

# In a launch's words; see toolkit/launchers/job.py.
INTERFACE = "{interface}"
# Read by kubexec.sh, which launchers call in place of ssh.
TRANSPORT, AGENT = "TOOLKIT_TRANSPORT", "kubexec.sh"


def main() -> int:
    if len(sys.argv) != 3:
        fail(EXIT_USAGE, "usage: job.launch JOB INDEX")
    job = load_job(sys.argv[1])
    launch = job["launches"][int(sys.argv[2])]
    env = launcher_env({**os.environ, **launch["env"], JOB_TAG: job["id"]}, job["id"])
    env.pop(SUPERVISOR_TAG, None)
    restore_limit(env)
    temporary_folder(job["id"]).mkdir(mode=0o700, exist_ok=True)
    env[TRANSPORT] = job["transport"]
    woken = wake_on_signals()
    asked: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda number, _frame: asked.append(number))
    interface = load_host()["interface"]
    try:
        child = subprocess.Popen(
            [word.replace(INTERFACE, interface) for word in launch["argv"]],
            stdin=subprocess.DEVNULL,
            env=env,
            cwd=job["workdir"],
            start_new_session=True,  # so that its group can be ended as one
        )
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        if shutil.which(launch["argv"][0]) is None:
            fail(
                code,
                f"the image has no {launch['argv'][0]}; run `toolkit image inspect` to list its launchers",
            )
        fail(code, f"cannot start {launch['argv'][0]} in {job['workdir']}: {error.strerror}")
    while child.poll() is None:
        readable, _, _ = select.select([0, woken], [], [], 1.0)
        if woken in readable:
            os.read(woken, 4096)
        order = os.read(0, 4096) if 0 in readable else None
        if asked or order is not None:
            _end(child, float(order) if order else grace_of(job))
    return exit_code_of(child.returncode)


def wake_on_signals() -> int:
    """Return a descriptor that becomes readable after a signal, including the exit of a child."""
    woken, waking = os.pipe()
    for end in (woken, waking):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda number, _frame: None)
    return woken


def _end(child: subprocess.Popen[bytes], grace: float) -> None:
    if grace > 0:
        os.killpg(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _label(job: Job, host: str) -> bytes:
    """Return the host before lines of a launcher; empty if the job has one launcher for all hosts."""
    hosts = {launch["host"] for launch in job["launches"]}
    is_part = job["transport"] == EXEC and job["world_size"] > sum(each["slots"] for each in job["hosts"])
    return f"[{host}] ".encode() if len(hosts) > 1 or is_part else b""


KILLED_S = 1.0  # for the kernel to end a process


class Running:
    """A launch that has been started."""

    def __init__(self, job: Job, index: int) -> None:
        self.launch = job["launches"][index]
        self.merger = Merger(_label(job, self.launch["host"]))
        self.code: int | None = None
        self.ended = 0.0
        self.out = False  # its host was left out, so its end is not a failure
        argv = [sys.executable, *program("job.launch"), job["id"], str(index)]
        if self.launch["host"] != job["main"]:
            argv = ["sh", str(root() / "inside" / AGENT), self.launch["host"], "python3", *argv[1:]]
        env = launcher_env({**os.environ, JOB_TAG: job["id"]}, job["id"])
        env.pop(SUPERVISOR_TAG)
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,  # its end is the order to stop, also if this process dies
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )

    @property
    def name(self) -> str:
        return f"{self.launch['name'] or Path(self.launch['argv'][0]).name} on {self.launch['host']}"

    def stop(self, grace: float) -> None:
        """Order the launch to end: TERM to its group, KILL after the grace."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with suppress(OSError):  # it has exited
                self.process.stdin.write(f"{grace}\n".encode())
                self.process.stdin.close()

    def close(self) -> None:
        """Kill the process, if the cleanup has not, and close its pipes."""
        if self.process.poll() is None:
            self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILLED_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


# The supervisor's original soft limit, for the launches: many programs pass descriptors to select(2),
# which rejects any above 1,023, so they must start with the limit of the container.
SOFT = "TOOLKIT_OPEN_FILES"

# Three standard streams of a lease; standard input and output of a launch; at the end, the output of an
# ssh for each host whose lease does not answer, with both ends of its pipes during its start.
PER_LEASE, PER_LAUNCH, PER_SWEEP = 3, 2, 5
OTHERS = 64  # the interpreter, logs, selectors, locks, the collector of stacks


def raise_limit() -> int:
    """Raise the soft limit of this process to the hard limit; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.environ.setdefault(SOFT, str(soft))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # the kernel now allows fewer (fs.nr_open)
        return soft
    return hard


def restore_limit(env: MutableMapping[str, str]) -> None:
    """Set the soft limit of this process to the supervisor's original one, if `env` has it."""
    soft = env.pop(SOFT, "")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if soft and 0 <= int(soft) <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), hard))


def needed_descriptors(job: Job) -> int:
    """Return the maximum number of descriptors that the supervisor of a job needs at once."""
    hosts = {job["main"], *(host["name"] for host in (*job["hosts"], *job["spares"]))}
    return OTHERS + (PER_LEASE + PER_SWEEP) * len(hosts) + PER_LAUNCH * len(job["launches"])


def too_few_descriptors(job: Job, hard: int) -> str:
    """Return the reason why a job cannot run with a hard limit, empty if it can."""
    need = needed_descriptors(job)
    if need <= hard:
        return ""
    hosts = len(job["hosts"]) + len(job["spares"])
    return (
        f"the supervisor on {job['main']} needs {need:,} open files for {hosts} hosts, but the hard limit of "
        f"its container is {hard:,}; set `ulimits: {{nofile: {need}}}` in hosts.yaml, then run `toolkit up`"
    )
