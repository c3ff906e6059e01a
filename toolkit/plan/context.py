"""Context of the executors of a plan: runners, saved outputs, verdicts, errors for commands that failed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from toolkit.core.causes import Unwritable, cause_of, named_paths, why_unwritable, words_of
from toolkit.core.command import Ref, Result, quoted
from toolkit.core.disk_space import Room, ask_room, parse_room, tightest
from toolkit.core.engines import DOCKER
from toolkit.core.report import FailureCause, Status
from toolkit.core.runner import Runner
from toolkit.errors import Interrupted, ToolkitError
from toolkit.plan.steps import Failure, Step
from toolkit.remote.container_session import ContainerSessions
from toolkit.remote.fanout import Background

# Seconds between two checks whether the plan ended while a shared object is made.
_LOOK_S = 0.1
# Bytes done, bytes in all (0 for unknown).
Advance = Callable[[int, int], None]


class Closing(Protocol):
    """An object to close when the plan ends."""

    def close(self) -> None: ...


Shared = TypeVar("Shared", bound=Closing)


class KnownFailure(ToolkitError):
    """A command failed in a way that its step declares; code branches on ``cause``."""

    def __init__(self, what: str, fix: str, host: str, cause: FailureCause) -> None:
        self.cause = cause
        super().__init__(what, fix, host)


@dataclass(frozen=True)
class Verdict:
    """The result that an executor returns for its step; see ``toolkit.core.report.Outcome``."""

    status: Status
    detail: str = ""
    output: str = ""
    amounts: tuple[tuple[str, int], ...] = ()
    fix: str = ""


@dataclass
class Context:
    """The objects that the executors of one plan share: runners, saved outputs, transfers.

    Args:
        recent: the facts from which the plan was made are a few seconds old, so that the precheck uses them.
    """

    runners: Mapping[str, Runner]
    steps: Sequence[Step] = ()
    outputs: dict[tuple[str, str], str] = field(default_factory=dict)
    container_sessions: ContainerSessions = field(default_factory=ContainerSessions)
    engine: str = DOCKER
    recent: bool = True
    _shared: dict[Hashable, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)

    def share(self, key: Hashable, make: Callable[[], Shared]) -> Shared:
        """Return the object that steps with the same key share; the first call creates it.

        Raises:
            Interrupted: the plan ended before the object was complete.
        """

        def make_unless_closed() -> Shared:
            made = make()
            if self._closed.is_set():
                made.close()
            return made

        def refuse_closed() -> None:
            if self._closed.is_set():
                raise Interrupted

        with self._lock:
            if key not in self._shared:
                refuse_closed()
                # The engine can need minutes to export an image. An interrupted program does not wait for
                # this thread, but it waits for the threads that run steps.
                making = Background("shared object of a plan", make_unless_closed)
                while not making.ended(_LOOK_S):
                    refuse_closed()
                self._shared[key] = making.result()
            found: Shared = self._shared[key]
            return found

    def forget(self, host: str) -> None:
        """Drop the saved outputs of a failed host: no other step must use its container or its key."""
        for key in [key for key in self.outputs if key[0] == host]:
            del self.outputs[key]

    def close(self) -> None:
        """Close all shared objects."""
        self._closed.set()
        with self._lock:
            found = list(self._shared.values())
        for shared in reversed(found):  # later objects can use earlier ones
            shared.close()


# Executes a step of the kind that is its key in the table of executors.
Executor = Callable[[Any, Context, Advance], Verdict]
Executors = Mapping[type, Executor]


def text_of(content: Iterable[str | Ref], context: Context) -> str:
    """Return a text with the outputs of earlier steps filled in; pieces without an output are left out."""
    parts = (p.resolve(context.outputs) if isinstance(p, Ref) else p for p in content)
    return "".join(p for p in parts if p is not None)


def counted(chunks: Iterable[bytes], report: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the chunks, and report after each chunk the number of bytes so far."""
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        report(done)


def reason(result: Result) -> str:
    """Return the reason that a command failed in one line: the end of its output."""
    return words_of(result.output) or f"the command exited with status {result.status} and printed nothing"


def failure(
    result: Result, runner: Runner, fix: str = "", paths: Sequence[str] = (), known: Sequence[Failure] = ()
) -> ToolkitError:
    """Return the error for a command that failed.

    Args:
        fix: fix to print if the output names no known cause.
        paths: paths on the host that the command writes to, checked if a disk is full.
        known: failures that the step declares; they have priority.
    """
    output, host = result.output, runner.name
    for way in known:
        for line in output.splitlines():
            if re.search(way.says, line):
                # The cause is at the end, behind the names of the programs that passed it on.
                own = line.strip() if len(line) <= 200 else f"…{line[-160:].rstrip()}"
                return KnownFailure(f"{way.what} ({own})", way.fix, host, way.cause)
    words = reason(result)
    if unwritable := why_unwritable(output):
        return _full(unwritable, words, runner, named_paths(output), paths)
    if cause := cause_of(output, host):
        return ToolkitError(f"{cause.what}: {words}", cause.fix, host)
    return ToolkitError(words, fix, host)


def _full(
    unwritable: Unwritable, words: str, runner: Runner, named: Sequence[str], own: Sequence[str]
) -> ToolkitError:
    """Return the error for a file system that takes no data.

    Args:
        named: paths in the message. They can be paths inside a layer, which do not exist on the host.
        own: paths that the command writes to.
    """
    host, paths = runner.name, (*named, *own)
    rooms = rooms_of(runner, *paths)
    room = tightest(rooms, paths)
    where = room.mount if room else "/"
    engine = getattr(runner, "engine", DOCKER)
    if unwritable is Unwritable.QUOTA:
        return ToolkitError(
            f"the disk quota is exceeded: {words}",
            f"on {host}: quota -s  # then delete files, and run the same command again",
            host,
        )
    if unwritable is Unwritable.READ_ONLY:
        what = f"the file system is read-only: {words}"
        return ToolkitError(
            what, f"on {host}: {quoted('findmnt', where)}; sudo dmesg | tail  # look for disk errors", host
        )
    if room is None and rooms:
        # The written data has been removed. Without a path of its own, the command wrote to the engine's.
        room = next((one for one in rooms if one.path in own), rooms[-1])
        return ToolkitError(
            f"the disk was full (now {room.line()}): {words}", room_fix(host, room.mount, engine), host
        )
    full = f"the disk is full ({room.line()})" if room else "the disk is full"
    return ToolkitError(f"{full}: {words}", room_fix(host, where, engine), host)


def room_fix(host: str, where: str, engine: str = DOCKER) -> str:
    """Return the fix for a full file system on a host."""
    commands = f"{quoted('df', '-h', where)}; {engine} system df; {engine} image prune"
    return f"on {host}: {commands}  # then free space on {where}, and run the same command again"


def rooms_of(runner: Runner, *paths: str) -> tuple[Room, ...]:
    """Return the free disk space at these paths, then in the image folder of the host's engine."""
    return parse_room(runner.run(ask_room(*paths), 30).stdout)
