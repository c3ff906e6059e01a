"""Replacements of the standard library where a program reaches processes, pipes, threads or clocks."""

from __future__ import annotations

import argparse
import errno
import fcntl as real_fcntl
import os as real_os
import queue as real_queue
import selectors as real_selectors
import signal as real_signal
import subprocess as real_subprocess
import sys as real_sys
import threading as real_threading
import time as real_time
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fuzz.kernel import End, Host, Pipe, Process, Replaced, Task, wake_all

if TYPE_CHECKING:
    from tests.fuzz.programs import Cluster, Image

FIRST_FD = 100_000  # of simulated pipes; numbers below are real files
HANDLE = 1 << 24  # added to a process id: a pidfd


class Facade:
    """A module with some of its names replaced."""

    def __init__(self, real: Any, **changes: Any) -> None:
        self._real = real
        self.__dict__.update(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class File:
    """A pipe's end as a file object of Python."""

    def __init__(self, cluster: Cluster, process: Process, fd: int) -> None:
        self._cluster, self._process, self._fd = cluster, process, fd
        self._unsent = b""
        self.closed = False

    def fileno(self) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._fd

    def write(self, data: bytes) -> int:
        self.fileno()
        self._unsent += data
        return len(data)

    def flush(self) -> None:
        os = self._cluster.images[self._process.host.name].os
        while self._unsent:
            data, self._unsent = self._unsent, b""
            self._unsent = data[os.write(self.fileno(), data) :]

    def read(self, _most: int = -1) -> bytes:
        os = self._cluster.images[self._process.host.name].os
        found = b""
        while True:
            try:
                data = os.read(self.fileno(), 1 << 16)
            except BlockingIOError:
                return found
            if not data:
                return found
            found += data

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
            finally:
                self.closed = True
                end = self._process.fds.pop(self._fd, None)
                if end is not None:
                    end.close()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Proc:
    """/proc as one host shows it."""

    def __init__(self, host: Callable[[], Host], parts: tuple[str, ...]) -> None:
        self._host, self._parts = host, parts

    @property
    def name(self) -> str:
        return self._parts[-1]

    def __truediv__(self, name: str) -> Proc:
        return Proc(self._host, (*self._parts, name))

    def iterdir(self) -> list[Proc]:
        return [Proc(self._host, (*self._parts, str(pid))) for pid in list(self._host().processes)]

    def _process(self) -> Process:
        process = self._host().processes.get(int(self._parts[1]))
        if process is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/".join(self._parts))
        return process

    def stat(self) -> Any:
        self._process()
        return types.SimpleNamespace(st_uid=real_os.getuid())

    def read_bytes(self) -> bytes:
        if not self._parts[1].isdigit():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/".join(self._parts))
        process = self._process()
        if self._parts[-1] == "environ":
            return b"".join(f"{name}={value}\0".encode() for name, value in process.environ.items())
        if self._parts[-1] == "comm":
            return process.argv[0].rpartition("/")[2][:15].encode() + b"\n"
        parent = process.parent.pid if process.parent else 1
        return f"{process.pid} (x) S {parent} {process.pgid}".encode()

    def read_text(self) -> str:
        return self.read_bytes().decode()


def path_class(cache: dict[Any, Any], followed: Callable[[Path], Path]) -> type[Path]:
    """Return Path with a memory of what was read: programs read the same files ten times a second.

    Args:
        followed: returns the file to which a path leads.
    """

    class Remembering(type(Path())):  # type: ignore[misc]
        def _remembered(self, read: Callable[[], Any], *key: Any) -> Any:
            key = (str(self), *key)
            if key not in cache:
                cache[key] = read()
            return cache[key]

        def glob(self, pattern: str) -> Any:
            return self._remembered(lambda: list(super(Remembering, self).glob(pattern)), "glob", pattern)

        def read_text(self, *given: Any, **named: Any) -> Any:
            return self._remembered(lambda: super(Remembering, self).read_text(*given, **named), "text")

        def read_bytes(self) -> Any:
            return self._remembered(lambda: followed(Path(self)).read_bytes(), "bytes")

        def open(self, mode: str = "r", *given: Any, **named: Any) -> Any:
            if set(mode) & set("wax+"):
                cache.clear()
            return super().open(mode, *given, **named)

    for name in ("mkdir", "touch", "unlink", "replace", "rename", "rmdir", "symlink_to"):

        def forgetting(self: Any, *given: Any, _name: str = name, **named: Any) -> Any:
            cache.clear()
            return getattr(super(Remembering, self), _name)(*given, **named)

        setattr(Remembering, name, forgetting)
    return Remembering


def fake_os(cluster: Cluster, image: Image) -> Any:
    names: dict[int, str] = {}  # of real files, by descriptor

    def end_of(fd: int) -> End | None:
        process = cluster.process
        if fd in process.fds:
            return process.fds[fd]
        if fd >= FIRST_FD:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return None

    def read(fd: int, most: int) -> bytes:
        cluster.sim.give_way()
        end = end_of(fd)
        if end is None:
            return b"" if fd < 3 else real_os.read(fd, most)
        pipe = end.pipe
        if not pipe.readable:
            if not end.blocking:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            cluster.sim.wait_until(lambda: pipe.readable, [pipe.waiters], None)
        return pipe.take(most)

    def write(fd: int, data: bytes) -> int:
        cluster.sim.give_way()
        end = end_of(fd)
        if end is None and fd == 2:
            cluster.sim.errors.append((cluster.process.name, data.decode(errors="replace")))
        if end is None:
            return len(data) if fd < 3 else real_os.write(fd, data)
        pipe = end.pipe
        if end.blocking:
            cluster.sim.wait_until(lambda: pipe.writable, [pipe.waiters], None)
        return pipe.put(data)

    def close(fd: int) -> None:
        if fd >= HANDLE:
            return
        end = cluster.process.fds.pop(fd, None)
        if end is not None:
            end.close()
        elif fd >= FIRST_FD:
            raise OSError(errno.EBADF, "Bad file descriptor")
        elif fd > 2:
            cluster.process.real_fds.discard(fd)
            real_os.close(fd)

    def open_(path: Any, flags: int, mode: int = 0o777) -> int:
        process = cluster.process
        if flags & (real_os.O_WRONLY | real_os.O_RDWR):
            image.remembered.clear()
        fd = real_os.open(path, flags, mode)

        def closed() -> None:
            if fd in process.real_fds:
                image.remembered.clear()  # a link can lead to it
                process.real_fds.discard(fd)
                real_os.close(fd)

        names[fd] = str(path)
        process.real_fds.add(fd)
        process.on_exit.append(closed)
        return fd

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        image.remembered.pop((names.get(fd, ""), "bytes"), None)
        return real_os.pwrite(fd, data, offset)

    def fdopen(fd: int, *given: Any, **named: Any) -> Any:
        cluster.process.real_fds.discard(fd)
        return real_os.fdopen(fd, *given, **named)

    def pipe() -> tuple[int, int]:
        made = Pipe(cluster.sim)
        process = cluster.process
        return process.give(End(made, "r")), process.give(End(made, "w"))

    def set_blocking(fd: int, blocking: bool) -> None:
        end = end_of(fd)
        if end is not None:
            end.blocking = blocking

    def kill(pid: int, signum: int) -> None:
        process = image.host.processes.get(pid) or image.host.zombies.get(pid)
        if process is None:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        process.signal(signum)
        cluster.sim.give_way()

    def killpg(pgid: int, signum: int) -> None:
        there = (*image.host.processes.values(), *image.host.zombies.values())
        found = [each for each in there if each.pgid == pgid]
        if not found:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        for each in found:
            each.signal(signum)
        cluster.sim.give_way()

    def pidfd_open(pid: int) -> int:
        if pid not in image.host.processes:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return HANDLE + pid

    def setpgid(_pid: int, _group: int) -> None:
        cluster.process.pgid = cluster.process.pid

    def execve(_path: str, argv: list[str], env: dict[str, str]) -> None:
        raise Replaced(list(argv), dict(env))

    def execvp(_file: str, argv: list[str]) -> None:
        raise Replaced(list(argv), cluster.process.env)

    def wait() -> tuple[int, int]:
        process = cluster.process
        cluster.sim.wait_until(lambda: process.unwaited, [process.waiters], None)
        child = process.unwaited[0]
        child.forget()
        code = child.returncode or 0
        return child.pid, -code if code < 0 else code << 8

    def waitid(_kind: int, pid: int, options: int) -> Any:
        me = cluster.process
        child = next((each for each in (*me.children, *me.unwaited) if each.pid == pid), None)
        if child is None:
            raise ChildProcessError(errno.ECHILD, "No child processes")
        if not child.dead:
            if options & real_os.WNOHANG:
                return None
            cluster.sim.wait_until(lambda: child.dead, [child.waiters], None)
        if not options & real_os.WNOWAIT:
            child.forget()
        code = child.returncode or 0
        how = real_os.CLD_KILLED if code < 0 else real_os.CLD_EXITED
        return types.SimpleNamespace(si_pid=pid, si_status=abs(code), si_code=how)

    class Os(Facade):
        @property
        def environ(self) -> dict[str, str]:
            return cluster.process.env

    return Os(
        real_os, read=read, write=write, close=close, open=open_, pwrite=pwrite, fdopen=fdopen, pipe=pipe,
        set_blocking=set_blocking, kill=kill, killpg=killpg, pidfd_open=pidfd_open, setpgid=setpgid,
        execve=execve, execvp=execvp, wait=wait, waitid=waitid,
        getpid=lambda: cluster.process.pid,
        getppid=lambda: cluster.process.parent.pid if cluster.process.parent else 1,
        getsid=lambda _: cluster.process.pid, setsid=lambda: None, fsync=lambda _: None,
    )  # fmt: skip


def fake_sys(cluster: Cluster, os: Any) -> Any:
    class Stream:
        def __init__(self, fd: int) -> None:
            self._fd = fd

        def write(self, text: str) -> None:
            os.write(self._fd, text.encode())

        def flush(self) -> None:
            pass

    class Sys(Facade):
        @property
        def argv(self) -> list[str]:
            return cluster.process.argv

        @property
        def orig_argv(self) -> list[str]:
            return ["python3", "/run/toolkit/inside/run.py", *cluster.process.argv]

    return Sys(real_sys, executable="python3", stdout=Stream(1), stderr=Stream(2))


def fake_time(cluster: Cluster, image: Image) -> Any:
    def monotonic() -> float:
        cluster.sim.give_way()
        return cluster.sim.now + image.host.boot

    return Facade(
        real_time,
        monotonic=monotonic,
        perf_counter=monotonic,
        time=lambda: cluster.sim.now + image.host.wall,
        sleep=lambda seconds: cluster.sim.wait(seconds) and None,
    )


def fake_signal(cluster: Cluster) -> Any:
    def set_handler(signum: int, handler: Any) -> Any:
        before = cluster.process.handlers.get(signum, real_signal.SIG_DFL)
        cluster.process.handlers[signum] = None if handler is real_signal.SIG_DFL else handler
        return before

    def send(handle: int, signum: int) -> None:
        host = cluster.process.host
        process = host.processes.get(handle - HANDLE) or host.zombies.get(handle - HANDLE)
        if process is None:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        process.signal(signum)

    def set_wakeup(fd: int) -> int:
        cluster.process.wakeup = fd
        return -1

    return Facade(real_signal, signal=set_handler, pidfd_send_signal=send, set_wakeup_fd=set_wakeup,
                  getsignal=lambda signum: cluster.process.handlers.get(signum))  # fmt: skip


class _Thread:
    """A thread of the standard library, as far as the programs use it."""

    cluster: Cluster

    def __init__(
        self,
        group: None = None,
        target: Any = None,
        name: str = "",
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool = False,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._task: Task | None = None
        self._target, self._args, self._kwargs = target, args, kwargs or {}

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        self.cluster.sim.give_way()
        self._task = Task(self.cluster.sim, self.cluster.process, self.run, self.daemon)
        self._task.start()

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        assert task is not None
        self.cluster.sim.wait_until(lambda: task.done, [task.joiners], timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done


class _Lock:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._owner: Task | None = None
        self._depth = 0
        self._again = False
        self._waiters: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        sim = self._cluster.sim
        sim.give_way()
        if self._owner is sim.current and self._again:
            self._depth += 1
            return True
        limit = 0.0 if not blocking else None if timeout < 0 else timeout
        if not sim.wait_until(lambda: self._owner is None, [self._waiters], limit):
            return False
        self._owner, self._depth = sim.current, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._owner = None
            wake_all(self._waiters)

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Event:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._set = cluster, False
        self._waiters: list[Task] = []

    def set(self) -> None:
        self._set = True
        wake_all(self._waiters)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        return self._cluster.sim.wait_until(lambda: self._set, [self._waiters], timeout)


class Queue:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._items: list[Any] = []
        self._waiters: list[Task] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        wake_all(self._waiters)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        limit = timeout if block else 0.0
        if not self._cluster.sim.wait_until(lambda: self._items, [self._waiters], limit):
            raise real_queue.Empty
        return self._items.pop(0)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items


def fake_threading(cluster: Cluster) -> Any:
    def again() -> _Lock:
        lock = _Lock(cluster)
        lock._again = True
        return lock

    return Facade(
        real_threading,
        Thread=type("Thread", (_Thread,), {"cluster": cluster}),
        Lock=lambda: _Lock(cluster),
        RLock=again,
        Event=lambda: _Event(cluster),
    )


def _fd_of(file: Any) -> int:
    return file if isinstance(file, int) else file.fileno()


def fake_select(
    cluster: Cluster, image: Image, reads: Any, writes: Any, _errors: Any, timeout: Any = None
) -> Any:
    with Selector(cluster, image) as selector:
        for file in reads:
            selector.register(file, real_selectors.EVENT_READ)
        for file in writes:
            selector.register(file, real_selectors.EVENT_WRITE)
        found = selector.select(timeout)
        readable = [key.fileobj for key, mask in found if mask & real_selectors.EVENT_READ]
        return readable, [key.fileobj for key, mask in found if mask & real_selectors.EVENT_WRITE], []


class Selector:
    def __init__(self, cluster: Cluster, image: Image) -> None:
        self._cluster, self._image = cluster, image
        self._keys: dict[int, real_selectors.SelectorKey] = {}

    def register(self, file: Any, events: int, data: Any = None) -> Any:
        fd = _fd_of(file)
        if fd in self._keys:
            raise KeyError(f"{file!r} is already registered")
        self._keys[fd] = real_selectors.SelectorKey(file, fd, events, data)
        return self._keys[fd]

    def _look_up(self, file: Any) -> int | None:
        return next(
            (fd for fd, key in self._keys.items() if key.fileobj is file or key.fileobj == file), None
        )

    def unregister(self, file: Any) -> Any:
        fd = self._look_up(file)
        if fd is None:
            raise KeyError(f"{file!r} is not registered")
        return self._keys.pop(fd)

    def get_map(self) -> Any:
        return {key.fileobj: key for key in self._keys.values()}

    def _ready(self, process: Process) -> list[tuple[real_selectors.SelectorKey, int]]:
        found = []
        for fd, key in self._keys.items():
            end = process.fds.get(fd)
            if end is None:
                if fd == 0:  # /dev/null
                    found.append((key, real_selectors.EVENT_READ))
                continue
            mask = real_selectors.EVENT_READ if end.pipe.readable and end.mode == "r" else 0
            mask |= real_selectors.EVENT_WRITE if end.mode == "w" and end.pipe.writable else 0
            if mask & key.events:
                found.append((key, mask & key.events))
        return found

    def select(self, timeout: float | None = None) -> list[tuple[real_selectors.SelectorKey, int]]:
        sim, process = self._cluster.sim, self._cluster.process
        sim.give_way()
        waiters = [process.fds[fd].pipe.waiters for fd in self._keys if fd in process.fds]
        sim.wait_until(lambda: self._ready(process), waiters, timeout)
        return self._ready(process)

    def close(self) -> None:
        self._keys.clear()

    def __enter__(self) -> Selector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fake_subprocess(cluster: Cluster) -> Any:
    class Popen:
        def __init__(
            self,
            args: Any,
            stdin: Any = None,
            stdout: Any = None,
            stderr: Any = None,
            env: Any = None,
            cwd: Any = None,
            start_new_session: bool = False,
            preexec_fn: Any = None,
            bufsize: int = -1,
        ) -> None:
            me = cluster.process
            cluster.sim.give_way()
            self.args = args
            self.stdin = self.stdout = self.stderr = None
            fds: dict[int, End] = {}
            for number, given in ((0, stdin), (1, stdout), (2, stderr)):
                mode = "r" if number == 0 else "w"
                if given == real_subprocess.PIPE:
                    pipe = Pipe(cluster.sim)
                    fds[number] = End(pipe, mode)
                    file = File(cluster, me, me.give(End(pipe, "w" if number == 0 else "r")))
                    setattr(self, ("stdin", "stdout", "stderr")[number], file)
                elif given == real_subprocess.STDOUT:
                    fds[number] = End(fds[1].pipe, "w")
                elif given is None and number in me.fds:
                    fds[number] = End(me.fds[number].pipe, mode)
            self._process = cluster.start(
                me.host,
                list(args),
                dict(me.env if env is None else env),
                me,
                fds,
                start_new_session,
                preexec_fn,
            )
            self.pid = self._process.pid
            self.returncode: int | None = None

        def poll(self) -> int | None:
            if self.returncode is None and self._process.dead:
                self.returncode = self._process.returncode
                self._process.forget()
            return self.returncode

        def wait(self, timeout: float | None = None) -> int:
            done = cluster.sim.wait_until(lambda: self._process.dead, [self._process.waiters], timeout)
            if not done:
                raise real_subprocess.TimeoutExpired(self.args, timeout or 0.0)
            return self.poll() or 0

        def send_signal(self, signum: int) -> None:
            if self.poll() is None:
                self._process.signal(signum)

        def kill(self) -> None:
            self.send_signal(real_signal.SIGKILL)

        def terminate(self) -> None:
            self.send_signal(real_signal.SIGTERM)

        def communicate(self, data: Any = None, timeout: float | None = None) -> tuple[bytes, bytes]:
            until = None if timeout is None else cluster.sim.now + timeout
            found = {}
            for name in ("stdout", "stderr"):
                file = getattr(self, name)
                found[name] = b""
                while file is not None:
                    pipe = cluster.process.fds[file.fileno()].pipe
                    left = None if until is None else until - cluster.sim.now
                    if not cluster.sim.wait_until(lambda pipe=pipe: pipe.readable, [pipe.waiters], left):
                        raise real_subprocess.TimeoutExpired(self.args, timeout or 0.0)
                    taken = pipe.take(1 << 16)
                    if not taken:
                        file.close()
                        break
                    found[name] += taken
            self.wait(None if until is None else until - cluster.sim.now)
            return found["stdout"], found["stderr"]

        def __enter__(self) -> Popen:
            return self

        def __exit__(self, *_: object) -> None:
            self.wait()

    def run(args: Any, capture_output: bool = False, timeout: float | None = None, **given: Any) -> Any:
        if capture_output:
            given |= {"stdout": real_subprocess.PIPE, "stderr": real_subprocess.PIPE}
        process = Popen(args, **given)
        try:
            out, err = process.communicate(timeout=timeout)
        except real_subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return real_subprocess.CompletedProcess(args, process.returncode or 0, out, err)

    return Facade(real_subprocess, Popen=Popen, run=run)


def flock(cluster: Cluster, file: Any, flags: int) -> None:
    while True:
        try:
            real_fcntl.flock(file, flags | (0 if flags & real_fcntl.LOCK_UN else real_fcntl.LOCK_NB))
            return
        except BlockingIOError:
            if flags & real_fcntl.LOCK_NB:
                raise
        cluster.sim.wait(0.01)


class Libc:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def prctl(self, option: int, value: int, *_: int) -> int:
        if option == 1:  # PR_SET_PDEATHSIG
            self._cluster.process.deathsig = int(value)
        return 0

    def capset(self, *_: object) -> int:
        return 0


class Socket:
    def bind(self, _address: object) -> None:
        pass

    def close(self) -> None:
        pass


def fake_argparse(cluster: Cluster) -> Any:
    class Parser(argparse.ArgumentParser):
        def parse_args(self, given: Any = None, namespace: Any = None) -> Any:
            return super().parse_args(cluster.process.argv[1:] if given is None else given, namespace)

    return Facade(argparse, ArgumentParser=Parser)
