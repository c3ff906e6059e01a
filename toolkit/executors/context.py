"""What the executors of a plan share: runners, saved outputs, verdicts, failures in words."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from toolkit.core.causes import words_of
from toolkit.core.image_parts import ImageParts
from toolkit.core.report import Status
from toolkit.core.result import Result
from toolkit.effects.image_source import ImageSource
from toolkit.effects.runner import Runner
from toolkit.executors.cargo import ImageCargo
from toolkit.executors.relay import Relay
from toolkit.plan.steps import SendImage, Step

# Bytes done, bytes in all (0 for unknown).
Advance = Callable[[int, int], None]


class Closing(Protocol):
    """What has an end of its own when the plan has."""

    def close(self) -> None: ...


Shared = TypeVar("Shared", bound=Closing)


@dataclass(frozen=True)
class Verdict:
    """What an executor made of its step; see ``toolkit.core.report.Outcome``."""

    status: Status
    detail: str = ""
    output: str = ""
    amounts: tuple[tuple[str, int], ...] = ()


@dataclass
class Context:
    """What the executors of one plan share: runners, saved outputs, the image that hosts take from."""

    runners: Mapping[str, Runner]
    steps: Sequence[Step] = ()
    outputs: dict[tuple[str, str], str] = field(default_factory=dict)
    _sources: dict[str, ImageSource] = field(default_factory=dict)
    _relays: dict[str, tuple[Relay, ImageCargo]] = field(default_factory=dict)
    _shared: dict[Hashable, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def source(self, reference: str, identity: str, image: str) -> ImageSource:
        """Return the image of this machine's engine; opened once, whoever asks first.

        Args:
            image: its Id when the plan was made.

        Raises:
            MissingTool: no engine answers.
            ImageError: the engine has another image under this name than the plan was made for.
        """
        with self._lock:
            if identity not in self._sources:
                self._sources[identity] = ImageSource.open(reference, identity, image)
            return self._sources[identity]

    def relay(self, source: ImageSource, parts: ImageParts, identity: str) -> tuple[Relay, ImageCargo]:
        """Return the transfer of an image to all hosts that the plan sends it to, and what travels."""
        with self._lock:
            if identity not in self._relays:
                hosts = {s.host for s in self.steps if isinstance(s, SendImage) and s.identity == identity}
                cargo = ImageCargo(source, parts, identity, secrets.token_hex(2))
                self._relays[identity] = Relay(cargo, hosts & set(self.runners)), cargo
            return self._relays[identity]

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
        for relay, _ in list(self._relays.values()):
            relay.close()
        for shared in list(self._shared.values()):
            shared.close()
        for source in list(self._sources.values()):
            source.close()


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
