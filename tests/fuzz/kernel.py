"""A simulated cluster: clocks, threads, pipes, processes and connections, all driven by one random seed.

Programs of toolkit/container run on it unchanged (see programs.py). Of all threads exactly one runs at any
time; it gives way when it waits, and now and then when it calls the system, so that a seed decides every
interleaving and repeats it.
"""

from __future__ import annotations

import heapq
import random
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any

CAPACITY = 1 << 16  # bytes that a pipe holds
MOST_SWITCHES = 300_000  # of one schedule; more is a loop that does not wait
CONNECT_S = 10.0  # ConnectTimeout of ssh_config
KILLING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGKILL})


class Killed(BaseException):
    """Unwinds a thread whose process has ended."""


class Replaced(BaseException):
    """Ends a program that calls exec; the process continues as another one."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        super().__init__(argv)
        self.argv, self.env = argv, env


class Stuck(Exception):
    """A schedule that does not come to its end."""


class _Worker:
    """A real thread that runs one simulated thread after another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.task: Task | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while True:
            self.lock.acquire()
            task, self.task = self.task, None
            if task is None:
                return
            task.body()
            _FREE.append(self)
            task.sim.next(None)


_FREE: list[_Worker] = []


def end_workers() -> None:
    """End the real threads that wait for work."""
    while _FREE:
        worker = _FREE.pop()
        worker.lock.release()
        worker.thread.join()


class Task:
    """One simulated thread."""

    def __init__(
        self, sim: Sim, process: Process | None, work: Callable[[], Any], daemon: bool = False
    ) -> None:
        self.sim, self.process, self.work, self.daemon = sim, process, work, daemon
        self.worker: _Worker | None = None
        self.token = 0
        self.woken = self.done = False
        self.joiners: list[Task] = []
        if process is not None:
            process.tasks.append(self)
            sim.tasks[self] = None

    def start(self, delay: float = 0.0) -> None:
        self.sim.push(self.sim.now + delay, self)

    def wake(self) -> None:
        if not self.done:
            self.woken = True
            self.sim.push(self.sim.now, self)

    def body(self) -> None:
        try:
            if self.process is None or not self.process.dead:
                self.work()
        except Killed:
            pass
        except BaseException as error:
            name = self.process.name if self.process else "kernel"
            self.sim.errors.append((name, "".join(traceback.format_exception(error))))
        self.done = True
        if self.process is not None:
            self.process.tasks.remove(self)
            self.sim.tasks.pop(self, None)
        for joiner in self.joiners:
            joiner.wake()


