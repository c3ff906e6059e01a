"""Lines of container/send_files.py: the files of a host, and the header in front of each file's bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from toolkit.protocol.decode import Number, Text

MOST_BYTES = 2**16  # of one line
Name = Annotated[str, Text(pattern="(?s).+", path=True)]
_Path = Annotated[str, Text(path=True)]  # can be empty
_Size = Annotated[int, Number(0, 2**53)]  # bytes
_Time = Annotated[int, Number(-(2**62), 2**62)]  # nanoseconds before and after the epoch: 146 years


@dataclass(frozen=True)
class NothingListed:
    """The host has no folder of the job."""

    nothing: Literal[True]


@dataclass(frozen=True)
class MissingListed:
    """A pattern that matches no file; see ``Missing`` in toolkit/core/remote_files.py."""

    missing: _Path
    there: bool
    place: _Path
    called: _Path
    names: tuple[_Path, ...]
    more: _Size


@dataclass(frozen=True)
class LinkListed:
    """A link and its target."""

    path: Name
    name: Name
    link: Name


@dataclass(frozen=True)
class FileListed:
    """A file."""

    path: Name
    name: Name
    size: _Size
    mtime: _Time
    mode: Annotated[int, Number(0, 0o777)]
    inode: Annotated[int, Number(0, 2**64)]


@dataclass(frozen=True)
class CollisionListed:
    """A local name that different files of two patterns would get."""

    collides: Name
    patterns: tuple[_Path, _Path]


@dataclass(frozen=True)
class Refused:
    """The reason why a file does not come."""

    refused: str


@dataclass(frozen=True)
class Sent:
    """The size and time of a file whose bytes follow."""

    size: _Size
    mtime: _Time


@dataclass(frozen=True)
class JobFile:
    """JOB/PATH and size of a file of a job whose bytes follow."""

    name: Name
    size: _Size


@dataclass(frozen=True)
class JobFileRefused:
    """The reason why the host cannot read a file or folder of a job."""

    name: Name
    refused: str


@dataclass(frozen=True)
class JobFilesEnd:
    """The end of the files of all jobs."""

    end: Literal[True]


NO_JOB_FILES = '{"end": true}'
