"""The kinds of step that a plan is made of; each has one executor in ``toolkit.api.executors``."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field, replace

from toolkit.core.command import Command, Ref
from toolkit.core.typed import Kind
from toolkit.plan.failure import Failure
from toolkit.plan.transfers import (
    Fetch,
    PullImage,
    RemoveData,
    SendCode,
    SendData,
    SendImage,
    StartDaemons,
    StartJob,
)

# Exit status of a command that cannot tell whether there is something to do; see ``Run.unsure``.
CANNOT_TELL = 216

__all__ = [
    "CANNOT_TELL",
    "Failure",
    "Fetch",
    "File",
    "Folder",
    "Phase",
    "Plan",
    "PullImage",
    "RemoveData",
    "Run",
    "SendCode",
    "SendData",
    "SendImage",
    "Stamp",
    "StartDaemons",
    "StartJob",
    "Step",
    "Upload",
    "WaitFor",
]


@dataclass(frozen=True)
class Stamp:
    """A file that says for what a command last succeeded, and is written when it does.

    Pieces of the content may name earlier outputs.
    """

    path: str
    content: tuple[str | Ref, ...]


@dataclass(frozen=True)
class Run:
    """Run a command on a host.

    Args:
        command: a Ref in it to another host makes that host a target. The outcome names the targets that
            saved nothing because they failed; if all of them failed, the step is not run.
        unless: asked on the host; status 0, or a stamp with this content, means there is nothing to do.
        reads: run afterwards in any case; its output, stripped, is saved under ``saves``.
        kind: type of what is saved; other output fails the host. Text for the report is not for later steps.
        timeout: seconds after which the command is ended on the host and counts as failed.
        again: statuses after which the same command is run once more, see ``ENGINE_FAILED``. Only for
            commands that may be repeated from the beginning. The output decides nothing.
        failures: ways to fail that are known beforehand; the first that fits counts.
        fix: what to tell a person to do when it fails otherwise.
        unsure: what to tell a person to do when it exits with CANNOT_TELL. The step is then not run.
        why: what makes it necessary, where that is not plain from the title.
        known: what ``reads`` prints, where the facts say already that there is nothing to do.
        proof: it looks whether all is well and alters nothing, so it is no change.
    """

    host: str
    title: str
    command: Command
    unless: Command | Stamp | None = None
    reads: Command | None = None
    saves: str = ""
    kind: Kind = Kind.REPORT
    timeout: float = 120.0
    again: tuple[int, ...] = ()
    failures: tuple[Failure, ...] = ()
    fix: str = ""
    unsure: str = ""
    why: str = ""
    known: str | None = None
    proof: bool = False


class _Same:
    """Something that is equal to itself alone: what all hosts get is one object, and long."""

    def __init__(self, parts: tuple[object, ...]) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.parts is other.parts

    def __hash__(self) -> int:
        return id(self.parts)


@functools.lru_cache(maxsize=256)
def _sketch(same: _Same) -> str:
    text = "".join(str(part) for part in same.parts)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class File:
    """One file to be on a host: absolute path, text (pieces may name earlier outputs), mode.

    ``in_place`` keeps the inode, for files that are bind-mounted one by one.
    """

    path: str
    content: tuple[str | Ref, ...] = field(repr=False)
    mode: int = 0o600
    in_place: bool = False

    def sketch(self) -> str:
        """Return a short text that tells two contents apart."""
        return _sketch(_Same(self.content))

    def __str__(self) -> str:
        return f"{self.path} {self.mode:o} {self.in_place} {self.sketch()}\n"


@dataclass(frozen=True)
class Folder:
    """Files that many hosts get alike, by their paths below this folder's; the tuple is one for all hosts."""

    path: str
    files: tuple[File, ...]

    def sketch(self) -> str:
        """Return a short text that tells two of them apart by what is in them."""
        return _sketch(_Same(self.files))


@dataclass(frozen=True)
class Upload:
    """Make files be there with this content and mode; those that already are so are left alone.

    Args:
        files: written in this order, behind those of ``folders``.
    """

    host: str
    title: str
    files: tuple[File, ...]
    folders: tuple[Folder, ...] = ()

    @property
    def every(self) -> tuple[File, ...]:
        """All files by their absolute paths, in the order in which they are written."""
        inner = (replace(f, path=f"{each.path}/{f.path}") for each in self.folders for f in each.files)
        return (*inner, *self.files)


@dataclass(frozen=True)
class WaitFor:
    """Wait until ``ready`` succeeds; end at once, with the output of ``explain``, when ``alive`` fails.

    Args:
        deadline: seconds until it is given up.
        failures: as in ``Run``, looked for in the output of ``explain``.
        known: the facts say already that it is ready.
        id: names the step in every plan of one command, where the title has values that change.
    """

    host: str
    title: str
    ready: Command
    alive: Command
    explain: Command
    deadline: float = 60.0
    fix: str = ""
    failures: tuple[Failure, ...] = ()
    known: bool = False
    id: str = ""


Step = (
    Run
    | Upload
    | WaitFor
    | SendImage
    | PullImage
    | SendCode
    | StartJob
    | StartDaemons
    | SendData
    | RemoveData
    | Fetch
)


@dataclass(frozen=True)
class Phase:
    """Steps that may run on all hosts at once; those of one host run one after another."""

    title: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Plan:
    """Phases, one after another. A host that fails takes no further part; the others go on."""

    title: str
    phases: tuple[Phase, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for phase in self.phases for step in phase.steps)
