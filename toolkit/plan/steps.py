"""The kinds of step that a plan is made of; each has one executor in ``toolkit.api.executors``."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field, replace

from toolkit.core.code import CodeTree
from toolkit.core.command import Command, Kind, Ref
from toolkit.core.report import FailureCause
from toolkit.protocol.shards import Content

# Exit status of a command that cannot decide whether the step is done; see ``Run.unsure``.
CANNOT_TELL = 216


@dataclass(frozen=True)
class Failure:
    """A known way for a step to fail.

    Args:
        says: regular expression that is searched for in the command's output.
        what, fix: message and fix to print, instead of a general hint.
        cause: cause of the outcome, if code branches on it.
    """

    says: str
    what: str
    fix: str
    cause: FailureCause = FailureCause.OTHER


@dataclass(frozen=True)
class Stamp:
    """A file that records the input of a command's last success, written when the command succeeds.

    Pieces of the content can refer to earlier outputs.
    """

    path: str
    content: tuple[str | Ref, ...]


@dataclass(frozen=True)
class Run:
    """Run a command on a host.

    Args:
        command: a Ref in it to another host makes that host a target. The outcome names the targets that
            failed and saved no output; if all targets failed, the step is not run.
        unless: check on the host; status 0, or a stamp with this content, means that there is nothing to do.
        reads: run afterwards in any case; its output, stripped, is saved under ``saves``.
        prints: the command prints the same as ``reads``, which is then only run if there is nothing to do.
        kind: type of what is saved; other output fails the host. Text for the report is not for later steps.
        timeout: seconds after which the command is ended on the host and counts as failed.
        again: statuses after which the same command is run once more, see ``ENGINE_FAILED``. Only for
            commands that are safe to repeat. The output has no influence.
        failures: known ways to fail; the first match counts.
        fix: fix to print for any other failure.
        unsure: fix to print if the command exits with CANNOT_TELL. The step then counts as not run.
        why: reason for the step, if the title does not show it.
        known: output of ``reads``, or the content of the ``Stamp``, if the facts show that there is nothing
            to do.
        proof: the step only checks and changes nothing, so it does not count as a change.
    """

    host: str
    title: str
    command: Command
    unless: Command | Stamp | None = None
    reads: Command | None = None
    prints: bool = False
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
    """A wrapper that compares by identity: all hosts share one long object."""

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
    """One file for a host: absolute path, text (pieces can refer to earlier outputs), mode.

    ``in_place`` keeps the inode, for files that are bind-mounted one by one.
    """

    path: str
    content: tuple[str | Ref, ...] = field(repr=False)
    mode: int = 0o600
    in_place: bool = False

    def sketch(self) -> str:
        """Return a short text that differs for different contents."""
        return _sketch(_Same(self.content))

    def __str__(self) -> str:
        return f"{self.path} {self.mode:o} {self.in_place} {self.sketch()}\n"


@dataclass(frozen=True)
class Folder:
    """Files that are equal on many hosts, by their paths below this folder; all hosts share the tuple."""

    path: str
    files: tuple[File, ...]

    def sketch(self) -> str:
        """Return a short text that differs for different contents."""
        return _sketch(_Same(self.files))


@dataclass(frozen=True)
class Upload:
    """Write files with this content and mode; files that already match are not changed.

    Args:
        files: written in this order, behind those of ``folders``.
        known: answer to the query for the files (``toolkit.plan.executors.upload_question``), from the facts.
    """

    host: str
    title: str
    files: tuple[File, ...]
    folders: tuple[Folder, ...] = ()
    known: str | None = None

    @property
    def every(self) -> tuple[File, ...]:
        """All files by their absolute paths, in the order in which they are written."""
        inner = (replace(f, path=f"{each.path}/{f.path}") for each in self.folders for f in each.files)
        return (*inner, *self.files)


@dataclass(frozen=True)
class WaitFor:
    """Wait until ``ready`` succeeds; fail at once, with the output of ``explain``, if ``alive`` fails.

    Args:
        deadline: seconds after which the step fails.
        failures: as in ``Run``, searched for in the output of ``explain``.
        known: the facts already show that it is ready.
        id: name of the step in every plan of one command, if the title has values that change.
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
    """Send an image from this machine's engine to a host: only the layers that are missing on the host.

    Args:
        reference: the tag under which this machine's engine knows it.
        identity: content digest of the image on the host afterwards (see ``toolkit.core.image``).
        image: its Id in this machine's engine, which does not change when the tag is moved; empty if unknown.
        address: data address of the host, at which other hosts can send it what they received.
        mbit: maximum rate of its link in Mbit/s; 0 if unknown.
        cluster: cluster name that tags the processes of the transfer on the host.
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
    """Let a host pull an image from its registry, as the SSH user and with that user's own login.

    The step is skipped if the engine has the same image under this name before and after.

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
    """Create a job's folder on a host: the job file, and a snapshot of a local folder as ``code``.

    Args:
        container: container that writes the folder, so that the user of the ranks owns it.
        target: the job's folder inside the container.
        source: local folder; empty for none.
        tree: files to send (see ``toolkit.jobs.code``).
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
    """Start a job's supervisor in a container, where it runs detached.

    Args:
        container: the main container, or any host's container if each host has a part of the job.
        job: the job's id; its folder exists in the container.
        variables: variables of its ranks, only in the supervisor's memory, never in a repr or command line.
    """

    host: str
    title: str
    container: str
    job: str
    variables: str = field(default="", repr=False)


@dataclass(frozen=True)
class StartDaemons:
    """Start the processes that a job's launcher requests on other hosts, each with its own supervisor.

    Args:
        container: the main container, in which the launcher runs.
        job: the job's id; its folder exists in the main container and on the other hosts.
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
    """Stage a data set to a folder of a host: send missing files, then remove files that left the data set.

    Args:
        source: folder or file on this machine.
        content: content of the data set when the plan was made.
        path: the folder on the host, created if missing.
        account: the folder that records the files written to ``path``; only the SSH user has access.
        image: image for a container that runs the host's part if the host has no Python.
        user: the SSH user on the host, as ``uid:gid``.
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
    """Remove from a folder of a host only the files that ``SendData`` wrote.

    Args:
        account, image, user, cluster: as in ``SendData``.
        keep: keep the folder itself: a container mounts it, and would not see a new folder in its place.
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
    """Download the records, logs and outputs of jobs to a local folder.

    Args:
        inside: ``docker`` arguments in front of a command that sees the jobs as the container does.
        fix: fix to print if the host cannot read all files.
    """

    host: str
    title: str
    inside: tuple[str, ...]
    into: str
    fix: str = ""


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
    """Steps that run on all hosts in parallel; the steps of one host run in order."""

    title: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Plan:
    """Phases, one after another. A host that fails is excluded; the others continue."""

    title: str
    phases: tuple[Phase, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for phase in self.phases for step in phase.steps)