class Sim:
    """The clock, and who runs next."""

    def __init__(self, rng: random.Random, preempt: float = 0.0) -> None:
        self.rng, self.preempt = rng, preempt
        self.now = 1000.0
        self.heap: list[tuple[float, int, Any, int]] = []
        self.number = self.switches = 0
        self.tasks: dict[
            Task, None
        ] = {}  # of processes, until they end; one may wait without a place in the heap
        self.root = Task(self, None, lambda: None)
        self.root.worker = _Worker()
        self.current = self.root
        self.errors: list[tuple[str, str]] = []
        self.pids = 100
        self.stuck = False

    def push(self, when: float, what: Any) -> None:
        self.number += 1
        heapq.heappush(self.heap, (when, self.number, what, what.token if isinstance(what, Task) else 0))

    def call(self, delay: float, action: Callable[[], None]) -> None:
        """Run `action` later; it must not wait."""
        self.push(self.now + delay, action)

    def next(self, me: Task | None) -> None:
        """Let the next thread run; return when it is the turn of `me`."""
        while True:
            self.switches += 1
            if self.switches > MOST_SWITCHES and not self.stuck:
                self.stuck = True
                self.root.wake()
            when, _, what, token = heapq.heappop(self.heap)
            if (
                self.stuck
                and what is not self.root
                and not (isinstance(what, Task) and what.process is not None and what.process.dead)
            ):
                continue
            self.now = max(self.now, when)
            if not isinstance(what, Task):
                try:
                    what()
                except BaseException as error:
                    self.errors.append(("kernel", "".join(traceback.format_exception(error))))
                continue
            if what.token != token or what.done:
                continue
            process = what.process
            if process is not None and not process.dead and process.host.frozen_until > self.now:
                self.push(process.host.frozen_until + self.rng.random() * 0.02, what)
                continue
            what.token += 1
            self.current = what
            if what is me:
                return
            if what.worker is None:
                what.worker = self._worker()
                what.worker.task = what
            what.worker.lock.release()
            if me is not None:
                assert me.worker is not None
                me.worker.lock.acquire()
            return

    def _worker(self) -> _Worker:
        if _FREE:
            return _FREE.pop()
        worker = _Worker()
        worker.thread.start()
        return worker

    def wait(self, timeout: float | None) -> bool:
        """Let others run until another thread wakes this one; return whether one did in time."""
        task = self.current
        self.check(task)
        deadline = None if timeout is None else self.now + max(0.0, timeout)
        task.woken = False
        while True:
            if deadline is not None:
                self.push(deadline, task)
            self.next(task)
            self.check(task)
            if task.woken or (deadline is not None and self.now >= deadline):
                return task.woken

    def check(self, task: Task) -> None:
        """Do what a signal has asked for."""
        process = task.process
        if process is None:
            return
        if process.dead:
            raise Killed
        if process.main is task:
            while process.pending:
                signum = process.pending.pop(0)
                process.handlers[signum](signum, None)

    def give_way(self) -> None:
        """Let another thread run at a call to the system, now and then."""
        task = self.current
        self.check(task)
        if self.preempt and task.process is not None and self.rng.random() < self.preempt:
            self.wait(self.rng.choice((0.0, 0.001, 0.02)))

    def wait_until(self, is_so: Callable[[], Any], waiters: list[list[Task]], timeout: float | None) -> bool:
        """Wait for a condition that may change whenever one of `waiters` is woken."""
        deadline = None if timeout is None else self.now + timeout
        while not is_so():
            left = None if deadline is None else deadline - self.now
            if left is not None and left <= 0:
                return False
            task = self.current
            for each in waiters:
                each.append(task)
            try:
                self.wait(left)
            finally:
                for each in waiters:
                    if task in each:
                        each.remove(task)
        return True

    def close(self) -> None:
        """End what still runs, so that no real thread keeps anything."""
        for _ in range(100):
            for task in list(self.tasks):
                assert task.process is not None
                task.process.die(-9)
                self.push(self.now, task)
            self.heap = [each for each in self.heap if isinstance(each[2], Task)]
            heapq.heapify(self.heap)
            if not self.tasks:
                return
            self.stuck = False
            self.switches = 0
            self.wait(0.0)


def wake_all(waiters: list[Task]) -> None:
    for task in list(waiters):
        task.wake()


class Link:
    """The connection between main and a host: late, held up, or cut."""

    def __init__(self, sim: Sim, latency: float) -> None:
        self.sim, self.latency = sim, latency
        self.up = True
        self._held: list[Callable[[], None]] = []
        self._last = 0.0

    def carry(self, action: Callable[[], None]) -> None:
        """Run `action` on the other side once what was sent before has arrived."""
        if not self.up:
            self._held.append(action)
            return
        self._last = max(self._last, self.sim.now + self.latency)
        self.sim.call(self._last - self.sim.now, lambda: self._arrive(action))

    def _arrive(self, action: Callable[[], None]) -> None:
        if self.up:
            action()
        else:
            self._held.append(action)

    def heal(self) -> None:
        self.up = True
        held, self._held = self._held, []
        for action in held:
            self.carry(action)


class Pipe:
    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.buffer = bytearray()
        self.readers = self.writers = self.under_way = 0
        self.over = self.cut = False
        self.waiters: list[Task] = []
        self.link: Link | None = None

    @property
    def readable(self) -> bool:
        return bool(self.buffer) or self.over

    @property
    def writable(self) -> bool:
        return self.cut or not self.readers or len(self.buffer) + self.under_way < CAPACITY

    def put(self, data: bytes) -> int:
        if self.cut or not self.readers:
            raise BrokenPipeError(32, "Broken pipe")
        data = data[: CAPACITY - len(self.buffer) - self.under_way]
        if not data:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        if self.link is None:
            self._arrive(data)
        else:
            self.under_way += len(data)
            self.link.carry(lambda: self._arrived(data))
        return len(data)

    def _arrived(self, data: bytes) -> None:
        self.under_way -= len(data)
        self._arrive(data)

    def _arrive(self, data: bytes) -> None:
        if not self.cut:
            self.buffer += data
            wake_all(self.waiters)

    def take(self, most: int) -> bytes:
        data = bytes(self.buffer[:most])
        del self.buffer[:most]
        wake_all(self.waiters)
        return data

    def open(self, mode: str) -> None:
        if mode == "r":
            self.readers += 1
        else:
            self.writers += 1

    def close(self, mode: str) -> None:
        if mode == "r":
            self.readers -= 1
            wake_all(self.waiters)
        else:
            self.writers -= 1
            if not self.writers:
                self.end_input()

    def end_input(self) -> None:
        """The last writer is gone, as the other side will see."""
        if self.link is None:
            self._end()
        else:
            self.link.carry(self._end)

    def break_off(self) -> None:
        """The connection is gone, as this side sees at once."""
        self.cut = True
        self._end()

    def _end(self) -> None:
        self.over = True
        wake_all(self.waiters)


