"""User's command as a child of the rank program: its output, its end, and detection of lack of memory.

The kernel's counters show whether it killed a process for lack of memory.
"""

from __future__ import annotations

import ctypes
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from toolkit.container.conventions import HEARTBEAT_S, LEASE_S, exit_code_of
from toolkit.container.files import content
from toolkit.container.logs.lines import Stream, write_lines
from toolkit.container.logs.log import Log

POLL_S = 0.1  # interval at which the child and its output are examined
# After this time without output, an incomplete line (a progress bar, a step that takes long) is printed. With
# PYTHONUNBUFFERED, `print` makes one write per word, and a rank can lose the processor between two of them.
INCOMPLETE_S = 1.0
DRAIN_S = 0.5  # from a rank's exit to its record, if other processes hold its output open
LEFT_S = 1.0  # from TERM to KILL, for processes that a failed rank left in its process group
KILLED_S = 2.0  # for the kernel to end a process after KILL
PR_SET_PDEATHSIG = 1
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, -1
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION_3 = 0x20080522  # include/uapi/linux/capability.h


def capability_dropper() -> Callable[[], None]:
    """Return a function that drops the Linux capabilities of this process; it is safe after a fork.

    sshd in a worker container has capabilities if the SSH user is root. With no-new-privileges, which
    containers have, a program of root gets none back (capabilities(7)). Getting some back would also cancel
    the signal of PR_SET_PDEATHSIG. The function raises PermissionError if the kernel refuses.
    """
    libc, root = ctypes.CDLL(None), os.geteuid() == 0
    this, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()

    def drop() -> None:
        if root and (libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.capset(this, none)):
            raise PermissionError

    return drop


