"""Executor of SendCode: a talk with the program on the host that makes the job's folder."""

from __future__ import annotations

import json
import queue
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.core.code import Entry
from toolkit.core.command import command
from toolkit.core.names import INSIDE
from toolkit.core.room import size
from toolkit.effects.runner import ContainerRunner
from toolkit.effects.tree import contents
from toolkit.errors import ToolkitError
from toolkit.executors.context import Advance, Context, Verdict
from toolkit.executors.failures import failure
from toolkit.plan.steps import SendCode

# Neither site-packages nor the variables of the image: it starts sooner, and nobody's settings change it.
_PROGRAM = ("python3", "-S", "-E", str(INSIDE / "snapshot.py"))


def send_code(step: SendCode, context: Context, advance: Advance) -> Verdict:
    """Make the job's folder; of the code only what the host lacks travels."""
    runner = ContainerRunner(context.runners[step.host], step.container)
    talk = _Talk(step, advance)
    try:
        result = runner.stream(command(*_PROGRAM), talk.hear, talk.say())
    finally:
        talk.end()
    if refused := talk.last.get("refused"):
        raise ToolkitError(str(refused), str(talk.last.get("fix", "")), step.host)
    if not result.ok or "done" not in talk.last:
        raise failure(result, runner, paths=[step.target])
    amounts = (("bytes", talk.sent), ("content", talk.content))
    if not step.source:
        return Verdict("ok", amounts=amounts)
    new = f"{size(talk.content)} of {size(step.tree.total)}" if talk.content else "nothing new"
    return Verdict("ok", new, amounts=amounts)


class _Talk:
    """This side of what ``toolkit/inside/snapshot.py`` says and is told."""

    def __init__(self, step: SendCode, advance: Advance) -> None:
        self._step, self._advance = step, advance
        self._heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._line = b""
        self.last: dict[str, Any] = {}
        self.sent = self.content = 0

    def hear(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            try:
                self.last = json.loads(line)
            except ValueError:
                continue  # a word of the engine
            self._heard.put(self.last)

    def end(self) -> None:
        """Let whoever still waits for a word know that none comes."""
        self._heard.put({})

    def say(self) -> Iterator[bytes]:
        """Yield what is sent, as it is asked for."""
        for data in self._answers():
            self.sent += len(data)
            yield data

    def _answers(self) -> Iterator[bytes]:
        step, tree = self._step, self._step.tree
        about = {"job": PurePosixPath(step.target).name, "tree": tree.digest if step.source else ""}
        texts = {"job.json": step.job, "record.json": step.record}
        yield _line({**about, "number": tree.number, "marks": tree.marks.hex(), "texts": texts})
        while True:
            heard = self._heard.get()
            if "buckets" in heard:
                packed = zlib.compress(json.dumps(tree.of_buckets(heard["buckets"])).encode(), 6)
                yield _line({"entries": len(packed)}) + packed
            elif "needs" in heard:
                needed = [e for first, last in heard["needs"] for e in tree.entries[first : last + 1]]
                yield from self._send(needed)
            else:
                return

    def _send(self, entries: list[Entry]) -> Iterator[bytes]:
        total = self.content + sum(entry.size for entry in entries)
        for data in contents(Path(self._step.source), entries):
            yield data
            self.content += len(data)
            self._advance(self.content, total)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
