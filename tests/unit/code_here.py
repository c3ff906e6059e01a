"""A host of which the container is a folder of this machine: the programs inside run for real."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.left_behind import children, has_ended
from tests.unit.container_world import INSIDE, PATIENCE_S
from toolkit.core.code import CodeTree
from toolkit.core.command import Command, Result
from toolkit.core.runner import LocalRunner, Sink
from toolkit.jobs.code import read_tree
from toolkit.jobs.executors import send_code
from toolkit.plan.context import Context, Verdict
from toolkit.plan.steps import SendCode
from toolkit.protocol.names import JOBS

HOST = "gpu1"


class ContainerHere(LocalRunner):
    """Runs what is meant for a container: `docker exec`'s words go, and paths lead into `root`."""

    name = HOST

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kill_after: float | None = None  # seconds after which the program is killed
        self.up = self.down = 0  # bytes to it and from it
        self.running: list[subprocess.Popen[bytes]] = []  # what it has started, ended or not

    def words(self, command: Command) -> list[str]:
        words = [str(token) for token in command.argv]
        if words[:2] == ["docker", "exec"]:
            words = words[words.index(f"{HOST}-container") + 1 :]
        words = [word.replace("/run/toolkit/inside", str(INSIDE)) for word in words]
        words = [word.replace(str(JOBS), f"{self.root}/jobs") for word in words]
        return [sys.executable if word == "python3" else word for word in words]

    def run(self, command: Command, timeout: float | None = None) -> Result:
        return super().run(Command(tuple(self.words(command)), command.stdin), timeout)

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        process = subprocess.Popen(
            self.words(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TOOLKIT_ROOT": str(self.root)},
        )
        assert process.stdin and process.stdout and process.stderr
        self.running.append(process)
        broken: list[BaseException] = []

        def feed() -> None:
            try:
                for data in source or ():
                    self.up += len(data)
                    process.stdin.write(data)  # type: ignore[union-attr]
                    process.stdin.flush()  # type: ignore[union-attr]
            except BrokenPipeError:
                pass
            except Exception as error:
                broken.append(error)
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]

        if self.kill_after == 0:
            process.kill()  # before its input ends, after which it would exit with 0
        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        timer = threading.Timer(self.kill_after or 0, process.kill)
        if self.kill_after:
            timer.start()
        try:
            while data := os.read(process.stdout.fileno(), 2**16):
                self.down += len(data)
                sink(data)
            error = process.stderr.read().decode()
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
            status = process.wait()
            process.stdout.close()
            process.stderr.close()
        if broken:
            raise broken[0]
        return Result(status, "", error)


class Code:
    """A folder of code and the host that it is sent to."""

    def __init__(self, folder: Path) -> None:
        self.source, self.root, self.cache = folder / "code", folder / "host", folder / "cache"
        (self.root / "jobs").mkdir(parents=True)
        self.source.mkdir()
        self.host = ContainerHere(self.root)
        self.number = 0
        self.settled = children()  # processes that need not be waited for

    @property
    def store(self) -> Path:
        return self.root / "jobs" / ".code"

    def put(self, **texts: str) -> None:
        for name, text in texts.items():
            path = self.source / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def step(self, tree: CodeTree | None = None, job: str = "") -> SendCode:
        self.number += 1
        job = job or f"job-{self.number}"
        source = str(self.source)
        tree = read_tree(self.source, self.cache) if tree is None else tree
        return SendCode(HOST, "send", f"{HOST}-container", f"{JOBS}/{job}", source, tree, "{}")

    def send(self, step: SendCode | None = None) -> tuple[Path, Verdict]:
        """Send it as a run does; returns the job's folder."""
        step = step or self.step()
        context = Context({HOST: self.host})
        try:
            verdict = send_code(step, context, lambda done, total: None)
        finally:
            context.container_sessions.leave()
        return self.root / "jobs" / Path(step.target).name, verdict

    def settle(self) -> None:
        """Wait until the host prepares nothing any more: no program runs there."""
        # A program's children become children of this process when it ends (tests/left_behind.py).
        while new := children() - self.settled:
            for pid in new:
                assert has_ended(pid, PATIENCE_S), f"process {pid} goes on"
            self.settled |= new

    def spares(self) -> list[Path]:
        return list((self.store / "spares").iterdir())


def look(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder, as a job sees it."""
    return dict(_look(folder, folder))


def _look(folder: Path, top: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    for path in sorted(folder.iterdir()):
        name, about = str(path.relative_to(top)), path.lstat()
        if path.is_symlink():
            yield name, ("link", str(path.readlink()))
        elif path.is_dir():
            yield name, ("folder", about.st_mode)
            yield from _look(path, top)
        else:
            yield name, (path.read_bytes(), about.st_mode & 0o7755, about.st_mtime_ns)
