"""Options, output and connections that the verbs share.

Functions import the code that connects to hosts when they need it. Help, completion and errors need none.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from toolkit.cli.complete import one_of
from toolkit.core.finding import Notice, Topic
from toolkit.core.printable import TerminalFilter, printable, printable_line
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.api.connection import Connection
    from toolkit.cluster.connect import Questions
    from toolkit.cluster.session import Session
    from toolkit.core.finding import Finding
    from toolkit.hostsfile.inventory import Inventory

# The heading of options that most verbs have.
COMMON = "Common options"

HostsFile = Annotated[
    str,
    typer.Option(
        "--hosts", envvar="TOOLKIT_HOSTS", metavar="FILE", help="Path of hosts.yaml", rich_help_panel=COMMON
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON on standard output", rich_help_panel=COMMON),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan and change nothing", rich_help_panel=COMMON)
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Print every command that toolkit runs on hosts, and every step",
        rich_help_panel=COMMON,
    ),
]

NoCheck = Annotated[bool, typer.Option("--no-check", help="Skip the host checks (see `toolkit check`)")]

OnInterrupt = Annotated[
    str,
    typer.Option(
        metavar="ask|stop|detach",
        help="Action after the first Ctrl-C. Without a terminal, `ask` means `stop`",
        autocompletion=one_of("ask", "stop", "detach"),
    ),
]
LineCollapser = Annotated[
    bool,
    typer.Option(
        "--fold/--no-fold",
        help="Hide tracebacks of torchrun itself. In a job of 3 or more ranks, collapse identical lines that "
        "several ranks print within 2 s",
    ),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw", help="Pass all escape sequences in the output to the terminal (default: colors only)"
    ),
]

DEFAULT_HOSTS = "hosts.yaml"
# Spaces in front of notices that belong to a line of another topic.
_INDENTS = {"CODE": " " * 2, "PULL": " " * 10}


def say(text: str) -> None:
    """Print a message for the user on standard error. Standard output is for results."""
    _print(_as_lines(text or "\n"))


def say_job_commands(job: str) -> None:
    """Print the commands for a job that continues in the background."""
    say(f"  follow the job: toolkit attach {job}\n  stop the job:   toolkit stop {job}")


def put_text(text: str) -> None:
    """Print a result as text on standard output."""
    put_file(printable(_as_lines(text)))


def ask(text: str) -> None:
    """Print a question on standard error; the answer follows on its last line."""
    _print(text)


def confirm(question: str) -> bool:
    """Ask on standard error for yes or no; Enter and an answer that is not valid text mean no."""
    try:
        return typer.confirm(printable_line(question), err=True)
    except UnicodeDecodeError:
        return False


def _as_lines(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _print(text: str) -> None:
    with _dropping_what_stderr_refuses():
        # Text of hosts, containers and ranks can contain any characters.
        sys.stderr.write(printable(text))
        sys.stderr.flush()


# Of two threads that discard text, the second would keep the null device of the first as standard error.
_discarding = threading.Lock()


@contextmanager
def _dropping_what_stderr_refuses() -> Iterator[None]:
    """Drop text that standard error does not accept, for example because a disk is full.

    The steps of a plan and the exit code do not depend on messages. A closed pipe and a closed terminal (EIO)
    end a command.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.errno == errno.EIO:
            raise
        with _discarding:
            number = sys.stderr.fileno()
            kept = os.dup(number)
            _discard(sys.stderr)
            os.dup2(kept, number)  # the disk can have space again for the next message
            os.close(kept)


def put_json(value: Any) -> None:
    """Print a result as JSON on standard output; json.dumps escapes control and bidi characters."""
    put_file(json.dumps(value, indent=2, default=str) + "\n")