class Child:
    """The user's command: its process group receives the signals of this process, and exits with it."""

    def __init__(
        self,
        argv: list[str],
        workdir: str,
        env: dict[str, str],
        lease: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._output: Output | None = None
        self._returncode: int | None = None
        self.ended = 0.0  # time of its exit, seconds since the epoch
        self._clock = clock
        self._asked: list[int] = []
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._forward)
        # If SIGCHLD is ignored, which is inherited, the kernel keeps no exit status for waitid.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        libc = ctypes.CDLL(None)  # loaded before the fork, after which few calls are safe
        parent = os.getpid()
        drop = capability_dropper()

        def prepare() -> None:
            os.setpgid(0, 0)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            # Yama can forbid processes to read each other; py-spy could not print the stack of a hung rank
            # then.
            libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)
            drop()
            if os.getppid() != parent:  # the parent died before the line above
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
        self._memory = Memory()
        self._lease = lease
        self._looked = self._patient_until = clock()
        for early in self._asked:
            self.signal(early)

    def _forward(self, signum: int, _frame: FrameType | None) -> None:
        self._asked.append(signum)
        self.signal(signum)

    def signal(self, signum: int) -> None:
        """Signal the child's process group, unless the child has been reaped."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # it has exited, or belongs to another user
                os.killpg(self._process.pid, signum)

    def watch(self, grace: float) -> None:
        """End the child with TERM, then KILL, after the launcher has exited or the lease has expired."""
        now = self._clock()
        if self._lost is None and (os.getppid() != self._launcher or self._has_lapsed(now)):
            self._lost = now
            self.signal(signal.SIGTERM)
        elif self._lost is not None and now > self._lost + grace:
            self.signal(signal.SIGKILL)

    def _has_lapsed(self, now: float) -> bool:
        """Return whether the lease has expired and lease.py has not ended this rank."""
        if now < self._looked + HEARTBEAT_S:
            return False
        if now > self._looked + 2 * HEARTBEAT_S:
            self._patient_until = now + LEASE_S / 2  # this process stalled, and perhaps lease.py too
        self._looked = now
        self._memory.look()
        try:
            return now > max(self._patient_until, float(self._lease.read_bytes()) + LEASE_S / 2)
        except (OSError, ValueError):
            return False  # it is being written, or the job is over

    def hold(self, stopping: Path, grace: float) -> None:
        """Delay the report of the child's end while the job's other ranks use their grace.

        Args:
            grace, stopping: see ``longest_grace``; the delay is at most twice this grace.
        """
        began = self._clock()
        while stopping.exists() and not self._asked:
            late = self._clock() > began + 2 * longest_grace(grace, stopping)
            if late or os.getppid() != self._launcher:
                break
            time.sleep(POLL_S)

    def how_it_ended(self) -> dict[str, int | bool]:
        """Return the exit code (128+n for signal n), the signal (0 for none), and whether memory ran out."""
        assert self._returncode is not None
        number = max(0, -self._returncode)
        oom = number == signal.SIGKILL and self._memory.has_killed()
        return {"exit_code": exit_code_of(self._returncode), "signal": number, "oom": oom}

    def copy(
        self,
        streams: tuple[Stream, Stream],
        log: Log,
        grace: float,
        notice: Callable[[], str] | None = None,
    ) -> int:
        """Copy the output until the child has exited; return the exit code, 128+n for signal n.

        Orphaned processes of the child can hold its output open and print forever. Their output is
        copied for at most DRAIN_S after the exit.

        Args:
            notice: called between two copies; a text that it returns is added to the output as a line.
        """
        assert self._process is not None
        self._output = Output(self._process, streams, log)
        until = math.inf
        while self._output.is_open and self._clock() < until:
            self._output.pump(POLL_S)
            self.watch(grace)
            if notice is not None and (text := notice()):
                self._output.add_line(f"[toolkit] {text}")
            if until == math.inf and self.has_exited():
                until = self._clock() + DRAIN_S
        if self._output.is_open:
            self._output.pump(0)  # the last lines, if this process was stalled
        while not self.has_exited():  # it has closed its outputs and continues
            time.sleep(POLL_S)
            self.watch(grace)
        assert self._returncode is not None
        return exit_code_of(self._returncode)

    def has_exited(self) -> bool:
        """Return True once the child has exited. The child stays a zombie until `end_group`.

        Its pid is also that of its process group, and the kernel does not reuse the pid of a zombie.
        """
        if self._returncode is None:
            assert self._process is not None
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if (ended := os.waitid(os.P_PID, self._process.pid, how)) is not None:
                by_exit = ended.si_code == os.CLD_EXITED
                self._returncode = ended.si_status if by_exit else -ended.si_status
                self.ended = time.time()
        return self._returncode is not None

    def end_group(self, grace: float, stopping: Path) -> None:
        """End the orphaned processes in the process group of the exited child: TERM, then KILL.

        Processes of a failed rank have LEFT_S between the two. Those of another rank have `grace` seconds,
        because they can have something to save.

        Args:
            grace: see ``longest_grace``.
            stopping: exists while the job is being ended on this host. The cleanup has sent TERM then, and
                sends KILL after the grace of the complete job.
        """
        process, output = self._process, self._output
        assert process is not None and output is not None and self.has_exited()
        left = alive_in(process.pid)
        swept = stopping.exists()
        if left and not (swept or signal.SIGTERM in self._asked or self._lost is not None):
            self.signal(signal.SIGTERM)
        ending = swept or bool(self._asked) or self._lost is not None
        began = self._clock()
        while left:
            seconds = LEFT_S if self._returncode and not ending else longest_grace(grace, stopping)
            if self._clock() > began + seconds + KILLED_S:
                break
            if self._clock() > began + seconds and not stopping.exists():
                self.signal(signal.SIGKILL)
            output.pump(POLL_S / 2)
            self.watch(grace)
            left = alive_in(process.pid)
        output.drain(DRAIN_S)  # the last output of these processes
        output.close()
        process.wait()


def longest_grace(grace: float, stopping: Path) -> float:
    """Return the seconds that processes of the job can have between TERM and KILL.

    Args:
        grace: the job's own.
        stopping: file with the grace of the cleanup, which can be longer because of `stop`; see conventions.
    """
    with suppress(OSError, ValueError):  # no cleanup has begun, or the file is being written
        return max(grace, float(content(stopping)))
    return grace


class Output:
    """Output of the child, copied to the log and to the launcher."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        streams: tuple[Stream, Stream],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._streams, self._log, self._clock = streams, log, clock
        self._selector = selectors.DefaultSelector()
        self._selector.register(process.stdout, selectors.EVENT_READ, streams[0])
        self._selector.register(process.stderr, selectors.EVENT_READ, streams[1])
        self._pumped = clock()
        self._quiet = dict.fromkeys(streams, 0.0)  # seconds without output

    @property
    def is_open(self) -> bool:
        """Return True while a process holds a pipe open."""
        return bool(self._selector.get_map())

    def pump(self, seconds: float) -> None:
        """Copy the next output; wait for it at most this number of seconds.

        A call adds at most POLL_S to the time without output: if this process was stalled, the rank perhaps
        was too.
        """
        heard: set[Stream] = set()
        if not self.is_open:
            time.sleep(seconds)
        for key, _ in self._selector.select(seconds) if self.is_open else ():
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
                continue
            with suppress(OSError):  # a full disk costs the rank its log, not its life
                self._log.write(data)
            heard.add(key.data)
            write_lines(key.data.out, key.data.feed(data))
        before, self._pumped = self._pumped, self._clock()
        for stream in self._streams:
            quiet = self._quiet[stream] + min(self._pumped - before, POLL_S)
            self._quiet[stream] = 0.0 if stream in heard else quiet
            if stream.pending and self._quiet[stream] > INCOMPLETE_S:
                write_lines(stream.out, stream.flush())

    def add_line(self, text: str) -> None:
        """Print a line of toolkit between the lines of the child, on stderr."""
        line, stream = f"{text}\n".encode(), self._streams[1]
        with suppress(OSError):
            self._log.write(line)
        write_lines(stream.out, [*stream.flush(last=True), *stream.feed(line)])

    def drain(self, seconds: float) -> None:
        """Copy what is in the pipes; for at most this time, because a process can print forever."""
        until = time.monotonic() + seconds
        while self.is_open and self._selector.select(0) and time.monotonic() < until:
            self.pump(0)

    def close(self) -> None:
        """Print the incomplete line, and stop reading."""
        for stream in self._streams:
            write_lines(stream.out, stream.flush(last=True))
        self._selector.close()


def alive_in(group: int) -> list[int]:
    """Return the processes of a process group, without zombies."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has exited meanwhile
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[2]) == group and fields[0] not in (b"Z", b"X"):
                    found.append(int(folder.name))
    return found


# Counters of this container: cgroup v2, then v1 (https://docs.kernel.org/admin-guide/cgroup-v2.html,
# memory.events).
OWN = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
# Counters of the host (https://docs.kernel.org/filesystems/proc.html): they count kills in containers without
# a limit.
HOST = Path("/proc/vmstat")


def kills(path: Path) -> int:
    """Return N of a file's line `oom_kill N`; 0 if there is none."""
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


class Memory:
    """Periodic samples of the kill counters, so that a kill at the end can be dated."""

    def __init__(self) -> None:
        self._first = self._before = self._latest = self._look()

    def _look(self) -> tuple[int, int]:
        return max(map(kills, OWN)), kills(HOST)

    def look(self) -> None:
        """Take a sample; call it at least once a second."""
        self._before, self._latest = self._latest, self._look()

    def has_killed(self) -> bool:
        """Return whether the kernel has killed in this container since the start, or on the host recently."""
        own, host = self._look()
        return own > self._first[0] or host > self._before[1]
