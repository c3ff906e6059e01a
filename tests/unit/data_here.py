"""Hosts of this machine with folders of their own, to which data sets are staged over real relays."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.unit.container_world import wait_for
from tests.unit.hosts_here import HostHere, execute
from toolkit.core.command import Command, Result
from toolkit.core.report import Outcome
from toolkit.core.runner import Sink
from toolkit.data.source import read_content
from toolkit.errors import Unreachable
from toolkit.plan.steps import Phase, Plan, RemoveData, SendData


class DataHost(HostHere):
    """A host whose programs run while they are spoken with; its connection can be cut."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(f"box{number}")
        self.address = f"127.0.0.{number + 50}"
        self.path = folder / self.name / "data"
        self.account = folder / self.name / "account"
        self.mbit = 0.0
        self.fed = 0
        self.cut = False
        self.programs: list[subprocess.Popen[bytes]] = []
        self.on_bytes: Callable[[int], None] = lambda count: None

    def run(self, command: Command, timeout: float | None = None) -> Result:
        if self.cut:
            raise Unreachable("the connection was lost", "again", self.name)
        return super().run(command, timeout)

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        assert source is not None
        words = [str(word) for word in command.argv]
        pipes = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipes, stdout=pipes, stderr=pipes) as process:
            assert process.stdout and process.stderr
            self.programs.append(process)
            threading.Thread(target=self._feed, args=(process, source), daemon=True).start()
            while data := process.stdout.read1(65536):  # type: ignore[attr-defined]
                sink(data)
            error = process.stderr.read().decode()
        if self.cut:
            raise Unreachable("the connection was lost", "again", self.name)
        return Result(process.returncode, "", error, 0.0)

    def _feed(self, process: subprocess.Popen[bytes], source: Iterable[bytes]) -> None:
        assert process.stdin is not None
        try:
            for piece in source:
                process.stdin.write(piece)
                process.stdin.flush()
                self.fed += len(piece)
                self.on_bytes(self.fed)
            process.stdin.close()
        except (OSError, ValueError):
            pass

    def die(self) -> None:
        """End without closing connections, as when the host loses power."""
        self.cut = True
        for process in self.programs:
            process.kill()


def make_hosts(folder: Path, count: int) -> list[DataHost]:
    return [DataHost(number, folder) for number in range(1, count + 1)]


def send(source: Path, *hosts: DataHost) -> dict[str, Outcome]:
    """Stage a folder to hosts; return the outcome of each."""
    user = f"{os.getuid()}:{os.getgid()}"
    content = read_content(source)
    steps = tuple(
        SendData(
            h.name,
            "send data /d",
            str(source),
            content,
            str(h.path),
            str(h.account),
            "none:1",
            user,
            h.address,
            h.mbit,
        )
        for h in hosts
    )
    report = execute(Plan("p", (Phase("data", steps),)), {host.name: host for host in hosts})
    # A relay that outlives its transfer fails here.
    wait_for(lambda: all(p.poll() is not None for host in hosts for p in host.programs))
    return {outcome.host: outcome for outcome in report.outcomes}


def remove(host: DataHost, keep: bool = False) -> Outcome:
    step = RemoveData(host.name, "remove data /d", str(host.path), str(host.account), "none:1", "0:0", keep)
    return execute(Plan("p", (Phase("data", (step,)),)), {host.name: host}).outcomes[0]


def listing(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every file, link and folder below."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        about, name = path.lstat(), str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("folder", about.st_mode & 0o777)
        else:
            found[name] = (path.read_bytes(), about.st_mode & 0o777, about.st_mtime_ns, about.st_uid)
    return found