def put_file(text: str) -> None:
    """Print text that toolkit made on standard output, unchanged: help, or a file for another program.

    Raises:
        ToolkitError: standard output cannot be written, for example because a disk is full.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise as_lost_output(error) from error


# As of a program that SIGPIPE kills.
EXIT_CLOSED_PIPE = 128 + 13


class StdoutLost(OSError):
    """Standard output cannot be written. Still an OSError: the hosts and the connections work."""


def as_lost_output(error: OSError) -> ToolkitError:
    """Return the error for users, and discard what is left for standard output."""
    discard_stdout()
    what = f"cannot print the output: {error.strerror}"
    return ToolkitError(what, "free disk space, or write the output to another file")


@contextmanager
def reporting_lost_output() -> Iterator[None]:
    """Print an error if standard output cannot be written; nothing if its reader closed the pipe.

    For output during the report of an error, whose exit code counts.
    """
    try:
        yield
    except BrokenPipeError:
        discard_stdout()
    except ToolkitError as lost:
        say(f"toolkit: {lost}\n")


def can_flush() -> bool:
    """Return whether standard output accepts the text that is left for it."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def discard_stdout() -> None:
    """Discard what is left for standard output, and all further output."""
    _discard(sys.stdout)


def _discard(stream: TextIO) -> None:
    """Connect a stream to the null device. Otherwise Python tries to write its buffer again, and fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    stream.flush()


def warn(findings: Iterable[Finding]) -> None:
    """Print findings that do not stop the command."""
    for finding in findings:
        host = f"{finding.host}: " if finding.host else ""
        what = printable_line(f"{host}{finding.subject}: {finding.what}")
        say(f"{finding.verdict}: {what}\n  fix: {printable_line(finding.fix)}")


def say_changes(findings: Iterable[Finding]) -> None:
    """Print which keys of hosts.yaml changed since `up`; see ``Session.changes``."""
    for finding in findings:
        say(f"{finding.subject} {finding.what}; run `{finding.fix}`")


def as_warnings(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the part of a result's JSON that holds findings."""
    return {"warnings": [asdict(finding) for finding in findings]}


def to_stdout(data: bytes) -> None:
    """Write a piece of a command's standard output.

    Raises:
        StdoutLost: it cannot be written, for example because a disk is full.
    """
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StdoutLost(error.errno, error.strerror) from error


def to_stderr(data: bytes) -> None:
    """Write a piece of a command's standard error."""
    with _dropping_what_stderr_refuses():
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()


def rank_output(raw: bool, errors: bool = False) -> Callable[[bytes], None]:
    """Return a sink for output of programs in containers, with a filter if a terminal shows it.

    The filter ends colors after each piece of output, so that they do not apply to messages of toolkit.

    Args:
        raw: pass every byte to the terminal too.
        errors: write to standard error instead of standard output.
    """
    sink, stream = (to_stderr, sys.stderr) if errors else (to_stdout, sys.stdout)
    if raw or not stream.isatty():
        return sink
    shown = TerminalFilter()
    return lambda data: sink(shown.piece(data))


def load(hosts: str) -> Inventory:
    """Return the hosts file's inventory."""
    from toolkit.hostsfile.load import load_inventory

    return load_inventory(hosts)


def connect(
    inventory: Inventory,
    verbose: bool,
    names: Iterable[str] | None = None,
    questions: Questions = (),
    container_sessions: bool = False,
) -> Session:
    """Connect to the hosts and report those that do not answer; arguments as in ``Session.open``."""
    return connection_of(inventory, verbose).connect(names, questions, container_sessions)


def connection_of(
    inventory: Inventory, verbose: bool, notice: Callable[[Notice], None] | None = None
) -> Connection:
    """Return the connection to a cluster; ``verbose`` prints each command that a host runs.

    Args:
        notice: shows the notices of a command, see ``show_notice``.
    """
    from toolkit.api.connection import Connection

    if not verbose:
        return Connection(inventory, warn=_warn_of, notice=notice)
    return Connection(inventory, warn=_warn_of, trace=trace, met=_say_timings, notice=notice)


def show_notice(notice: Notice) -> None:
    """Print a notice, except for problems of hosts: each verb decides how many of them it prints."""
    if notice.topic is Topic.CHANGES:
        say_changes(notice.findings)
    elif notice.topic is not Topic.HOSTS:
        warn(notice.findings)
    if notice.text:
        say(f"{_INDENTS.get(notice.topic.name, '')}{notice.text}")


def _warn_of(finding: Finding) -> None:
    warn((finding,))


def _say_timings(session: Session) -> None:
    for name, seconds in session.timings.items():
        say(f"          {name}: connection and query took {seconds:.2f} s")


def trace(host: str, line: str) -> None:
    """Print a command that a host is about to run, for ``--verbose``."""
    shown = " ".join(line.split())
    say(f"       $  {host}: {shown if len(shown) <= 400 else shown[:397] + '…'}")
