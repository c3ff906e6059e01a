"""What the verbs do with plans: show them, run them, say how each host fared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from toolkit.cli.common import as_warnings, put_json, put_text, say
from toolkit.cli.progress import Progress

if TYPE_CHECKING:
    from toolkit.cluster.session import Session
    from toolkit.core.finding import Finding
    from toolkit.core.report import Report
    from toolkit.plan.steps import Plan, Step


def show_plans(
    session: Session, plans: Sequence[Plan], as_json: bool, more: Mapping[str, Any] | None = None
) -> None:
    """Print what would be done, for ``--dry-run``; ``more`` goes into the JSON."""
    from toolkit.plan.show import plan_text

    texts = [plan_text(plan, session.inventory.engine) for plan in plans]
    if as_json:
        lines = [line for text in texts for line in text.splitlines()]
        put_json({"title": plans[-1].title, "dry_run": True, "plan": lines, **(more or {})})
    else:
        put_text("".join(texts))


def pull_image(session: Session, dry_run: bool, as_json: bool, verbose: bool) -> Report | None:
    """Let the hosts pull the image where the file says so; what comes next is planned by what it brought.

    Ends the command after a dry run, and when no host is left to go on with.
    """
    from toolkit.core.report import PlanFailed
    from toolkit.lifecycle.planning import pull_plan
    from toolkit.plan.show import report_text

    plan = pull_plan(session)
    if not plan.steps:
        return None
    if dry_run:
        carry_out(session, plan, dry_run, as_json, verbose)
        say("what follows is planned when it is known what this brings")
        raise typer.Exit
    say(f"          {', '.join(step.host for step in plan.steps)}: {plan.title}")
    with Progress(verbose) as listener:
        try:
            return session.pull(plan, listener)
        except PlanFailed as error:
            report = error.report
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
    execute: Callable[[Plan, Progress], Report] | None = None,
    to_do: Sequence[Step] | None = None,
) -> Report | None:
    """Print the plan, or run it and print how each host fared; the exit status is the caller's.

    Args:
        before: of a plan that was run in preparation of this one; both are reported as one.
        warnings: findings for the JSON, by whoever looks for any; None leaves the key out.
        execute: runs the plan in place of the session.
        to_do: of a plan that is printed, what has something to do as things are; None for not known.
    """
    from toolkit.plan.execute import reported_after
    from toolkit.plan.show import report_text, to_do_text

    found = {} if warnings is None else as_warnings(warnings)
    if dry_run:
        if to_do is not None:
            found["to_do"] = [{"host": step.host, "step": step.title} for step in to_do]
        show_plans(session, (plan,), as_json, found)
        if to_do is not None and not as_json:
            say(to_do_text(plan, to_do))
        return None
    with Progress(verbose) as listener:
        for outcome in session.connect_outcomes():
            listener.outcome(outcome)
        with reported_after(before):
            report = (execute or session.execute)(plan, listener).after(before)
    if as_json:
        put_json({**report.as_json(), **found})
    else:
        say(report_text(report))
    return report


def exit_with(report: Report | None) -> None:
    """End the command with status 1 when a step failed."""
    if report is not None and not report.ok:
        raise typer.Exit(1)
