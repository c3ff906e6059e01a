"""Checks that a test leaves this process as it found it, names what it left, and puts it back."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import select
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

ENDING_S = 10.0  # limit for threads and processes that are ending; what goes on is found after it
SIGNALS = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
# pytest writes this variable itself, and coverage tools theirs.
OTHERS_VARIABLES = ("PYTEST_CURRENT_TEST",)
_FOLDERS = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in _FOLDERS})
_PR_SET_CHILD_SUBREAPER = 36


@functools.cache
def adopt_orphans() -> None:
    """Become the parent of every process that a test starts indirectly; only Linux can do this."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Before:
    """The state of this process before a test."""

    def __init__(self) -> None:
        self.modules = dict(sys.modules)
        self.path, self.argv = list(sys.path), list(sys.argv)
        self.variables = dict(os.environ)
        self.folder = os.getcwd()
        self.threads = set(threading.enumerate())
        self.children = children()
        self.handlers = [signal.getsignal(number) for number in SIGNALS]
        self.umask = _umask()
        self.files = open_files()
        self.collecting = gc.isenabled()

    def left(self) -> list[str]:
        """Put everything back and return what was left, one sentence each."""
        # Files last: a thread or a process that ends closes its own.
        looks = (self._modules, self._lists, self._variables, self._folder, self._settings)
        return [line for look in (*looks, self._processes, self._threads, self._files) for line in look()]

    def _modules(self) -> Iterator[str]:
        if sys.modules == self.modules:
            return
        for name, module in list(sys.modules.items()):
            if name not in self.modules and not is_library(name, module):
                del sys.modules[name]
                yield f"module {name} in sys.modules"
        for name, module in self.modules.items():
            if sys.modules.get(name) is not module:
                sys.modules[name] = module
                yield f"another module {name}, or none, in sys.modules"

    def _lists(self) -> Iterator[str]:
        for name, now, before in (("sys.path", sys.path, self.path), ("sys.argv", sys.argv, self.argv)):
            if now != before:
                yield f"{name} is {now}, was {before}"
                now[:] = before

    def _variables(self) -> Iterator[str]:
        now = dict(os.environ)
        if now == self.variables:
            return
        for name in sorted(now.keys() | self.variables.keys()):
            if name in OTHERS_VARIABLES or now.get(name) == self.variables.get(name):
                continue
            yield f"variable {name} is {now.get(name)!r}, was {self.variables.get(name)!r}"
            if name in self.variables:
                os.environ[name] = self.variables[name]
            else:
                del os.environ[name]

    def _folder(self) -> Iterator[str]:
        try:
            now = os.getcwd()
        except OSError as error:
            now = str(error)
        if now != self.folder:
            os.chdir(self.folder)
            yield f"working directory is {now}, was {self.folder}"

    def _settings(self) -> Iterator[str]:
        for number, before in zip(SIGNALS, self.handlers, strict=True):
            if (now := signal.getsignal(number)) != before:
                if before is not None:
                    signal.signal(number, before)
                yield f"handler of {signal.Signals(number).name} is {now}, was {before}"
        if (umask := _umask()) != self.umask:
            os.umask(self.umask)
            yield f"umask is {umask:03o}, was {self.umask:03o}"
        if gc.isenabled() != self.collecting:
            (gc.enable if self.collecting else gc.disable)()
            yield "garbage collection is " + ("off" if self.collecting else "on")

    def _threads(self) -> Iterator[str]:
        until = time.monotonic() + ENDING_S
        for thread in threading.enumerate():
            if thread in self.threads or thread is threading.current_thread():
                continue
            thread.join(max(until - time.monotonic(), 0))
            if thread.is_alive():
                kind = getattr(thread, "_target", None) or type(thread).__name__
                yield f"thread {thread.name}, {kind}"

    def _processes(self) -> Iterator[str]:
        until = time.monotonic() + ENDING_S
        # The children of a child that ends become children of this process.
        while new := children() - self.children:
            for pid in new:
                command = _command(pid)
                if not has_ended(pid, max(until - time.monotonic(), 0)):
                    yield f"process {pid}: {command}"
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _files(self) -> Iterator[str]:
        if not open_files() - self.files:
            return
        gc.collect()  # what an exception or a cycle still holds
        for number in sorted(open_files() - self.files):
            try:
                target = os.readlink(f"/proc/self/fd/{number}")
            except OSError:
                target = "a file"
            with suppress(OSError):
                os.close(number)
                yield f"file descriptor {number} of {target}"


def is_library(name: str, module: ModuleType | None) -> bool:
    """Return True for a module of the standard library, an installed package, toolkit or its tests."""
    if name.partition(".")[0] in ("toolkit", "tests") or name.partition(".")[0] in sys.stdlib_module_names:
        return True
    if name.startswith("_cython_"):  # of the first library compiled by Cython; it has no file
        return True
    # A namespace package has no file, but folders.
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return any(str(place).startswith(_LIBRARIES) for place in places)


def children() -> set[int]:
    """Return the numbers of the children of this process, zombies included; empty except on Linux."""
    if sys.platform != "linux":
        return set()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found.update(map(int, path.read_text().split()))
    return found


def open_files() -> set[int]:
    """Return the open file descriptors of this process; empty where /proc is absent."""
    try:
        numbers = {int(name) for name in os.listdir("/proc/self/fd")}
    except OSError:
        return set()
    return {number for number in numbers if _is_open(number)}  # without that of the listing


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()[:200]


def has_ended(pid: int, seconds: float) -> bool:
    """Wait for a child until it has ended, at most `seconds`; its exit status stays to be read."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)
