"""Runners that take this machine for a host: real processes, files where the test says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import toolkit.plan.execute
from tests.unit import cluster_world as world
from toolkit.api.connection import Connection
from toolkit.api.executors import EXECUTORS
from toolkit.api.prepared import Notices, PreparedPlan
from toolkit.cluster.session import Session
from toolkit.core.command import Command, Result
from toolkit.core.report import Report
from toolkit.core.runner import LocalRunner, Runner, Sink
from toolkit.plan.execute import Listener
from toolkit.plan.steps import Plan, Step


class HostHere(LocalRunner):
    """This machine under a host's name; keeps every command that it ran."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ran: list[Command] = []

    def run(self, command: Command, timeout: float | None = None) -> Result:
        self.ran.append(command)
        return super().run(command, timeout)

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        result = self.run(command if source is None else replace(command, stdin=b"".join(source)))
        sink(result.stdout.encode())
        return result

    def close(self) -> None:
        """There is no connection."""


class Interrupting(HostHere):
    """A host at which the person presses Ctrl-C."""

    def __init__(self, name: str, word: str) -> None:
        super().__init__(name)
        self.word = word

    def run(self, command: Command, timeout: float | None = None) -> Result:
        if self.word in command.line():
            raise KeyboardInterrupt
        return super().run(command, timeout)


def execute(plan: Plan, runners: Mapping[str, Runner], *rest: Any, **more: Any) -> Report:
    """Run a plan with the executors of all commands; arguments as in ``toolkit.plan.execute.execute``."""
    return toolkit.plan.execute.execute(plan, runners, EXECUTORS, *rest, **more)


def hosts(*names: str) -> dict[str, HostHere]:
    return {name: HostHere(name) for name in names}


def tree(folder: Path) -> dict[str, tuple[bytes, int, int, int]]:
    """Every file below: content, mode, inode, time of its last change in nanoseconds."""
    return {
        str(p.relative_to(folder)): (
            p.read_bytes(),
            p.stat().st_mode & 0o7777,
            p.stat().st_ino,
            p.stat().st_mtime_ns,
        )
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


class FakePrepared(PreparedPlan):
    """Keeps the plans that it executes, and answers to ``to_do``."""

    def __init__(self, plan: Plan) -> None:
        cluster = Connection(world.inventory())
        super().__init__(cluster, Session(world.inventory()), Notices(cluster), plan)
        self.executed: list[Plan] = []

    def execute(self, listen: Listener) -> Report:
        self.executed.append(self.plan)
        return Report(self.plan.title, ())

    def to_do(self) -> tuple[Step, ...]:
        return self.plan.steps[-1:]
