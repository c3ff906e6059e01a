"""Values that describe an image build: packages to fetch, build context, docker command."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolkit.core.command import Command
from toolkit.protocol.redact import MASK

# User and password, or a token, in a URL.
_LOGIN = re.compile(r"(?<=://)[^\s/]+(?=@)")
_LEGACY_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)")
_BUILDKIT_STEP = re.compile(r"^#\d+ \[\s*(\S+) +(\d+)/(\d+)\] (.*)")


@dataclass(frozen=True)
class Fetch:
    """Packages to fetch into the wheelhouse.

    Args:
        title: description of the packages, for users.
        alternatives: commands to try in order until one succeeds.
        failure: the error if none succeeds; the output of the last command follows it.
        fix: the fix for that error.
    """

    title: str
    alternatives: tuple[Command, ...]
    failure: str
    fix: str


@dataclass(frozen=True)
class Locked:
    """A package with the SHA-256 digests that its files can have, in hexadecimal.

    Args:
        url: its file, which pip found for the user's requirements; empty means that pip finds it by name.
    """

    name: str
    version: str
    digests: tuple[str, ...]
    url: str = ""

    @property
    def line(self) -> str:
        """The package in exactly this version, as a line of a requirements file."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Wheelhouse:
    """A folder of packages on this machine, kept between builds, and the changes that a build makes to it.

    Args:
        folder: absolute path.
        into: folder of the build context for its files.
        discard: names of files that are damaged or that no requirement names any more.
        fetches: the missing packages; empty when the wheelhouse is complete.
        locked: packages whose files must have one of these digests.
        unlocked: packages, as pins, whose files toolkit cannot check because the lock does not have them.
    """

    folder: str
    into: str
    discard: tuple[str, ...] = ()
    fetches: tuple[Fetch, ...] = ()
    locked: tuple[Locked, ...] = ()
    unlocked: tuple[str, ...] = ()


# Folders of a build context that a Dockerfile copies; they exist even when they are empty.
CONTEXT_FOLDERS = ("certs", "more", "tensorflow", "wheels")


@dataclass(frozen=True)
class ImageBuild:
    """All inputs of one image build; all paths are absolute and on this machine.

    Args:
        tag: reference of the image in the engine.
        wheelhouses: that of the image first, then those of the extras.
        context: folder that is created for the build and removed after it.
        files: files of the context as (path relative to it, text).
        certificate: path of a CA bundle for the build to trust, empty for none.
        limit_bytes: the size over which the image is refused, 0 for no limit.
    """

    flavor: str
    tag: str
    wheelhouses: tuple[Wheelhouse, ...]
    context: str
    files: tuple[tuple[str, str], ...]
    certificate: str
    command: Command
    limit_bytes: int

    @property
    def fetches(self) -> tuple[Fetch, ...]:
        """All fetches, in order."""
        return tuple(fetch for house in self.wheelhouses for fetch in house.fetches)

    @property
    def unlocked(self) -> tuple[str, ...]:
        """The packages that the lock does not have, in order."""
        return tuple(dict.fromkeys(pin for house in self.wheelhouses for pin in house.unlocked))

    def lines(self) -> tuple[str, ...]:
        """Return the command lines in order, with their standard input; of several alternatives the first.

        Passwords in URLs are masked.
        """
        fetches = tuple(_with_input(fetch.alternatives[0]) for fetch in self.fetches)
        return (*fetches, self.command.line())


def without_logins(text: str) -> str:
    """Return the text with a mask for each login in a URL. Some releases of pip print logins in errors."""
    return _LOGIN.sub(MASK, text)


def _with_input(command: Command) -> str:
    if command.stdin is None:
        return command.line()
    return f"{command.line()} <<'END'\n{without_logins(command.stdin.decode())}END"


def build_progress(line: str) -> str:
    """Return the build step that a line of docker's output starts, such as ``builder 3/9 RUN make``, or "".

    Understands the legacy builder and BuildKit's plain output.
    """
    if match := _LEGACY_STEP.match(line):
        return f"{match[1]}/{match[2]} {match[3]}"
    if match := _BUILDKIT_STEP.match(line):
        return f"{match[1]} {match[2]}/{match[3]} {match[4]}"
    return ""
