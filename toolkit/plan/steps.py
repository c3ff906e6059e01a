"""The kinds of step that a plan is made of; each has one executor in ``toolkit.api.executors``."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field, replace

from toolkit.core.code import CodeTree
from toolkit.core.command import Command, Ref
from toolkit.core.report import FailureCause
from toolkit.core.typed import Kind
from toolkit.protocol.shards import Content

# Exit status of a command that cannot tell whether there is something to do; see ``Run.unsure``.
CANNOT_TELL = 216


@dataclass(frozen=True)
class Failure:
    """A way to fail that is known beforehand.

    Args:
        says: regular expression that is looked for in the command's output.
        what, fix: what to tell a person then, in place of a general hint.
        cause: of the outcome, where code decides on that.
    """

    says: str
    what: str
    fix: str
    cause: FailureCause = FailureCause.OTHER


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


@dataclass(frozen=True)
class SendImage:
    """Bring an image from this machine's engine to a host: the layers that the host lacks.

    Args:
        reference: the tag under which this machine's engine knows it.
        identity: what the host must hold afterwards (see ``toolkit.core.image``).
        image: its Id in this machine's engine, which stays when the tag is moved; empty for unknown.
        address: of the host on the data network, at which other hosts can give it what they got.
        mbit: what its link carries at most, in Mbit/s; 0 for unknown.
        cluster: whose mark the processes carry that the transfer needs on the host.
    """

    host: str
    title: str
    reference: str
    identity: str
    image: str = ""
    address: str = ""
    mbit: float = 0.0
    cluster: str = ""


@dataclass(frozen=True)
class PullImage:
    """Let a host pull an image from its registry, as the ssh user and with that user's own login.

    Nothing was done when the engine has the same image under this name afterwards as before.

    Args:
        reference: the image's name.
        failures: as in ``Run``.
    """

    host: str
    title: str
    reference: str
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class SendCode:
    """Make a job's folder on a host: the job file, and a snapshot of a local folder as ``code``.

    Args:
        container: through which it is written, so that it belongs to the user that ranks run as.
        target: the job's folder inside the container.
        source: local folder; empty for none.
        tree: what of it goes (see ``toolkit.jobs.code``).
        job: the job file's text, without the job's variables.
    """

    host: str
    title: str
    container: str
    target: str
    source: str
    tree: CodeTree
    job: str = field(repr=False)


@dataclass(frozen=True)
class StartJob:
    """Start a job's supervisor in a container, where it goes on by itself.

    Args:
        container: main's, or any host's where each has a part of the job.
        job: the job's id; its folder is there.
        variables: of its ranks, for the supervisor's memory alone: in no repr and on no command line.
    """

    host: str
    title: str
    container: str
    job: str
    variables: str = field(default="", repr=False)


@dataclass(frozen=True)
class StartDaemons:
    """Start on other hosts what a job's launcher asks for, each under a supervisor of its own.

    Args:
        container: main's, in which the launcher runs.
        job: the job's id; its folder is there, and on the others.
        others: hosts and their containers.
        variables: for each of these hosts, as in ``StartJob``.
    """

    host: str
    title: str
    container: str
    job: str
    others: tuple[tuple[str, str], ...]
    variables: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class SendData:
    """Stage a data set to a folder of a host: what it lacks comes, then what is no longer wanted goes.

    Args:
        source: folder or file on this machine.
        content: what it holds, as the plan was made for.
        path: the folder on the host, made if it is not there.
        account: the folder that says what was written to ``path``; only the ssh user can read or write it.
        image: in whose container the host's part runs where the host has no Python.
        user: the ssh user there, as ``uid:gid``.
        address, mbit, cluster: as in ``SendImage``.
    """

    host: str
    title: str
    source: str
    content: Content
    path: str
    account: str
    image: str
    user: str
    address: str = ""
    mbit: float = 0.0
    cluster: str = ""


@dataclass(frozen=True)
class RemoveData:
    """Remove from a folder of a host what ``SendData`` wrote there, and nothing else.

    Args:
        account, image, user, cluster: as in ``SendData``.
        keep: leave the folder itself: a container sees it, and would not see another one in its place.
    """

    host: str
    title: str
    path: str
    account: str
    image: str
    user: str
    keep: bool = False
    cluster: str = ""


@dataclass(frozen=True)
class Fetch:
    """Bring jobs' records, logs and what they wrote to a local folder.

    Args:
        inside: the words of ``docker`` in front of a command that sees the jobs as the container does.
    """

    host: str
    title: str
    inside: tuple[str, ...]
    into: str


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
