"""The programs of toolkit/inside on a simulated cluster: real source, with the system calls replaced.

Each host loads the modules again, so that each has a root folder of its own. What a module imports from the
standard library is the real thing, except what reaches other processes, pipes, threads and clocks.
"""

from __future__ import annotations

import builtins
import errno
import fcntl as real_fcntl
import os as real_os
import queue as real_queue
import random
import select as real_select
import selectors as real_selectors
import shlex
import shutil
import signal as real_signal
import subprocess as real_subprocess
import sys as real_sys
import threading as real_threading
import time as real_time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.kernel import CONNECT_S, End, Host, Killed, Pipe, Process, Replaced, Sim, Task, wake_all

FIRST_FD = 100_000  # of simulated pipes; numbers below are real files
HANDLE = 1 << 24  # added to a process id: a pidfd
START_S = (0.01, 0.05)  # how long a Python program takes to start


class Facade:
    """A module with some of its names replaced."""

    def __init__(self, real: Any, **changes: Any) -> None:
        self._real = real
        self.__dict__.update(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Cluster:
    """The hosts of one schedule, and the programs that run on them."""

    def __init__(self, inside: Path, root: Path) -> None:
        self.inside, self.root = inside, root
        self.images: dict[str, Image] = {}
        self.hosts: dict[str, Host] = {}
        self.sim = Sim(random.Random(0))
        self.commands: dict[str, Callable[[Process], None]] = {}  # what is no program of toolkit/inside

    def begin(self, sim: Sim, names: list[str], latency: float) -> None:
        self.sim = sim
        self.hosts = {}
        for number, name in enumerate(names):
            host = self.hosts[name] = Host(sim, name, latency)
            host.is_main = number == 0
            host.boot = 5000.0 * number
            folder = self.root / name
            shutil.rmtree(folder, ignore_errors=True)
            for each in ("run/conf", "run/jobs", "tmp", "shm"):
                (folder / each).mkdir(parents=True)
            if name not in self.images:
                self.images[name] = Image(self, name)
            self.images[name].remembered.clear()

    @property
    def process(self) -> Process:
        process = self.sim.current.process
        assert process is not None
        return process

    def start(
        self,
        host: Host,
        argv: list[str],
        env: dict[str, str],
        parent: Process | None,
        fds: dict[int, End],
        session: bool = False,
        prepare: Callable[[], None] | None = None,
    ) -> Process:
        """Start what a host would start for these words."""
        env = {**env, "TOOLKIT_ROOT": str(self.root / host.name / "run")}
        process = Process(host, list(argv), env, parent, fds, session)
        if prepare is not None:
            task, real = self.sim.current, self.sim.current.process
            task.process = process
            try:
                prepare()
            finally:
                task.process = real
        self.become(process)
        return process

    def become(self, process: Process) -> None:
        words = process.argv
        program = next((w for w in words[:2] if w.endswith(".py")), None)
        if words[0] == "ssh":
            self._ssh(process)
        elif program is not None:
            words = words[words.index(program) :]
            name = Path(program).stem
            task = Task(self.sim, process, lambda: self._run(process, name))
            process.argv, process.main = words, task
            task.start(self.sim.rng.uniform(*START_S))
        else:
            self.commands[words[0]](process)

    def _run(self, process: Process, name: str) -> None:
        code = 1
        image = self.images[process.host.name]
        try:
            code = image.load(name).main() or 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except Replaced as other:
            process.argv, process.env, process.environ = other.argv, dict(other.env), dict(other.env)
            process.handlers, process.main = {}, None
            self.become(process)
            return
        except Exception:
            import traceback

            text = traceback.format_exc()
            self.sim.errors.append((process.name, text))
            if 2 in process.fds and process.fds[2].pipe.writable and process.fds[2].pipe.readers:
                process.fds[2].pipe.put(text.encode()[-2000:])
        own = self.sim.current
        others = [task for task in process.tasks if task is not own and not task.daemon]
        while any(not task.done for task in others):
            self.sim.wait(0.01)
        self.sim.call(0.0, lambda: process.die(code))

    def _ssh(self, process: Process) -> None:
        """Connect, start the command over there, and end as it ends."""
        name, text = process.argv[-2], process.argv[-1]
        host, sim, link = self.hosts[name], self.sim, self.hosts[name].link
        until = sim.now + CONNECT_S
        pipes = {number: end.pipe for number, end in process.fds.items()}

        def give_up(why: str) -> None:
            if not process.dead:
                if 2 in pipes and pipes[2].readers:
                    pipes[2].put(f"ssh: {why}\n".encode())
                process.die(255)

        def connect() -> None:
            if process.dead:
                return
            if not host.has_power or not link.up:
                if sim.now < until:
                    sim.call(0.5, connect)
                else:
                    give_up(f"connect to host {name} port 2222: Connection timed out")
                return
            link.carry(begin)

        def begin() -> None:
            if process.dead or not host.has_power:
                return
            for pipe in pipes.values():
                pipe.link = link
            fds = {number: End(pipe, "r" if number == 0 else "w") for number, pipe in pipes.items()}
            remote = self.start(host, *_shell(text), None, fds, True)
            remote.on_exit.append(lambda: link.carry(lambda: process.die(_shell_code(remote.returncode))))
            for number in (1, 2):  # the local end would keep the pipe open
                if number in process.fds:
                    process.fds.pop(number).close()
            if 0 in process.fds:
                process.fds.pop(0).close()

        def gone() -> None:
            if 0 in pipes:
                pipes[0].end_input()
            for number in (1, 2):
                if number in pipes:
                    pipes[number].break_off()

        process.on_exit.append(gone)
        process.breaks = give_up  # type: ignore[attr-defined]
        sim.call(0.01, connect)


def _shell_code(code: int | None) -> int:
    return 255 if code is None else 128 - code if code < 0 else code


def _shell(text: str) -> tuple[list[str], dict[str, str]]:
    """What a shell makes of the text that comes by ssh: words, and variables for them."""
    env: dict[str, str] = {}
    words: list[str] = []
    for statement in text.split("; "):
        words = shlex.split(statement)
        if words[0] == "export":
            env |= dict(word.split("=", 1) for word in words[1:])
    while words[0] in ("exec", "env"):
        words = words[1:]
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            env[name] = value
    return words, env


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


def _path_class(cache: dict[Any, Any]) -> type[Path]:
    """Return Path with a memory of what was read: programs read the same files ten times a second."""

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
            return self._remembered(super().read_bytes, "bytes")

        def open(self, mode: str = "r", *given: Any, **named: Any) -> Any:
            if set(mode) & set("wax+"):
                cache.clear()
            return super().open(mode, *given, **named)

    for name in ("mkdir", "touch", "unlink", "replace", "rename", "rmdir"):

        def forgetting(self: Any, *given: Any, _name: str = name, **named: Any) -> Any:
            cache.clear()
            return getattr(super(Remembering, self), _name)(*given, **named)

        setattr(Remembering, name, forgetting)
    return Remembering


class Image:
    """The modules of toolkit/inside as one host has them."""

    _codes: dict[Path, tuple[str, Any]] = {}  # noqa: RUF012

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.folder = cluster.root / name
        self.modules: dict[str, types.ModuleType] = {}
        self.remembered: dict[Any, Any] = {}
        self.path_class = _path_class(self.remembered)
        self.os = _os(cluster, self)
        self.fakes = {
            "os": self.os,
            "sys": _sys(cluster, self.os),
            "time": _time(cluster, self),
            "signal": _signal(cluster),
            "threading": _threading(cluster),
            "queue": Facade(
                real_queue, SimpleQueue=lambda: _Queue(cluster), Queue=lambda *_: _Queue(cluster)
            ),
            "select": Facade(real_select, select=lambda *given: _select(cluster, self, *given)),
            "selectors": Facade(real_selectors, DefaultSelector=lambda: Selector(cluster, self)),
            "subprocess": _subprocess(cluster),
            "concurrent.futures": types.SimpleNamespace(ThreadPoolExecutor=lambda **_: _Pool(cluster)),
            "pathlib": types.SimpleNamespace(Path=self.path),
            "fcntl": Facade(real_fcntl, flock=lambda *given: _flock(cluster, *given)),
            "ctypes": types.SimpleNamespace(CDLL=lambda _: _Libc(cluster), c_ulong=int),
            "socket": types.SimpleNamespace(socket=_Socket),
            "shutil": Facade(shutil, rmtree=self._rmtree),
            "gauge_log": None,  # what the host does meanwhile is not simulated
        }
        self.fakes["selectors"].BaseSelector = Selector
        self.builtins = {**builtins.__dict__, "__import__": self._import, "print": self._print}

    @property
    def host(self) -> Host:
        return self.cluster.hosts[self.name]

    def load(self, name: str) -> types.ModuleType:
        if name not in self.modules:
            path = self.cluster.inside / f"{name}.py"
            text = path.read_text()
            if self._codes.get(path, ("",))[0] != text:
                self._codes[path] = (text, compile(text, str(path), "exec"))
            module = types.ModuleType(f"inside_{self.name}.{name}")
            module.__dict__["__builtins__"] = self.builtins
            self.modules[name] = module
            exec(self._codes[path][1], module.__dict__)
        return self.modules[name]

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if name in self.fakes:
            if self.fakes[name] is None:
                raise ImportError(name)
            return self.fakes[name]
        if name == "argparse":
            return _argparse(self.cluster)
        if (self.cluster.inside / f"{name}.py").exists():
            return self.load(name)
        return __import__(name, globals, locals, fromlist, level)

    def _print(self, *words: object, **_: Any) -> None:
        self.os.write(1, (" ".join(map(str, words)) + "\n").encode())

    def _rmtree(self, *given: Any, **named: Any) -> None:
        self.remembered.clear()
        shutil.rmtree(*given, **named)

    def path(self, *parts: Any) -> Any:
        first = str(parts[0])
        if first.startswith(("/proc", "/sys")):
            words = "/".join(map(str, parts)).strip("/").split("/")
            return Proc(lambda: self.host, tuple(words))
        if first.startswith(("/tmp", "/dev/shm")) and not first.startswith(str(self.cluster.root)):
            first = str(self.folder / ("tmp" if first.startswith("/tmp") else "shm"))
        return self.path_class(first, *parts[1:])


def _os(cluster: Cluster, image: Image) -> Any:
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


def _sys(cluster: Cluster, os: Any) -> Any:
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

    return Sys(real_sys, executable="python3", stdout=Stream(1), stderr=Stream(2))


def _time(cluster: Cluster, image: Image) -> Any:
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


def _signal(cluster: Cluster) -> Any:
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


class _Queue:
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


def _threading(cluster: Cluster) -> Any:
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


class _Pool:
    def __init__(self, cluster: Cluster) -> None:
        self._thread = type("Thread", (_Thread,), {"cluster": cluster})
        self._threads: list[_Thread] = []

    def map(self, work: Any, *items: Any) -> Any:
        found: list[Any] = []

        def run(number: int, given: Any) -> None:
            try:
                found[number] = (True, work(*given))
            except Exception as error:
                found[number] = (False, error)

        threads = []
        for number, given in enumerate(zip(*items, strict=False)):
            found.append(None)
            thread = self._thread(target=run, args=(number, given))
            thread.start()
            threads.append(thread)
        self._threads += threads
        return self._results(threads, found)

    def _results(self, threads: list[_Thread], found: list[Any]) -> Any:
        for number, thread in enumerate(threads):
            thread.join()
            good, value = found[number]
            if not good:
                raise value
            yield value

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()


def _fd_of(file: Any) -> int:
    return file if isinstance(file, int) else file.fileno()


def _select(
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


def _subprocess(cluster: Cluster) -> Any:
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


def _flock(cluster: Cluster, file: Any, flags: int) -> None:
    while True:
        try:
            real_fcntl.flock(file, flags | (0 if flags & real_fcntl.LOCK_UN else real_fcntl.LOCK_NB))
            return
        except BlockingIOError:
            if flags & real_fcntl.LOCK_NB:
                raise
        cluster.sim.wait(0.01)


class _Libc:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def prctl(self, option: int, value: int, *_: int) -> int:
        if option == 1:  # PR_SET_PDEATHSIG
            self._cluster.process.deathsig = int(value)
        return 0


class _Socket:
    def bind(self, _address: object) -> None:
        pass

    def close(self) -> None:
        pass


def _argparse(cluster: Cluster) -> Any:
    import argparse

    class Parser(argparse.ArgumentParser):
        def parse_args(self, given: Any = None, namespace: Any = None) -> Any:
            return super().parse_args(cluster.process.argv[1:] if given is None else given, namespace)

    return Facade(argparse, ArgumentParser=Parser)


__all__ = ["Cluster", "Killed"]
