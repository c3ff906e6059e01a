"""All errors that toolkit raises, with their exit codes.

An error is data: ``what`` is one sentence about the problem, ``fix`` a command or sentence that solves it,
and ``host`` the host concerned, if any. Only ``toolkit.cli`` prints errors and exits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

EXIT_CODES: dict[int, str] = {
    0: "success",
    1: "a failure on a host or on your machine; the message contains the reason",
    2: "an invalid hosts.yaml, local file or command line, usually found before toolkit contacts a host",
    3: "the cluster, a host or a job is not in the required state, for example not up or not found",
    4: "a program or service that the command requires is missing on your machine",
    130: "Ctrl-C; 129 after the terminal was closed, 141 after the output pipe was closed, 143 after SIGTERM",
}


def quotation(lines: Iterable[str]) -> str:
    """Return lines that another program printed, to append to the text of an error.

    The margin distinguishes them from lines of toolkit, such as a fix.
    """
    return "".join(f"\n    | {line}" for line in lines)


class ToolkitError(Exception):
    """Base of all errors that toolkit reports to users.

    Args:
        what: the problem, in one sentence.
        fix: a command or sentence that solves it, one on each line; empty if none is known.
        host: the inventory name of the host concerned; empty if there is none.
    """

    exit_code = 1

    def __init__(self, what: str, fix: str = "", host: str = "") -> None:
        self.what, self.fix, self.host = what, fix, host
        super().__init__(what)

    def __copy__(self) -> ToolkitError:
        # Subclasses have other arguments, with which `copy` would call them.
        made = type(self).__new__(type(self), *self.args)
        made.__dict__.update(self.__dict__)
        return made

    def __str__(self) -> str:
        head = f"{self.host}: {self.what}" if self.host else self.what
        return "\n  fix: ".join((head, *self.fix.splitlines()))


@dataclass(frozen=True)
class Problem:
    """One problem of an input: its place, and a message that also names valid values."""

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"


class BadInput(ToolkitError):
    """The hosts file or the command line is invalid; ``problems`` contains every problem."""

    exit_code = 2

    def __init__(self, source: str, problems: tuple[Problem, ...], fix: str = "") -> None:
        self.source, self.problems = source, problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "".join(f"\n  {p}" for p in problems)
        super().__init__(f"{source}: {count}{lines}", fix)


class NotReady(ToolkitError):
    """The cluster or a host is not in the state that the command requires."""

    exit_code = 3


class UnsafeState(NotReady):
    """Another user could read or replace files of a cluster on a host."""


def together(errors: Sequence[NotReady]) -> NotReady:
    """Return one error that lists the problem of each host, with the fix for each."""
    if len(errors) == 1:
        return errors[0]
    lines = "".join(f"\n  {e.host}: {e.what}\n    fix: {e.fix}" for e in errors)
    return NotReady(f"{len(errors)} hosts are not ready:{lines}")


class MissingTool(ToolkitError):
    """A program or service that the command requires is missing on this machine."""

    exit_code = 4


class UnreachableCause(Enum):
    """A cause that code compares, instead of the text of the error."""

    OTHER = "other"
    UNKNOWN_KEY = "the SSH host key of the host is not recorded"
    CHANGED_KEY = "the SSH host key of the host differs from the recorded key"
    REVOKED_KEY = "the SSH host key of the host is revoked"
    UNKNOWN_NAME = "the name of the host cannot be resolved"
    LOGIN_REFUSED = "the host refused the SSH login"


class Unreachable(ToolkitError):
    """A host cannot be reached or refuses the login.

    Attributes:
        known_as: the name of a changed SSH host key in known_hosts; empty for other causes.
    """

    known_as = ""

    def __init__(
        self, what: str, fix: str = "", host: str = "", cause: UnreachableCause = UnreachableCause.OTHER
    ) -> None:
        self.cause = cause
        # The text can quote the host, which must not add lines that read as toolkit's own, such as a fix.
        super().__init__(what.replace("\n", r"\n"), fix, host)


class CommandFailed(ToolkitError):
    """A command exited with a status other than 0.

    Keeps the command line (which contains no secrets), the status and the end of the output.
    """

    def __init__(self, line: str, status: int, output: str, host: str = "", fix: str = "") -> None:
        self.line, self.status, self.output = line, status, output
        tail = quotation(output.strip().splitlines()[-8:])
        super().__init__(f"`{line}` exited with status {status}{tail}", fix, host)


class ImageError(ToolkitError):
    """An image cannot be built, found, sent or verified."""


class LabError(ToolkitError):
    """The practice cluster cannot be created, found or removed."""


class StillRunning(ToolkitError):
    """A job that toolkit could not stop."""


class Interrupted(ToolkitError):
    """The user pressed Ctrl-C, or a signal ended the command.

    Without arguments, the text is only "interrupted".
    """

    exit_code = 130

    def __init__(self, what: str = "", fix: str = "", host: str = "") -> None:
        self.bare = not what
        super().__init__(what or "interrupted", fix, host)


class Detached(Interrupted):
    """The command detaches from a job, and the job continues."""

    def __init__(self, job: str, why: str, exit_code: int = Interrupted.exit_code) -> None:
        self.job = job
        self.exit_code = exit_code
        fix = f"toolkit attach {job}  # follows the job again; `toolkit stop {job}` stops the job"
        super().__init__(f"{why}; {job} continues", fix)
