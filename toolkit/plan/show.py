"""Plans and reports as readable text; this module prints nothing."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.core.command import Command
from toolkit.core.disk_space import size
from toolkit.core.engines import DOCKER, translate_engine
from toolkit.core.finding import with_hosts, without_host
from toolkit.core.printable import counted
from toolkit.core.report import FailureCause, Outcome, Report
from toolkit.plan.steps import (
    Fetch,
    Plan,
    PullImage,
    RemoveData,
    Run,
    SendCode,
    SendData,
    SendImage,
    Stamp,
    StartDaemons,
    StartJob,
    Step,
    Upload,
    WaitFor,
)
from toolkit.protocol.host_list import host_list

_SIGN = {"ok": "done", "skipped": "as is", "failed": "FAILED", "not run": "not run"}


def plan_text(plan: Plan, engine: str = DOCKER) -> str:
    """Return the plan as it would run: phase by phase, host by host, with the commands.

    Args:
        engine: what the hosts have; commands are shown in its words, as they are run.
    """
    if not plan.steps:
        return f"{plan.title}: nothing to change\n"
    lines = [plan.title]
    for phase in plan.phases:
        lines.append(f"\nphase {phase.title}")
        for step in phase.steps:
            lines.append(f"  {step.host}: {step.title}")
            lines += [f"      {line}" for line in step_lines(step, engine)]
    return "\n".join(lines) + "\n"


def to_do_text(plan: Plan, to_do: Sequence[Step]) -> str:
    """Return which steps of a plan have something to do as things are now, by their titles."""
    steps = counted(len(plan.steps), "step")
    if not to_do:
        return f"{plan.title}: no step would run now ({steps})"
    hosts: dict[str, list[str]] = {}
    for step in to_do:
        hosts.setdefault(step.title, []).append(step.host)
    lines = "".join(f"\n  {host_list(dict.fromkeys(names))}: {title}" for title, names in hosts.items())
    return f"{plan.title}: {len(to_do)} of {steps} would run now:{lines}"


def step_lines(step: Step, engine: str = DOCKER) -> list[str]:
    """Return what a step would do, one line per command or file; contents of files are never shown."""
    if isinstance(step, Run):
        unless = []
        if isinstance(step.unless, Stamp):
            content = " ".join(map(str, step.unless.content)).split()
            unless = [f"unless: {step.unless.path} contains {' '.join(content)}"]
        elif step.unless is not None:
            unless = [f"unless: {_one_line(step.unless, engine)}"]
        why = [f"why: {step.why}"] if step.why else []
        return [*why, *unless, _one_line(step.command, engine)]
    if isinstance(step, Upload):
        shared = [
            f"{each.path}/: {counted(len(each.files), 'file')} ({each.sketch()})" for each in step.folders
        ]
        return [*shared, *(f"{f.path} (mode {f.mode:o}, {f.sketch()})" for f in step.files)]
    if isinstance(step, WaitFor):
        return [f"until: {_one_line(step.ready, engine)} (at most {step.deadline:g} s)"]
    if isinstance(step, SendImage):
        return [
            f"send the missing layers of {step.reference} to `{engine} load` (content digest {step.identity})"
        ]
    if isinstance(step, PullImage):
        return [f"{engine} pull {step.reference}"]
    if isinstance(step, SendCode):
        what = (
            f"{counted(len(step.tree.entries), 'file')}, {size(step.tree.total)} from {step.source}"
            if step.source
            else "no files"
        )
        return [f"send {what} to {step.target}/code"]
    if isinstance(step, StartJob):
        return [f"start the supervisor of job {step.job} in {step.container}"]
    if isinstance(step, StartDaemons):
        where = ", ".join(f"{container} on {host}" for host, container in step.others)
        return [f"start supervisors of job {step.job} in {where} when the launcher requests daemons"]
    if isinstance(step, SendData):
        files = f"{counted(step.content.files, 'file')}, {size(step.content.size)}"
        held = f"{files}, digest {step.content.identity[:12]}"
        return [f"send the missing data of {step.source} ({held}) to {step.path}"]
    if isinstance(step, RemoveData):
        return [f"remove the files that toolkit wrote to {step.path}, except files that changed later"]
    assert isinstance(step, Fetch)
    return [f"download to {step.into}"]


def _one_line(subject: Command, engine: str) -> str:
    subject = translate_engine(subject, engine)
    # The arguments of a script, behind "sh -c TEXT sh", are more informative than its text.
    argv = subject.argv
    if argv[:2] == ("sh", "-c") and len(argv) > 3:
        text = " ".join(str(argv[2]).split())
        shown = text if len(text) <= 100 else f"{text[:97]}…"
        rest = Command(argv[4:]).line() if len(argv) > 4 else ""
        return f"sh -c {shown!r} {rest}".rstrip()
    return subject.line()


# A report without changes prints its duration only from this number of seconds.
_SHORT_S = 0.05


def outcome_line(outcome: Outcome, brief: bool = False) -> str:
    """Return one line about one step on one host, and reason and fix below it if the step failed.

    Args:
        brief: without reason and fix of a failure, which the text of the report contains.
    """
    detail = f" ({outcome.detail})" if outcome.detail and outcome.status != "failed" else ""
    line = f"{_SIGN[outcome.status]:>8}  {outcome.host}: {outcome.step}{detail}  {outcome.seconds:.1f} s"
    if brief and outcome.status == "failed":
        return line
    if outcome.status == "failed":
        line += f"\n          {outcome.detail}"
    return line + (f"\n          fix: {outcome.fix}" if outcome.fix else "")


def report_text(report: Report) -> str:
    """Return the last lines of a command: every host's outcome if a step failed, otherwise one line."""
    hosts = report.hosts()
    if report.ok:
        done = "nothing to change" if report.changes == 0 else counted(report.changes, "change")
        steps = counted(len(report.outcomes), "step")
        took = f"{steps} on {counted(len(hosts), 'host')}"
        if report.changes or report.seconds >= _SHORT_S:
            took += f", {report.seconds:.1f} s"
        return f"{report.title}: {done} ({took}{_sent(report)})\n"
    same: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        what, fix = _end_on(report.of(host))
        same.setdefault((what, without_host(fix, host)), []).append(host)
    lines = []
    for (what, fix), names in same.items():
        lines.append(f"  {host_list(names)}: {what}")
        if fix:
            lines.append(f"      fix: {with_hosts(fix, names)}")
    failures = len({o.host for o in report.failures})
    how = f"failed on {failures} of {counted(len(hosts), 'host')}" if failures else "not finished"
    head = f"{report.title}: {how} ({report.seconds:.1f} s{_sent(report)})"
    return "\n".join([head, *lines]) + "\n"


def _end_on(own: Sequence[Outcome]) -> tuple[str, str]:
    """Return in words how the plan ended on one host, and the fix if there is one."""
    first = next((o for o in own if o.status == "failed"), None)
    if first:
        return f"FAILED at {first.step}: {first.detail}", first.fix
    first = next((o for o in own if o.status == "not run"), None)
    if first is None:
        return f"ok ({counted(sum(o.changed for o in own), 'change')})", ""
    if first.cause is FailureCause.INTERRUPTED:
        return f"interrupted at {first.step}", ""
    if first.detail:
        return f"not done: {first.step}: {first.detail}", first.fix
    return f"stopped before {first.step}", ""


def _sent(report: Report) -> str:
    """Return the amounts of an image sent by this machine and sent between hosts."""
    amounts = [dict(outcome.amounts) for outcome in report.outcomes if outcome.amounts]
    here, came = (sum(one.get(name, 0) for one in amounts) for name in ("from_here", "bytes"))
    passed = f", {size(came - here)} from host to host" if came > here else ""
    return f", {size(here)} sent{passed}" if came else ""
