"""Jobs on the client: start a job, follow it to its end, stop it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from toolkit.cluster.layout import Layout
from toolkit.cluster.ownership import main_host
from toolkit.cluster.session import Session
from toolkit.cluster.versions import disturbed_jobs, removed_containers
from toolkit.core.answers import Tail
from toolkit.core.command import command
from toolkit.core.host_programs import container_programs
from toolkit.core.report import Outcome, Report, from_phase, spans_json
from toolkit.errors import Interrupted, NotReady, ToolkitError
from toolkit.jobs.exec_mode import end_parts, stop_parts
from toolkit.jobs.id_cache import remember_job
from toolkit.jobs.logs import follow
from toolkit.jobs.records import job_parts, job_status, running_jobs
from toolkit.jobs.status import JobStatus
from toolkit.plan.execute import Listener, PlanInterrupted
from toolkit.plan.steps import Plan, StartJob
from toolkit.protocol.decode import MOST_BYTES
from toolkit.protocol.names import program
from toolkit.remote.fanout import fan_out

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C and other signals until the block has ended, so that no job is partly started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = {one: signal.signal(one, lambda number, frame: pressed.append(number)) for one in _HELD}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    for number in pressed[:1]:
        signal.raise_signal(number)


def start(session: Session, plan: Plan, listen: Listener) -> Report:
    """Run the plan of ``plan_job``; afterwards the job belongs to the cluster.

    Raises:
        ToolkitError: some host did not get the code, so nothing was started.
        Interrupted: Ctrl-C during the transfer of the code; nothing was started.
        KeyboardInterrupt: Ctrl-C while the job was started; it runs.
    """
    code, launch = replace(plan, phases=plan.phases[:1]), replace(plan, phases=plan.phases[1:])
    try:
        report = session.execute(code, listen)
    except PlanInterrupted as error:
        raise Interrupted("the command was interrupted before the job started") from error
    if not session.inventory.in_parts:
        session.container_sessions.leave(but=session.inventory.main)
    else:
        session.started[_job_of(plan)] = tuple(dict.fromkeys(step.host for step in plan.steps))
    ours = [o for o in report.outcomes if o.phase != "connect"]
    if failed := [o for o in ours if o.status != "ok"]:
        raise _failed_on("the job was not started", failed)
    with interrupts_held():
        started = session.execute(launch, listen)
        failed = [o for o in started.outcomes if o.phase != "connect" and o.status != "ok"]
        if not failed:
            remember_job(session.inventory.cluster, _job_of(plan))
    if failed:
        if session.inventory.in_parts:  # other hosts possibly started their parts
            end_parts(session, _job_of(plan), {o.host for o in ours}, ("--failed",))
        what = (
            "the supervisor of the job did not start" if failed[0].phase == "start" else "the job was stopped"
        )
        if len(failed) == 1:
            raise ToolkitError(f"{what}: {failed[0].detail}", failed[0].fix, failed[0].host)
        raise _failed_on(what, failed)
    note = {"spans": spans_json(from_phase(session.stopwatch.take(), "start"))}
    first = next(step.host for step in plan.steps if isinstance(step, StartJob))
    session.container_sessions.notify(first, {"do": "note", "job": _job_of(plan), "note": note})
    return started.after(report)


def _failed_on(what: str, failed: Sequence[Outcome]) -> ToolkitError:
    lines = "".join(f"\n  {o.host}: {o.detail or o.status}" for o in failed)
    return ToolkitError(f"{what}:{lines}", "\n".join(dict.fromkeys(o.fix for o in failed if o.fix)))


def _job_of(plan: Plan) -> str:
    """The id of the job that a plan of ``plan_job`` starts."""
    return next(step.job for step in plan.steps if isinstance(step, StartJob))


def run_to_completion(session: Session, plan: Plan, job: str, listen: Listener) -> str:
    """Run the plan of ``plan_job``, follow the job to its end and return the end of its merged log.

    Raises:
        KeyboardInterrupt: Ctrl-C; the job has been ended.
    """
    output = Tail(MOST_BYTES)
    try:
        start(session, plan, listen)
        follow(session, job, output.take)
    except KeyboardInterrupt:
        stop(session, job, interrupt=True)
        raise
    return output.text


def stop(session: Session, job: str, interrupt: bool = False, grace: float | None = None) -> JobStatus:
    """End a job on all hosts: its supervisor ends the launcher, and cleans up every host by the job tag.

    Args:
        interrupt: the user pressed Ctrl-C, so the job's exit code is 130; otherwise 143.
        grace: seconds between SIGTERM and SIGKILL; the job's own if None.

    Raises:
        NotReady: the cluster is another user's.
        ToolkitError: it could not be ended on a host, where its processes possibly continue.
    """
    session.require_own()
    flags = ["--interrupt"] if interrupt else []
    flags += [] if grace is None else ["--grace", str(grace)]
    if not session.inventory.in_parts:
        errors = end_parts(session, job, (session.inventory.main,), flags)[1]
    else:
        parts = next((parts for parts in job_parts(session) if parts.id == job), None)
        errors = stop_parts(session, job, parts.unended if parts else (), flags)
        for host in parts.silent if parts else ():
            what = f"cannot stop job {job} on {host}, because the host does not answer"
            fix = f"toolkit stop {job}  # when {host} answers again"
            errors.setdefault(host, ToolkitError(what, fix, host))
    for error in errors.values():
        raise error
    return job_status(session, job)


def kill(session: Session, job: str) -> None:
    """Kill every process with the job tag on every host that answers; the job ends as after Ctrl-C."""

    def sweep(host: str) -> None:
        ask = command(*program("job.orphans"), job, "--signal", "KILL", "--interrupt")
        with contextlib.suppress(NotReady):
            session.container(host).run(ask, 30)

    # Where the supervisor is first: it knows then why ranks on the other hosts die.
    supervisors = [session.inventory.main] if not session.inventory.in_parts else []
    for hosts in (supervisors, [host for host in session.facts if host not in supervisors]):
        fan_out([host for host in hosts if host in session.facts], sweep)


def end_jobs(session: Session, tell: Callable[[str], None] = lambda job: None) -> None:
    """End all running jobs as far as possible; the removal of the containers ends remaining processes.

    The jobs then get their grace period, and their records contain the result.

    Args:
        tell: called with each before it is ended.
    """
    for job in running_jobs(session):
        tell(job)
        with contextlib.suppress(ToolkitError):
            stop(session, job)


def refuse_to_end_jobs(session: Session, layout: Layout, prepare: bool = False) -> None:
    """Refuse an `up` that would replace the container or the programs of a running job.

    An `up` that would remove containers is also refused if it is unknown whether a job is running.

    Args:
        layout: of the cluster as it is to be.
        prepare: no containers are started.

    Raises:
        NotReady: names the job, or the reason why it is unknown, and the hosts.
    """
    taken = disturbed_jobs(layout, container_programs(), prepare)
    if not taken:
        return
    options = "--prepare --force" if prepare else "--force"
    try:
        running = running_jobs(session, bool(removed_containers(layout, prepare)))
    except ToolkitError as error:
        fix = "\n".join(filter(None, (error.fix, f"toolkit up {options}  # if no job is running")))
        raise NotReady(f"{error.what}, and {' and '.join(taken)}", fix, error.host) from error
    if not running:
        return
    job, main = running[-1], main_host(session.inventory.cluster, session.facts)
    fix = f"toolkit stop {job}  # or stop the job with: toolkit up {options}"
    if main not in ("", session.inventory.main):
        # With the earlier main, `up` would keep the containers and the job.
        fix = f"in hosts.yaml: set main: {main}  # then: toolkit stop {job}"
        fix += f"\ntoolkit up {options}  # alternative that keeps hosts.yaml and stops the job"
    raise NotReady(f"job {job} is running, and {' and '.join(taken)}", fix)
