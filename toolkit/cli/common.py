"""What the verbs share: options, output, the way to the hosts.

What leads to the hosts is imported inside functions: help, completion and errors print without it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from toolkit.api.notices import Notice, Topic
from toolkit.cli.complete import one_of
from toolkit.core.printable import TerminalFilter, printable, printable_line

if TYPE_CHECKING:
    from toolkit.api.connection import Connection
    from toolkit.cluster.session import Questions, Session
    from toolkit.core.finding import Finding
    from toolkit.hostsfile.inventory import Inventory

HostsFile = Annotated[
    str,
    typer.Option("--hosts", envvar="TOOLKIT_HOSTS", metavar="FILE", help="The hosts file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Look, but change nothing: print what would be done.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every command and every step.")]

NoCheck = Annotated[
    bool, typer.Option("--no-check", help="Do not look for faults of the hosts first, see `toolkit check`.")
]

OnInterrupt = Annotated[
    str,
    typer.Option(
        metavar="ask|stop|detach",
        help="What the first Ctrl-C does; without a terminal to ask on, ask means stop.",
        autocompletion=one_of("ask", "stop", "detach"),
    ),
]
Fold = Annotated[
    bool, typer.Option("--fold/--no-fold", help="Show a line once that several ranks print, and say which.")
]
Raw = Annotated[
    bool,
    typer.Option("--raw", help="Pass all escape sequences of ranks to the terminal (default: colors only)."),
]

DEFAULT_HOSTS = "hosts.yaml"
# Of texts that go with lines of other topics.
_INDENTS = {"CODE": " " * 2, "PULL": " " * 10}


def say(text: str) -> None:
    """Print for people: on standard error, so that standard output stays for results."""
    _print(sys.stderr, _as_lines(text or "\n"))


def put_text(text: str) -> None:
    """Print a result for people on standard output."""
    _print(sys.stdout, _as_lines(text))


def ask(text: str) -> None:
    """Print a question on standard error; the answer follows on its last line."""
    _print(sys.stderr, text)


def confirm(question: str) -> bool:
    """Ask on standard error for yes or no; Enter means no."""
    return typer.confirm(printable_line(question), err=True)


def _as_lines(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _print(stream: TextIO, text: str) -> None:
    # Hosts, containers and ranks can put any characters into what they send.
    stream.write(printable(text))
    stream.flush()


def put_json(value: Any) -> None:
    """Print a result as JSON on standard output; json.dumps escapes control and bidi characters."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def put_file(text: str) -> None:
    """Print a file that toolkit made on standard output, for another program: every byte as it is."""
    sys.stdout.write(text)


def warn(findings: Iterable[Finding]) -> None:
    """Say what was found before anything is started; it goes on all the same."""
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
    """Pass output on as it comes."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def to_stderr(data: bytes) -> None:
    """Pass on as it comes what a command says beside its output."""
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()


def rank_output(raw: bool, errors: bool = False) -> Callable[[bytes], None]:
    """Return a sink for output of programs in containers, with a filter if a terminal shows it.

    The filter ends colors with each piece of output, so that they do not apply to text of toolkit.

    Args:
        raw: pass every byte to the terminal as well.
        errors: to standard error in place of standard output.
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
    desks: bool = False,
) -> Session:
    """Connect to the hosts and say who did not answer; arguments as in ``Session.open``."""
    return connection_of(inventory, verbose).connect(names, questions, desks)


def connection_of(
    inventory: Inventory, verbose: bool, notice: Callable[[Notice], None] | None = None
) -> Connection:
    """Return the way to a cluster; ``verbose`` prints each command that a host runs.

    Args:
        notice: shows the notices of a command, see ``show_notice``.
    """
    from toolkit.api.connection import Connection

    if not verbose:
        return Connection(inventory, warn=_warn_of, notice=notice)
    return Connection(inventory, warn=_warn_of, trace=trace, met=_say_timings, notice=notice)


def show_notice(notice: Notice) -> None:
    """Print a notice; problems of hosts are for the verb, as commands differ in how many they print."""
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
        say(f"          {name}: connected and asked in {seconds:.2f} s")


def trace(host: str, line: str) -> None:
    """Say a command that a host is about to run, for ``--verbose``."""
    shown = " ".join(line.split())
    say(f"       $  {host}: {shown if len(shown) <= 400 else shown[:397] + '…'}")
