"""What the verbs do with plans: show them, run them, say how each host fared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from toolkit.cli.common import as_warnings, put_json, put_text, say
from toolkit.cli.progress import Progress
from toolkit.core.report import PlanFailed, Report
from toolkit.plan.show import plan_text, report_text, to_do_text

if TYPE_CHECKING:
    from toolkit.api.prepared import Prepared, PreparedAfterPull
    from toolkit.cluster.session import Session
    from toolkit.core.finding import Finding
    from toolkit.plan.steps import Plan, Step


def show_plans(
    session: Session, plans: Sequence[Plan], as_json: bool, more: Mapping[str, Any] | None = None
) -> None:
    """Print what would be done, for ``--dry-run``; ``more`` goes into the JSON."""
    texts = [plan_text(plan, session.inventory.engine) for plan in plans]
    if as_json:
        lines = [line for text in texts for line in text.splitlines()]
        put_json({"title": plans[-1].title, "dry_run": True, "plan": lines, **(more or {})})
    else:
        put_text("".join(texts))


def carry_out(
    prepared: Prepared[Report],
    dry_run: bool,
    as_json: bool,
    verbose: bool,
    warnings: Sequence[Finding] | None = None,
    to_do: Callable[[], Sequence[Step]] | None = None,
) -> Report | None:
    """Print the plan, or run it and print how each host fared; the exit status is the caller's.

    Args:
        warnings: findings for the JSON, by whoever looks for any; None leaves the key out.
        to_do: asks which steps of a plan that is printed have something to do; None for not asked.
    """
    found = {} if warnings is None else as_warnings(warnings)
    if dry_run:
        plan = prepared.plan
        steps = to_do() if to_do is not None else None
        if steps is not None:
            found["to_do"] = [{"host": step.host, "step": step.title} for step in steps]
        show_plans(prepared.session, (plan,), as_json, found)
        if steps is not None and not as_json:
            say(to_do_text(plan, steps))
        return None
    with Progress(verbose) as listener:
        try:
            report = prepared.execute(listener)
        except PlanFailed as error:  # no host is left after the first of two plans
            report, found = error.report, {}
    if as_json:
        put_json({**report.as_json(), **found})
    else:
        say(report_text(report))
    return report


def carry_out_after_pull(
    prepared: PreparedAfterPull,
    dry_run: bool,
    as_json: bool,
    verbose: bool,
    warnings: Sequence[Finding] | None = None,
    to_do: Callable[[], Sequence[Step]] | None = None,
) -> Report | None:
    """Do the same for a command before which hosts may pull the image; see ``PreparedAfterPull``."""
    if not (dry_run and prepared.planned_later):
        return carry_out(prepared, dry_run, as_json, verbose, warnings, to_do)
    carry_out(prepared, dry_run, as_json, verbose)
    say("what follows is planned when it is known what this brings")
    return None


def exit_with(report: Report | None) -> None:
    """End the command with status 1 when a step failed."""
    if report is not None and not report.ok:
        raise typer.Exit(1)
