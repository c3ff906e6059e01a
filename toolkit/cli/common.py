"""What the verbs share: options, output, the way to the hosts.

Heavy imports stay inside functions for a quick --help.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.cli.complete import one_of

if TYPE_CHECKING:
    from toolkit.api import Questions, Session
    from toolkit.cluster import Cluster
    from toolkit.core.finding import Finding
    from toolkit.spec.inventory import Inventory

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

DEFAULT_HOSTS = "hosts.yaml"


def say(text: str) -> None:
    """Print for people: on standard error, so that standard output stays for results."""
    sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
    sys.stderr.flush()


def put_json(value: Any) -> None:
    """Print a result as JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def warn(findings: Iterable[Finding]) -> None:
    """Say what was found before anything is started; it goes on all the same."""
    for finding in findings:
        host = f"{finding.host}: " if finding.host else ""
        say(f"{finding.verdict}: {host}{finding.subject}: {finding.what}\n  fix: {finding.fix}")


def say_changes(findings: Iterable[Finding]) -> None:
    """Print which keys of hosts.yaml changed since `up`; see ``Session.changes``."""
    for finding in findings:
        say(f"{finding.subject} {finding.what}; run `{finding.fix}`")


def as_warnings(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the part of a result's JSON that holds findings."""
    from dataclasses import asdict

    return {"warnings": [asdict(finding) for finding in findings]}


def to_stdout(data: bytes) -> None:
    """Pass output on as it comes."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def to_stderr(data: bytes) -> None:
    """Pass on as it comes what a command says beside its output."""
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()


def load(hosts: str) -> Inventory:
    """Return the hosts file's inventory."""
    from toolkit.inputs import load_inventory

    return load_inventory(hosts)


def connect(
    inventory: Inventory,
    verbose: bool,
    names: Iterable[str] | None = None,
    questions: Questions = (),
    desks: bool = False,
    meanwhile: Callable[[Session], object] | None = None,
) -> Session:
    """Connect to the hosts and say who did not answer; arguments as in ``Session.open``."""
    return cluster_of(inventory, verbose).connect(names, questions, desks, meanwhile)


def cluster_of(inventory: Inventory, verbose: bool) -> Cluster:
    """Return the cluster as an object; ``verbose`` says what is run where."""
    from toolkit.cluster import Cluster

    if not verbose:
        return Cluster(inventory)
    return Cluster(inventory, trace=trace, met=_say_timings)


def _say_timings(session: Session) -> None:
    for name, seconds in session.timings.items():
        say(f"          {name}: connected and asked in {seconds:.2f} s")


def trace(host: str, line: str) -> None:
    """Say a command that a host is about to run, for ``--verbose``."""
    shown = " ".join(line.split())
    say(f"       $  {host}: {shown if len(shown) <= 400 else shown[:397] + '…'}")
