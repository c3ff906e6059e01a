"""What the executors of a plan share: runners, saved outputs, verdicts, failures in words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from toolkit.core.causes import words_of
from toolkit.core.command import Ref, Result
from toolkit.core.engines import DOCKER
from toolkit.core.report import FailureCause, Status
from toolkit.core.runner import Runner
from toolkit.errors import ToolkitError
from toolkit.plan.steps import Step
from toolkit.remote.container_session import Desks

# Bytes done, bytes in all (0 for unknown).
Advance = Callable[[int, int], None]


class Closing(Protocol):
    """What has an end of its own when the plan has."""

    def close(self) -> None: ...


Shared = TypeVar("Shared", bound=Closing)


class KnownFailure(ToolkitError):
    """A command failed in a way that its step knows of; ``cause`` is for code to decide on."""

    def __init__(self, what: str, fix: str, host: str, cause: FailureCause) -> None:
        self.cause = cause
        super().__init__(what, fix, host)


@dataclass(frozen=True)
class Verdict:
    """What an executor made of its step; see ``toolkit.core.report.Outcome``."""

    status: Status
    detail: str = ""
    output: str = ""
    amounts: tuple[tuple[str, int], ...] = ()
    fix: str = ""


@dataclass
class Context:
    """What the executors of one plan share: runners, saved outputs, what several hosts are sent."""

    runners: Mapping[str, Runner]
    steps: Sequence[Step] = ()
    outputs: dict[tuple[str, str], str] = field(default_factory=dict)
    desks: Desks = field(default_factory=Desks)
    engine: str = DOCKER
    _shared: dict[Hashable, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def share(self, key: Hashable, make: Callable[[], Shared]) -> Shared:
        """Return what steps with the same key have in common; the first that asks makes it."""
        with self._lock:
            if key not in self._shared:
                self._shared[key] = make()
            found: Shared = self._shared[key]
            return found

    def forget(self, host: str) -> None:
        """Drop what a host that has failed saved: nobody shall count on its container or its key."""
        for key in [key for key in self.outputs if key[0] == host]:
            del self.outputs[key]

    def close(self) -> None:
        """End what this machine still reads for hosts."""
        for shared in reversed(list(self._shared.values())):  # what came later may still use what was first
            shared.close()


# Carries out a step; the step is of the kind under which the table of executors has this function.
Executor = Callable[[Any, Context, Advance], Verdict]
Executors = Mapping[type, Executor]


def text_of(content: Iterable[str | Ref], context: Context) -> str:
    """Return a text whose pieces may name what earlier steps have saved; pieces that name nothing go."""
    parts = (p.resolve(context.outputs) if isinstance(p, Ref) else p for p in content)
    return "".join(p for p in parts if p is not None)


def counted(chunks: Iterable[bytes], report: Callable[[int], None]) -> Iterator[bytes]:
    """Pass bytes on, and report after each piece how many it has been."""
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        report(done)


def reason(result: Result) -> str:
    """Return in one line why a command failed, by its own last words."""
    return words_of(result.output) or f"ended with status {result.status} and said nothing"