class End:
    """One end of a pipe in one process."""

    def __init__(self, pipe: Pipe, mode: str) -> None:
        self.pipe, self.mode, self.blocking = pipe, mode, True
        pipe.open(mode)

    def close(self) -> None:
        self.pipe.close(self.mode)


class Host:
    def __init__(self, sim: Sim, name: str, latency: float) -> None:
        self.sim, self.name = sim, name
        self.link = Link(sim, latency)
        self.is_main = False
        self.has_power = True
        self.frozen_until = 0.0
        self.wall = 1_700_000_000.0
        self.boot = 0.0  # what its monotonic clock shows more than the others'
        self.processes: dict[int, Process] = {}
        self.zombies: dict[int, Process] = {}  # have ended, and no parent has waited for them

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Run `action` after `delay`, or later if the host is frozen then."""

        def run() -> None:
            if self.frozen_until > self.sim.now:
                self.sim.call(self.frozen_until - self.sim.now + 0.001, run)
            else:
                action()

        self.sim.call(delay, run)


class Process:
    def __init__(
        self,
        host: Host,
        argv: list[str],
        env: dict[str, str],
        parent: Process | None,
        fds: dict[int, End],
        session: bool,
    ) -> None:
        sim = host.sim
        sim.pids += 1
        self.sim, self.host, self.argv, self.pid = sim, host, argv, sim.pids
        self.env, self.environ = dict(env), dict(env)
        self.parent, self.fds = parent, fds
        self.pgid = self.pid if session or parent is None else parent.pgid
        self.children: list[Process] = []
        self.unwaited: list[Process] = []
        self.handlers: dict[int, Any] = {}
        self.pending: list[int] = []
        self.wakeup: int | None = None
        self.tasks: list[Task] = []
        self.main: Task | None = None
        self.dead = False
        self.returncode: int | None = None
        self.waiters: list[Task] = []
        self.deathsig = 0
        self.on_exit: list[Callable[[], None]] = []
        self.on_signal: Callable[[int], bool] | None = None
        self.real_fds: set[int] = set()
        self.numbers = 100_000
        host.processes[self.pid] = self
        if parent is not None:
            parent.children.append(self)

    @property
    def name(self) -> str:
        words = [word.rpartition("/")[2] for word in self.argv]
        return f"{' '.join(words[:3])} ({self.pid}) on {self.host.name}"

    def give(self, end: End) -> int:
        self.numbers += 1
        self.fds[self.numbers] = end
        return self.numbers

    def die(self, code: int) -> None:
        """End with this code, negative for a signal, as subprocess has it."""
        if self.dead:
            return
        self.dead, self.returncode = True, code
        self.host.processes.pop(self.pid, None)
        for end in self.fds.values():
            end.close()
        self.fds.clear()
        for task in list(self.tasks):
            if task is not self.sim.current:
                self.sim.push(self.sim.now, task)
        for action in self.on_exit:
            action()
        for child in self.unwaited:
            self.host.zombies.pop(child.pid, None)
        for child in self.children:
            child.parent = None
            if child.deathsig:
                child.signal(child.deathsig)
        if self.parent is not None:
            self.parent.unwaited.append(self)
            self.host.zombies[self.pid] = self
            self.parent.children.remove(self)
            self.parent.signal(signal.SIGCHLD)
            wake_all(self.parent.waiters)
        wake_all(self.waiters)

    def forget(self) -> None:
        """Let the process table lose this process: its parent has waited for it."""
        self.host.zombies.pop(self.pid, None)
        if self.parent is not None and self in self.parent.unwaited:
            self.parent.unwaited.remove(self)

    def signal(self, signum: int) -> None:
        if self.dead:
            return
        if signum == signal.SIGKILL:
            if self.on_signal is not None:
                self.on_signal(signum)
            self.die(-signum)
            return
        if self.on_signal is not None and self.on_signal(signum):
            return
        handler = self.handlers.get(signum)
        if callable(handler):
            self.pending.append(signum)
            if self.wakeup is not None and self.wakeup in self.fds and self.fds[self.wakeup].pipe.writable:
                self.fds[self.wakeup].pipe.put(bytes([signum]))
            if self.main is not None and self.main is not self.sim.current:
                self.sim.push(self.sim.now, self.main)
        elif handler is None and signum in KILLING:
            self.die(-signum)
