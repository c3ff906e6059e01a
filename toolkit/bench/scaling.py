"""Run a training script on an increasing number of hosts and measure its throughput on each number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from statistics import median

from toolkit.bench.scaling_report import Point, Scaling
from toolkit.cluster.gauges import Gauges
from toolkit.cluster.session import Session
from toolkit.core.answers import Tail
from toolkit.core.gauges import JobGauges, job_gauges
from toolkit.core.printable import counted
from toolkit.errors import BadInput, Interrupted, Problem, StillRunning, ToolkitError, quotation
from toolkit.hostsfile.inventory import Inventory
from toolkit.jobs.control import start, stop
from toolkit.jobs.logs import Excerpt, follow, show_log
from toolkit.jobs.make_job import plan_request
from toolkit.jobs.records import job_status
from toolkit.jobs.request import Request, chosen_hosts
from toolkit.jobs.status import JobStatus
from toolkit.launchers.job import Job
from toolkit.plan.execute import Listener
from toolkit.predict.model import counts

# Interval of reading the gauges in seconds.
_EACH = 0.5
# Seconds from SIGTERM to SIGKILL: a measured run has nothing to save.
_GRACE = 2.0
# Interval of querying the job's state in seconds.
_ASK_EACH = 3.0
# Failed queries in succession after which toolkit stops the job: a host can be busy for a while.
_MOST_FAILED = 5
# A rank whose last step is older than this number of intervals between its steps is stalled.
_STALLED = 2
_LAST_LINES = 6
_MOST_TEXT = 1 << 16  # bytes of them


def ordered_hosts(inventory: Inventory, request: Request) -> tuple[str, ...]:
    """Return the hosts with slots in the order in which they are added: the main host first."""
    chosen = chosen_hosts(inventory, request)
    with_slots = [name for name in chosen if inventory.host(name).slots != 0]
    return tuple(sorted(with_slots, key=lambda name: name != inventory.main))


def measure_all(
    session: Session,
    request: Request,
    numbers: Sequence[int],
    times: tuple[float, float, float],
    listen: Listener,
    tell: Callable[[str], None],
) -> Scaling:
    """Measure the script on each number of hosts.

    After a number that fails, continue with the next number, unless the job is possibly still running.

    Args:
        numbers: numbers of hosts; empty for those of ``counts``.
        times: warm-up, seconds and patience, see ``measure``.
        tell: receives lines about the progress and results.

    Raises:
        BadInput: a number is larger than the number of hosts with slots.
        Interrupted: Ctrl-C; the run has been stopped.
    """
    order = ordered_hosts(session.inventory, request)
    if numbers and min(numbers) < 1:
        what = f"each number of hosts should be 1 or more, found {min(numbers)}"
        raise BadInput("command line", (Problem("--on", what),))
    if numbers and max(numbers) > len(order):
        what = (
            f"the list contains {max(numbers)}, but the number of selected hosts with slots is {len(order)}"
        )
        raise BadInput("command line", (Problem("--on", what),))
    points, faults = [], []
    for number in numbers or counts(len(order)):
        try:
            point = measure(session, on_first(request, order, number), *times, listen, tell)
        except Interrupted:
            raise
        except ToolkitError as error:
            faults.append(f"{counted(number, 'host')}: {error.what}")
            tell(f"{counted(number, 'host')}: {error}")
            if isinstance(error, StillRunning):
                break  # the job has the slots of the next one
            continue
        points.append(point)
        tell(f"{counted(point.ranks, 'rank')}: {point.steps_per_s:.3g} steps/s over {point.seconds:.0f} s")
    return Scaling(tuple(points), faults=tuple(faults))


def measure(
    session: Session,
    request: Request,
    warm_up: float,
    seconds: float,
    patience: float,
    listen: Listener,
    tell: Callable[[str], None],
) -> Point:
    """Run the script of a request, measure its throughput, and stop the job.

    Args:
        warm_up: seconds after the first step that are not measured.
        seconds: minimum duration of the measurement; slow or stalled steps make the measurement longer.
        patience: maximum seconds until the first step, and between steps.
        tell: receives a line about the started job.

    Raises:
        ToolkitError: the job exited, or printed no steps, before the end of the measurement.
        StillRunning: the job could not be stopped.
        KeyboardInterrupt: Ctrl-C; the job has been stopped.
    """
    planned = plan_request(session, request)
    job = planned.job
    try:
        start(session, planned.plan, listen)
    except KeyboardInterrupt:  # the job runs already
        stop(session, job.id, interrupt=True)
        raise
    try:
        places = f"{counted(job.world_size, 'rank')} on {counted(len(job.hosts), 'host')}"
        tell(f"job {job.id}: {places}, {job.launcher}")
        # Following a job in parts stops all parts after one has failed; the output is not shown.
        threading.Thread(target=_follow, args=(session, job.id), daemon=True).start()
        with Gauges(session, _EACH) as gauges:
            return _watch(session, gauges, job, warm_up, seconds, patience)
    finally:
        _end(session, job.id)


def _end(session: Session, job: str) -> None:
    with suppress(ToolkitError):  # if the state is unknown, stop the job
        if job_status(session, job).final:
            return
    try:
        stop(session, job, grace=_GRACE)
    except ToolkitError as error:
        what = f"job {job} might still be running, because toolkit could not stop the job: {error.what}"
        raise StillRunning(what, f"toolkit stop {job}") from error


def _follow(session: Session, job: str) -> None:
    with suppress(ToolkitError):  # `_watch` queries the state of the job
        follow(session, job, lambda data: None)


def _watch(
    session: Session, gauges: Gauges, job: Job, warm_up: float, seconds: float, patience: float
) -> Point:
    first, failed = 0.0, 0
    changed = queried = time.monotonic()
    source: int | None = None
    step: tuple[float, int] | None = None
    seen: list[tuple[float, int]] = []
    printed: list[float] = []
    own = {host.name for host in job.hosts}
    while True:
        gauges.wait(_EACH)
        now = time.monotonic()
        # Only these hosts have ranks of the job.
        reported = [host for host in gauges.now()[0] if host.host in own]
        found = next((one for one in job_gauges(reported) if one.id == job.id), None)
        read = _step(found, source)
        if read is not None:
            before, (source, step) = step, read
            if before is None or step[1] != before[1]:
                first, changed = first or now, now
                # The time of a step is the time at which it appeared, which is unknown for the first step.
                if before is not None and now >= first + warm_up:
                    seen.append(step)
                    if found is not None and found.steps_per_s:
                        printed.append(found.steps_per_s)
        if first and now >= first + warm_up + seconds and _is_steady(seen, now - changed):
            return _point(job, seen, printed)
        if now > changed + patience:
            if step is not None:
                what = f"job {job.id} printed no step number for {patience:.0f} s after step {step[1]}"
                fix = (
                    f"toolkit logs {job.id}  # if the script evaluates or saves after that step, use a "
                    "smaller --seconds or a larger --patience"
                )
                raise ToolkitError(what, fix)
            what = f"no rank of job {job.id} printed a step number within {patience:.0f} s"
            fix = "in the script: print lines such as `step 120`  # or wait longer: --patience SECONDS"
            raise ToolkitError(what, fix)
        if now > queried + _ASK_EACH:
            try:
                ended = job_status(session, job.id)
            except ToolkitError:
                failed += 1
                if failed == _MOST_FAILED:
                    raise
                queried = time.monotonic()
                continue
            failed, queried = 0, time.monotonic()
            if ended.final:
                if len(seen) > 1 and ended.exit_code == 0:
                    return _point(job, seen, printed)  # the script is short, but its steps suffice
                raise _early(session, ended)


def _is_steady(seen: Sequence[tuple[float, int]], silent: float) -> bool:
    """Return whether several steps were seen, and no next step is late; a stall is part of the measurement.

    Args:
        silent: seconds since the last change of the step by this machine's clock, because a host that stops
            reporting does not send its own.
    """
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(seen)]
    return bool(gaps) and silent <= _STALLED * (median(gaps) + _EACH)


def _step(found: JobGauges | None, source: int | None) -> tuple[int, tuple[float, int]] | None:
    """Return a rank with the time, by the clock of its host, and its step.

    Args:
        source: the rank, because the clocks of hosts differ; None for the first rank that prints steps.
    """
    ranks = found.ranks if found else ()
    return next(
        (
            (rank.rank, (host.at, rank.step))
            for host, rank in ranks
            if rank.step is not None and source in (None, rank.rank)
        ),
        None,
    )


def _point(job: Job, seen: Sequence[tuple[float, int]], printed: Sequence[float]) -> Point:
    (begin, first), (end, last) = (seen[0], seen[-1]) if seen else ((0.0, 0), (0.0, 0))
    # If the numbers of steps restart, as in a new epoch, or the clock was set back, only the printed
    # throughput is usable.
    rise = all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(seen))
    went_on = last > first and end > begin and rise
    if not went_on and not printed:
        what = (
            f"cannot calculate the throughput of job {job.id}: the ranks must print at least two steps, with "
            "increasing numbers, during the measurement"
        )
        raise ToolkitError(what, "run the same command again with a larger value of --seconds")
    throughput = (last - first) / (end - begin) if went_on else median(printed)
    return Point(len(job.hosts), job.world_size, throughput, max(end - begin, 0.0), max(last - first, 0))


def _early(session: Session, ended: JobStatus) -> ToolkitError:
    """Return the error for a job that exited too early, with the job's last lines."""
    text = Tail(_MOST_TEXT)
    show_log(session, ended, text.take, Excerpt(tail=_LAST_LINES), on=False)
    tail = quotation(text.text.splitlines()[-_LAST_LINES:])
    code = "" if ended.exit_code is None else f" with exit code {ended.exit_code}"
    what = f"job {ended.id} ended{code} before toolkit measured the throughput{tail}"
    return ToolkitError(what, f"toolkit logs {ended.id}")


def on_first(request: Request, hosts: Sequence[str], number: int) -> Request:
    """Return the request for the first ``number`` hosts only."""
    return replace(request, only=tuple(hosts[:number]), exclude=())
