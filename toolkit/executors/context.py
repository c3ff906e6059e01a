"""What the executors of a plan share: runners, saved outputs, verdicts, failures in words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from toolkit.core.causes import words_of
from toolkit.core.report import Status
from toolkit.core.result import Result
from toolkit.effects.engine import Engine
from toolkit.effects.image_archive import ImageArchive
from toolkit.effects.runner import Runner
from toolkit.errors import ImageError

# Bytes done, bytes in all (0 for unknown).
Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Verdict:
    """What an executor made of its step; ``detail`` for people, ``output`` for who asked for it."""

    status: Status
    detail: str = ""
    output: str = ""


@dataclass
class Context:
    """What the executors of one plan share: runners, saved outputs, the image saved once for all hosts."""

    runners: Mapping[str, Runner]
    outputs: dict[tuple[str, str], str] = field(default_factory=dict)
    _archives: dict[str, ImageArchive] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def archive(self, reference: str, identity: str, advance: Advance) -> ImageArchive:
        """Return the image of this machine's engine as an archive; saved once, whoever asks first.

        Raises:
            ImageError: the engine has another image under this name than the plan was made for.
        """
        with self._lock:
            if identity not in self._archives:
                engine = Engine.connect()
                image = engine.image(reference)
                if image is None or image.identity != identity:
                    what = f"{reference} is not the image that the plan was made for"
                    raise ImageError(what, "run the command again")
                # By Id: the tag may be moved while the image is being saved.
                chunks = counted(engine.save(image.id), lambda done: advance(0, 0))
                self._archives[identity] = ImageArchive(chunks)
            return self._archives[identity]

    def forget(self, host: str) -> None:
        """Drop what a host that has failed saved: nobody shall count on its container or its key."""
        for key in [key for key in self.outputs if key[0] == host]:
            del self.outputs[key]

    def close(self) -> None:
        for archive in self._archives.values():
            archive.close()


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
