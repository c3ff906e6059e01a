"""The programs of toolkit/container on a simulated cluster: real source, with the system calls replaced.

Each host loads the modules again, so that each has a root folder of its own. What a module imports from the
standard library is the real thing, except what fakes.py replaces.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl as real_fcntl
import queue as real_queue
import random
import select as real_select
import selectors as real_selectors
import shlex
import shutil
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.fakes import (
    Facade,
    Libc,
    Proc,
    Queue,
    Selector,
    Socket,
    fake_argparse,
    fake_os,
    fake_select,
    fake_signal,
    fake_subprocess,
    fake_sys,
    fake_threading,
    fake_time,
    flock,
    path_class,
)
from tests.fuzz.kernel import CONNECT_S, End, Host, Process, Replaced, Sim, Task

_PACKAGE = "toolkit.container."
START_S = (0.01, 0.05)  # how long a Python program takes to start


class Cluster:
    """The hosts of one schedule, and the programs that run on them."""

    def __init__(self, programs: Path, root: Path) -> None:
        self.programs, self.root = programs, root
        self.images: dict[str, Image] = {}
        self.hosts: dict[str, Host] = {}
        self.sim = Sim(random.Random(0))
        self.commands: dict[str, Callable[[Process], None]] = {}  # what is no program of toolkit/container

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

    def end(self) -> None:
        """Let go of a schedule that is over, and with it of the files that its last processes had open."""
        self.sim, self.hosts, self.commands = Sim(random.Random(0)), {}, {}
        self.__dict__.pop("become", None)

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
        if words[0] == "ssh" or (words[1:] and words[1].endswith("/kubexec.sh")):
            self._ssh(process)
        elif (name := program_of(words)) == "monitor.gauge_log":
            self.sim.call(0.0, lambda: process.die(0))  # what the host does meanwhile is not simulated
        elif name:
            task = Task(self.sim, process, lambda: self._run(process, name))
            process.argv, process.main = words[words.index(name) :], task
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
        name, text = _login(process)
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


def program_of(words: list[str]) -> str:
    """Return the program of toolkit/container that a command starts, empty for any other command."""
    at = next((number for number, word in enumerate(words[:4]) if word.endswith("/run.py")), -1)
    name = words[at + 1]
    return name if at >= 0 or name.startswith("job.") else ""


def _login(process: Process) -> tuple[str, str]:
    """Return the host and the line that an ssh sends there, or kubexec.sh in its place."""
    if process.argv[0] == "ssh":
        return process.argv[-2], process.argv[-1]
    host, words = process.argv[2], process.argv[3:]
    process.env["TOOLKIT_TO"] = process.environ["TOOLKIT_TO"] = host
    return host, f"export TOOLKIT_JOB={process.env['TOOLKIT_JOB']}; {' '.join(words)}"


def _shell_code(code: int | None) -> int:
    return 255 if code is None else 128 - code if code < 0 else code


def _shell(text: str) -> tuple[list[str], dict[str, str]]:
    """Return the words of a line that comes by ssh, and the variables that it sets for them."""
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


class Image:
    """The modules of toolkit/container as one host has them."""

    _codes: dict[Path, tuple[str, Any]] = {}  # noqa: RUF012

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.folder = cluster.root / name
        self.modules: dict[str, types.ModuleType] = {}
        self.remembered: dict[Any, Any] = {}
        self.path_class = path_class(self.remembered, self.followed)
        self.os = fake_os(cluster, self)
        self.fakes = {
            "os": self.os,
            "sys": fake_sys(cluster, self.os),
            "time": fake_time(cluster, self),
            "signal": fake_signal(cluster),
            "threading": fake_threading(cluster),
            "queue": Facade(real_queue, SimpleQueue=lambda: Queue(cluster), Queue=lambda *_: Queue(cluster)),
            "select": Facade(real_select, select=lambda *given: fake_select(cluster, self, *given)),
            "selectors": Facade(real_selectors, DefaultSelector=lambda: Selector(cluster, self)),
            "subprocess": fake_subprocess(cluster),
            "pathlib": types.SimpleNamespace(Path=self.path),
            "fcntl": Facade(real_fcntl, flock=lambda *given: flock(cluster, *given)),
            "ctypes": types.SimpleNamespace(
                CDLL=lambda _: Libc(cluster), c_ulong=int, c_uint32=ctypes.c_uint32
            ),
            "socket": types.SimpleNamespace(socket=Socket),
            "shutil": Facade(shutil, rmtree=self._rmtree),
        }
        self.fakes["selectors"].BaseSelector = Selector
        self.builtins = {**builtins.__dict__, "__import__": self._import, "print": self._print}

    @property
    def host(self) -> Host:
        return self.cluster.hosts[self.name]

    def followed(self, path: Path) -> Path:
        """Return the file to which a path leads; a link can lead to a file that a simulated process has open.

        Raises:
            FileNotFoundError: the process has ended.
        """
        if not path.is_symlink():
            return path
        pid, _, number = path.readlink().parts[2:]
        process = self.host.processes.get(int(pid))
        if process is None or int(number) not in process.real_fds:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return Path("/proc/self/fd", number)

    def load(self, name: str) -> types.ModuleType:
        """Load a module of toolkit/container, such as ``job.rank``."""
        if name not in self.modules:
            path = self.cluster.programs.joinpath(*name.split(".")).with_suffix(".py")
            text = path.read_text()
            if self._codes.get(path, ("",))[0] != text:
                self._codes[path] = (text, compile(text, str(path), "exec"))
            module = types.ModuleType(f"container_{self.name}.{name}")
            module.__dict__["__builtins__"] = self.builtins
            self.modules[name] = module
            exec(self._codes[path][1], module.__dict__)
        return self.modules[name]

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if name in self.fakes:
            return self.fakes[name]
        if name == "argparse":
            return fake_argparse(self.cluster)
        if name.startswith(_PACKAGE):
            return self.load(name.removeprefix(_PACKAGE))
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
