"""An image build as a value: what to fetch, what goes into the build context, what to call."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolkit.core.command import Command

_LEGACY_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)")
_BUILDKIT_STEP = re.compile(r"^#\d+ \[\s*(\S+) +(\d+)/(\d+)\] (.*)")


@dataclass(frozen=True)
class Fetch:
    """Packages to bring into the wheelhouse.

    Args:
        title: what is fetched, for people.
        alternatives: commands of which the first that succeeds is enough, in order.
        failure: one sentence for when none succeeds, followed by the last one's output.
        fix: what to do then.
    """

    title: str
    alternatives: tuple[Command, ...]
    failure: str
    fix: str


@dataclass(frozen=True)
class Wheelhouse:
    """A folder of packages on this machine, kept between builds, and what is done to it before one.

    Args:
        folder: absolute.
        into: the folder of the context in which its files go.
        discard: names of files that no requirement names any more, or that are damaged.
        fetches: what it lacks; empty when it is complete.
    """

    folder: str
    into: str
    discard: tuple[str, ...] = ()
    fetches: tuple[Fetch, ...] = ()


# The folders of a context that a Dockerfile copies, whether or not there is anything in them.
CONTEXT_FOLDERS = ("certs", "more", "tensorflow", "wheels")


@dataclass(frozen=True)
class ImageBuild:
    """Everything that is done to build one image; all paths are absolute and on this machine.

    Args:
        tag: the reference under which the engine will know the image.
        wheelhouses: the image's own first, then those of what is added to it.
        context: folder that is made for the build and removed after it.
        files: files of the context as (path relative to it, text).
        certificate: path of a CA bundle that the build shall trust, empty for none.
        limit_bytes: the size over which the image is refused, 0 for no limit.
    """

    flavour: str
    tag: str
    wheelhouses: tuple[Wheelhouse, ...]
    context: str
    files: tuple[tuple[str, str], ...]
    certificate: str
    command: Command
    limit_bytes: int

    @property
    def fetches(self) -> tuple[Fetch, ...]:
        """Everything that is fetched, in order."""
        return tuple(fetch for house in self.wheelhouses for fetch in house.fetches)

    def lines(self) -> tuple[str, ...]:
        """Return the command lines in order; of several alternatives, the first."""
        fetches = tuple(fetch.alternatives[0].line() for fetch in self.fetches)
        return (*fetches, self.command.line())


def build_progress(line: str) -> str:
    """Return the step that a line of docker's output begins, such as ``builder 3/9 RUN make``, or nothing.

    Understands the legacy builder and BuildKit's plain output.
    """
    if match := _LEGACY_STEP.match(line):
        return f"{match[1]}/{match[2]} {match[3]}"
    if match := _BUILDKIT_STEP.match(line):
        return f"{match[1]} {match[2]}/{match[3]} {match[4]}"
    return ""
