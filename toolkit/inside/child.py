"""The user's command as a child of rank.py: its output copied, its end brought about and waited for."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from common import BEAT_S, LEASE_S, exit_code_of
from lines import Stream, write_lines
from logs import Log
from memory import Memory

IDLE_S = 0.2  # after this long a line without an end (a prompt, a progress bar) is shown as it is
DRAIN_S = 1.0  # how long a process which outlives its rank may hold our pipes open
PR_SET_PDEATHSIG = 1
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, -1


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
            # Where Yama keeps processes from reading each other, py-spy could not say where a rank hangs.
            libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)
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
        self._memory = Memory()
        self._lease = lease
        self._looked = self._patient_until = time.monotonic()
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
        if now > self._looked + 2 * BEAT_S:
            self._patient_until = now + LEASE_S / 2  # we stood still, and perhaps lease.py with us
        self._looked = now
        self._memory.look()
        try:
            return now > max(self._patient_until, float(self._lease.read_bytes()) + LEASE_S / 2)
        except (OSError, ValueError):
            return False  # it is only just being written, or the job is over

    def hold(self, stopping: Path, limit: float) -> None:
        """While the job's other ranks use their grace, keep our child's end to ourselves."""
        deadline = time.monotonic() + limit
        while stopping.exists() and not self._asked and time.monotonic() < deadline:
            if os.getppid() != self._launcher:
                break
            time.sleep(IDLE_S / 2)

    def how_it_ended(self) -> dict[str, int | bool]:
        """The exit code, 128+n for signal n; the signal, 0 for none; whether that was for lack of memory."""
        assert self._process is not None and self._process.returncode is not None
        number = max(0, -self._process.returncode)
        oom = number == signal.SIGKILL and self._memory.has_killed()
        return {"exit_code": exit_code_of(self._process.returncode), "signal": number, "oom": oom}

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
