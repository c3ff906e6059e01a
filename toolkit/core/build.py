"""An image build as a value: what to fetch, what goes into the build context, what to call."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.core.command import Command


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
class ImageBuild:
    """Everything that is done to build one image; all paths are absolute and on this machine.

    Args:
        tag: the reference under which the engine will know the image.
        wheelhouse: folder of wheels, kept between builds.
        discard: file names in the wheelhouse that no requirement names any more, or that are damaged.
        fetches: what the wheelhouse lacks; empty when it is complete.
        context: folder that is made for the build and removed after it.
        files: files of the context as (path relative to it, text).
        certificate: path of a CA bundle that the build shall trust, empty for none.
        limit_bytes: the size over which the image is refused, 0 for no limit.
    """

    flavour: str
    tag: str
    wheelhouse: str
    discard: tuple[str, ...]
    fetches: tuple[Fetch, ...]
    context: str
    files: tuple[tuple[str, str], ...]
    certificate: str
    command: Command
    limit_bytes: int

    def lines(self) -> tuple[str, ...]:
        """Return the command lines in order; of several alternatives, the first."""
        fetches = tuple(fetch.alternatives[0].line() for fetch in self.fetches)
        return (*fetches, self.command.line())
