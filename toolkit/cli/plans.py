"""Prints and runs the plans of verbs, and prints the result of each host."""

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
    """Print the plans, for ``--dry-run``; ``more`` is added to the JSON."""
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
    """Print the plan, or run it and print the result of each host. The caller sets the exit status.

    Args:
        warnings: findings for the JSON; None omits the key.
        to_do: returns the steps of a printed plan that would change something; None skips this query.
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
    with Progress(verbose, brief=not as_json) as listener:
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
    """Do the same for a command that can begin with a pull of the image; see ``PreparedAfterPull``."""
    if not (dry_run and prepared.planned_later):
        return carry_out(prepared, dry_run, as_json, verbose, warnings, to_do)
    carry_out(prepared, dry_run, as_json, verbose)
    say("the other steps depend on the pulled image; toolkit plans these steps after the pull")
    return None


def exit_with(report: Report | None) -> None:
    """Exit with status 1 if a step failed."""
    if report is not None and not report.ok:
        raise typer.Exit(1)
