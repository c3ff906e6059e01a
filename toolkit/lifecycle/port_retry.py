"""Run `up`, and again with another port if a process took the port after the hosts were probed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from toolkit.cluster.layout import Layout, make_layout
from toolkit.cluster.session import Session
from toolkit.core.command import Command
from toolkit.core.host_programs import container_programs
from toolkit.core.report import FailureCause, Outcome, Report, spans_json
from toolkit.errors import ToolkitError
from toolkit.jobs.control import refuse_to_end_jobs
from toolkit.lifecycle.up import plan_up
from toolkit.plan.execute import Listener, reported_after, step_key
from toolkit.plan.steps import Plan
from toolkit.protocol.names import UP_TIMES

# Clusters that race go on to ports of their own, so that a second loss is chance already.
TRIES = 4


def bring_up(
    session: Session,
    layout: Layout,
    plan: Plan,
    listen: Listener,
    prepare: bool = False,
    force: bool = False,
) -> Report:
    """Run a plan of ``plan_up``; if another process took its port, plan and run it again.

    All hosts of the cluster go to the new port together. A port that the hosts file names stays: then the
    report names its user.

    Args:
        layout: the plan was made for it.
        prepare: as the plan was made.
        force: although another port ends a running job.
    """
    lost_ports: frozenset[int] = frozenset()
    report = latest = session.execute(plan, listen, precheck=session.is_up)
    for _ in range(TRIES):
        lost = _lost(latest)
        if not lost:
            break
        with reported_after(report):
            lost_ports |= {layout.port}
            session.probe_again(list(session.facts))
            try:
                observed = replace(session.observe(), lost_ports=lost_ports)
                layout = make_layout(session.inventory, observed)
                session.leave_out(layout.refused)
                again = plan_up(layout, container_programs(), prepare)
                if not force:
                    refuse_to_end_jobs(session, layout, prepare)
            except ToolkitError as error:
                report = _blamed(report, lost, error)
                break
            # The data, for one, is in the first plan only. A host without it must not be started.
            repeated = {step_key(phase, step) for phase in again.phases for step in phase.steps}
            undone = {o.host for o in report.outcomes if not o.done and o.key not in repeated}
            latest = session.execute(again, listen, without=undone)
        report = latest.after(report)
    if report.changes:
        _keep_times(session)
    return report


def _keep_times(session: Session) -> None:
    """Store the durations on main for the reports of jobs, which work without them."""
    main = session.facts.get(session.inventory.main)
    if main is None:
        return
    text = json.dumps({"at": time.time(), "spans": spans_json(session.stopwatch.take())})
    file = f"{main.state_dir}/conf/{UP_TIMES}"
    keep = Command(("sh", "-c", 'umask 077; cat >"$1.part" && mv "$1.part" "$1"', "sh", file), text.encode())
    # Not a step of the plan: its content is known only after the plan has run.
    if main.host in session.runners:
        with suppress(ToolkitError):
            session.runners[main.host].run(keep, 30)


def _lost(report: Report) -> dict[str, Outcome]:
    """Return the hosts whose sshd found its port in use."""
    return {o.host: o for o in report.failures if o.cause is FailureCause.PORT_TAKEN}


def _blamed(report: Report, lost: Mapping[str, Outcome], error: ToolkitError) -> Report:
    """Replace sshd's message by the reason why there is no other port."""

    def with_reason(outcome: Outcome) -> Outcome:
        if outcome is not lost.get(outcome.host) or error.host not in ("", outcome.host):
            return outcome
        return replace(outcome, detail=error.what, fix=error.fix)

    return replace(report, outcomes=tuple(map(with_reason, report.outcomes)))
