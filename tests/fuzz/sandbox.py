"""A folder for a command line to run in, and a guard at the interpreter's door: nothing gets out unseen.

The guard is an audit hook (https://docs.python.org/3/library/audit_events.html): sockets and new processes
end the command at once, and files can be changed in the folder only, where a look afterwards finds it out.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CONTACTS = (
    "socket.",
    "subprocess.",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.system",
    "os.kill",
)
_CHANGES = (
    *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink"),
    *("os.truncate", "os.utime", "os.setxattr", "os.removexattr", "os.mkfifo", "os.mknod"),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Contact(BaseException):
    """The command was about to open a socket or to start a process."""


class Hang(BaseException):
    """The command took too long; ``stacks`` shows where its threads are."""

    def __init__(self) -> None:
        super().__init__()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        self.stacks = ""
        for number, frame in sys._current_frames().items():
            self.stacks += f"\n{names.get(number)}\n{''.join(traceback.format_stack(frame)[-8:])}"


def _join_others(known: set[threading.Thread]) -> None:
    """Wait for all threads that are not among these, and for those that they begin."""
    while others := set(threading.enumerate()) - known:
        for thread in others:
            if thread.is_alive():
                thread.join()
            else:
                time.sleep(0.001)  # it is listed before it has begun, and can be waited for only then


class Sandbox:
    """The folder and its guard; ``changes`` and ``contacts`` say what the last command did."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.folder, self.files = folder, files
        self.changes: list[str] = []
        self.contacts: list[str] = []
        self._active = self._touched = False
        sys.dont_write_bytecode = True  # what is imported while the guard watches leaves no .pyc
        sys.addaudithook(self._see)
        self._fill()

    def put(self, name: str, data: bytes) -> None:
        """Add a file to those that are in the folder before each command."""
        self.files[name] = data
        (self.folder / name).write_bytes(data)

    def _fill(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, data in self.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            if not path.suffix:
                path.chmod(0o755)  # `run` refuses a program that is not executable

    @contextmanager
    def watched(self, seconds: int) -> Iterator[None]:
        """Run the block and its threads in the folder and under the guard, for at most `seconds`."""

        def ring(number: int, frame: Any) -> None:
            raise Hang

        if self._touched:
            self._fill()
        self.changes, self.contacts, self._touched = [], [], False
        before = Path.cwd()
        os.chdir(self.folder)
        old = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # again and again: a thread may hang as well
        known = set(threading.enumerate())
        self._active = True
        try:
            try:
                yield
            finally:
                # What gets ready meanwhile ends with the process; here it would run on into the next command.
                _join_others(known)
        finally:
            self._active = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
            os.chdir(before)
            self.changes = self._differences() if self._touched else []

    def _differences(self) -> list[str]:
        """The paths that are new, gone or different."""
        found = {str(p.relative_to(self.folder)): p for p in self.folder.rglob("*")}
        files = {name: path.read_bytes() for name, path in found.items() if path.is_file()}
        parents = {str(parent) for name in self.files for parent in Path(name).parents} - {"."}
        other = {name for name in found if name not in files} ^ parents
        return sorted(other | {n for n in files.keys() | self.files if files.get(n) != self.files.get(n)})

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event.startswith(_CONTACTS):
            self.contacts.append(f"{event} {args[:1]!r}")
            raise Contact(event)
        if event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
            if isinstance(args[2], int) and args[2] & _WRITING:
                self._change(args[0])
        elif event in _CHANGES:
            self._change(args[0])

    def _change(self, path: Any) -> None:
        where = Path("/dev/fd") if isinstance(path, int) else Path(os.fsdecode(path))
        place = Path(os.path.realpath(where))
        if self.folder in (place, *place.parents):
            self._touched = True
        elif str(where) != os.devnull:
            raise PermissionError(13, "Permission denied", str(where))
