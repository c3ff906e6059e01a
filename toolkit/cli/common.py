"""What the verbs share: options, output, progress. Heavy imports stay inside functions for a quick --help."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from toolkit.api import Session
    from toolkit.core.finding import Finding
    from toolkit.core.report import Report
    from toolkit.execute import Event
    from toolkit.plan.steps import Plan
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


def as_warnings(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the part of a result's JSON that holds findings."""
    from dataclasses import asdict

    return {"warnings": [asdict(finding) for finding in findings]}


def to_stdout(data: bytes) -> None:
    """Pass a job's output on as it comes."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def load(hosts: str) -> Inventory:
    """Return the hosts file's inventory."""
    from toolkit.inputs import load_inventory

    return load_inventory(hosts)


def connect(
    inventory: Inventory,
    verbose: bool,
    names: Iterable[str] | None = None,
    questions: Sequence[tuple[str, str]] = (),
) -> Session:
    """Connect to the hosts and say who did not answer; ``questions`` as in ``Session.open``."""
    from toolkit.api import Session

    session = Session.open(inventory, names, _trace if verbose else None, questions)
    if verbose:
        for name, seconds in session.timings.items():
            say(f"          {name}: connected and asked in {seconds:.2f} s")
    return session


def _trace(host: str, line: str) -> None:
    shown = " ".join(line.split())
    say(f"       $  {host}: {shown if len(shown) <= 400 else shown[:397] + '…'}")


def show_plans(plans: Sequence[Plan], as_json: bool, more: Mapping[str, Any] | None = None) -> None:
    """Print what would be done, for ``--dry-run``; ``more`` goes into the JSON."""
    from toolkit.show import plan_text

    texts = [plan_text(plan) for plan in plans]
    if as_json:
        lines = [line for text in texts for line in text.splitlines()]
        put_json({"title": plans[-1].title, "dry_run": True, "plan": lines, **(more or {})})
    else:
        sys.stdout.write("".join(texts))


def pull_image(session: Session, dry_run: bool, as_json: bool, verbose: bool) -> Report | None:
    """Let the hosts pull the image where the file says so; what comes next is planned by what it brought.

    Ends the command after a dry run, and when no host is left to go on with.
    """
    from toolkit.show import report_text

    plan = session.plan_pull()
    if not plan.steps:
        return None
    if dry_run:
        carry_out(session, plan, dry_run, as_json, verbose)
        say("what follows is planned when it is known what this brings")
        raise typer.Exit
    say(f"          {', '.join(step.host for step in plan.steps)}: {plan.title}")
    listener = Progress(verbose)
    try:
        report = session.pull(plan, listener)
    finally:
        listener.close()
    if session.facts:
        return report
    if as_json:
        put_json(report.as_json())
    else:
        say(report_text(report))
    raise typer.Exit(1)


def carry_out(
    session: Session,
    plan: Plan,
    dry_run: bool,
    as_json: bool,
    verbose: bool,
    before: Report | None = None,
    warnings: Sequence[Finding] | None = None,
) -> Report | None:
    """Print the plan, or run it and print how each host fared; the exit status is the caller's.

    Args:
        before: of a plan that was run in preparation of this one; both are reported as one.
        warnings: findings for the JSON, by whoever looks for any; None leaves the key out.
    """
    from toolkit.show import report_text

    found = {} if warnings is None else as_warnings(warnings)
    if dry_run:
        show_plans((plan,), as_json, found)
        return None
    listener = Progress(verbose)
    try:
        for outcome in session.connect_outcomes():
            listener.outcome(outcome)
        report = session.execute(plan, listener).after(before)
    finally:
        listener.close()
    if as_json:
        put_json({**report.as_json(), **found})
    else:
        say(report_text(report))
    return report


def exit_with(report: Report | None) -> None:
    """End the command with status 1 when a step failed."""
    if report is not None and not report.ok:
        raise typer.Exit(1)


class Progress:
    """Prints steps as they end, and bars of what takes long when standard error is a terminal."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose
        self._lock = threading.Lock()
        self._bars: Any = None
        self._tasks: dict[tuple[str, str], Any] = {}
        self._said: dict[tuple[str, str], float] = {}
        self._terminal = sys.stderr.isatty()

    def __call__(self, event: Event) -> None:
        from toolkit.execute import StepEnded, StepProgress

        with self._lock:
            if isinstance(event, StepEnded):
                self._end_bar(event.outcome.host, event.outcome.step)
                self.outcome(event.outcome)
            elif isinstance(event, StepProgress):
                self._advance(event)

    def outcome(self, outcome: Any) -> None:
        from toolkit.show import outcome_line

        if outcome.status != "skipped" or self._verbose:
            say(outcome_line(outcome))

    def _advance(self, event: Any) -> None:
        key = (event.host, event.step)
        now = time.monotonic()
        if self._terminal:
            self._show_bar(event)
        elif now - self._said.setdefault(key, now) > 10:
            # Not a terminal: a line every ten seconds says that it goes on.
            self._said[key] = now
            share = f" of {event.total / 1e6:.0f}" if event.total else ""
            say(f"     ...  {event.host}: {event.step}: {event.done / 1e6:.0f}{share} MB")

    def _show_bar(self, event: Any) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bars

        if self._bars is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()
        key = (event.host, event.step)
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(f"{event.host}: {event.step}", total=None)
        self._bars.update(self._tasks[key], completed=event.done, total=event.total or None)

    def _end_bar(self, host: str, step: str) -> None:
        task = self._tasks.pop((host, step), None)
        if task is not None:
            self._bars.remove_task(task)
        if self._bars is not None and not self._tasks:
            self._bars.stop()
            self._bars = None

    def close(self) -> None:
        """Take the bars off the screen."""
        if self._bars is not None:
            self._bars.stop()
