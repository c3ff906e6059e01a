"""`toolkit bench network`: run the measuring program as an ordinary job and read its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolkit.cluster.session import Session
from toolkit.core.printable import printable_line, without_color
from toolkit.errors import BadInput, NotReady, Problem, ToolkitError
from toolkit.image.capabilities import ADDED_BY
from toolkit.jobs.control import run_to_completion
from toolkit.jobs.make_job import PlannedJob, plan_request
from toolkit.jobs.records import job_status
from toolkit.jobs.request import Request
from toolkit.jobs.status import JobStatus
from toolkit.launchers.job import Job
from toolkit.network.measured import Measured, parse_measured
from toolkit.plan.execute import Listener
from toolkit.plan.steps import Plan
from toolkit.protocol.bench import result_of
from toolkit.protocol.names import program

ENGINES = ("auto", "mpi", "gloo", "nccl")
# From 1 KiB in steps of four: latency shows at one end, bandwidth at the other.
SIZES = tuple(1024 * 4**k for k in range(12))
USUAL_BYTES, MOST_BYTES = 256 * 1024**2, SIZES[-1]
_RESULT = "@network"
# The shortest measurement of a direction in seconds: data must arrive more than once.
_LEAST_S = 0.05
# Time limit in seconds of a job, in addition to the time that it measures: pairs that fail take longer.
_HANGS_AFTER = 3600.0
_LAST_LINES = 5
# The ranks of a measuring job exchange their addresses through MPI. Output of a job without the two parts:
_MISSING = {"mpirun": "the image has no mpirun", "mpi4py": "No module named 'mpi4py'"}
_MOST_FAULT = 2000  # characters


@dataclass(frozen=True)
class NetworkBench:
    """Options of a measurement.

    Args:
        seconds: sending time per direction of each pair; 0 skips the pairs.
        streams: number of parallel TCP connections; a single one does not fill the fastest links.
        engine: backend of the all-reduce; ``auto`` is NCCL if every rank has a GPU, otherwise Open MPI.
        most: bytes of the largest all-reduce; 0 skips the all-reduce.
        budget: seconds for all all-reduces; sizes beyond the budget are skipped.
    """

    seconds: float = 0.5
    streams: int = 4
    engine: str = "auto"
    most: int = USUAL_BYTES
    budget: float = 30.0

    @property
    def words(self) -> tuple[str, ...]:
        """The command of every rank."""
        options = ("--seconds", f"{self.seconds:g}", "--streams", str(self.streams), "--engine", self.engine)
        sizes = tuple(str(size) for size in SIZES if size <= self.most)
        return (*program("bench.network"), *options, "--budget", f"{self.budget:g}", "--sizes", *sizes)


def check_bench(bench: NetworkBench) -> None:
    """Refuse invalid options before any host is contacted.

    Raises:
        BadInput: names every invalid option.
    """
    problems = []
    if bench.engine not in ENGINES:
        problems.append(Problem("--backend", f"should be one of {', '.join(ENGINES)}, found {bench.engine}"))
    if bench.seconds and not _LEAST_S <= bench.seconds <= 60:
        what = f"should be 0, or {_LEAST_S:g} to 60 s, found {bench.seconds:g} s"
        problems.append(Problem("--seconds", what))
    if not 1 <= bench.streams <= 64:
        problems.append(Problem("--streams", f"should be 1 to 64, found {bench.streams}"))
    if not 0 <= bench.most <= MOST_BYTES:
        most = MOST_BYTES // 1024**2
        problems.append(Problem("--most", f"should be 0 to {most} MiB, found {bench.most / 1024**2:g} MiB"))
    if not bench.seconds and not bench.most:
        problems.append(Problem("--most", "should be more than 0 if --seconds is 0"))
    if not 0 < bench.budget <= 3600:
        problems.append(
            Problem("--budget", f"should be more than 0 and at most 3600 s, found {bench.budget:g} s")
        )
    if problems:
        raise BadInput("command line", tuple(problems))


def bench_plan(session: Session, bench: NetworkBench, only: tuple[str, ...] = ()) -> Plan:
    """Return the plan that ``run_bench`` starts with."""
    return plan_request(session, _request(session, bench, only)).plan


def run_bench(
    session: Session, bench: NetworkBench, listen: Listener, only: tuple[str, ...] = ()
) -> Measured:
    """Measure the network of all hosts or of some.

    If the job fails after the pairs, the result contains the pairs, and the failure as a fault.

    Raises:
        ToolkitError: the cluster is not up, another job runs, or the job failed; contains its last lines.
    """
    planned = plan_request(session, _request(session, bench, only))
    text, failed = _run(session, planned, _RESULT, listen)
    if failed and not text:
        raise failed
    measured = parse_measured(text, f"output of {planned.job.id}")
    if failed:
        # `predict --from` limits the characters of a fault.
        fault = printable_line(without_color(f"all-reduce: {failed.what}"))[:_MOST_FAULT]
        return replace(measured, faults=(*measured.faults, fault))
    return measured


def measured_text(session: Session, planned: PlannedJob, mark: str, listen: Listener) -> str:
    """Run a measuring job and return the result with this mark.

    Raises:
        ToolkitError: the job failed; contains its last lines.
    """
    text, failed = _run(session, planned, mark, listen)
    if failed:
        raise failed
    return text


def _run(
    session: Session, planned: PlannedJob, mark: str, listen: Listener
) -> tuple[str, ToolkitError | None]:
    """Run a measuring job; return its last result, empty without one, and the error of a failed job."""
    job = planned.job
    lines = run_to_completion(session, planned.plan, job.id, listen).splitlines()
    ended = job_status(session, job.id)
    text = result_of(mark, lines)
    if ended.exit_code == 0 and text:
        return text, None
    others = [line for line in lines if f" {mark} " not in line]
    missing = [name for name, words in _MISSING.items() if any(words in line for line in others)]
    return text, _incomplete(session, missing[0]) if missing else failed_job(job, ended, others)


def _incomplete(session: Session, missing: str) -> NotReady:
    """Return the error about an image without this part; without mpirun, it probably has no mpi4py either."""
    adds = [ADDED_BY["mpirun"]] if missing == "mpirun" else []
    adds += [ADDED_BY["python:mpi4py"].removeprefix("RUN " if adds else "")]
    what = f"the image {session.inventory.image} has no {missing}, which this command needs"
    more = "add this line to the Dockerfile, build the image, and run toolkit up"
    return NotReady(what, f"{' && '.join(adds)}  # {more}")


def failed_job(job: Job, ended: JobStatus, lines: Sequence[str]) -> ToolkitError:
    """Return the error of a job without a result, with the last lines of its output.

    Launchers print many lines about a failed rank. They are used only if ranks print no lines; toolkit prints
    a line about every failed attempt.
    """
    ranks = tuple(f"[{host.name} " for host in job.hosts)
    shown = [line for line in lines if line.startswith(("[toolkit] ", *ranks))]
    if not any(line.startswith(ranks) for line in shown):
        shown = list(lines)
    tail = " | ".join(shown[-_LAST_LINES:])
    code = "" if ended.exit_code is None else f" and exit code {ended.exit_code}"
    what = f"job {job.id} ended with the state {ended.state}{code}; end of the log: {tail or 'no output'}"
    return ToolkitError(what, f"toolkit logs {job.id}")


def _request(session: Session, bench: NetworkBench, only: tuple[str, ...]) -> Request:
    hosts = len(only or session.inventory.names)
    return Request(
        words=bench.words,
        # mpirun, because the ranks exchange their addresses through MPI with every backend.
        launcher="mpirun",
        # With N hosts, the pairs need at most N rounds with two directions each.
        timeout=2 * bench.seconds * hosts + bench.budget + _HANGS_AFTER,
        only=only,
        secrets=False,
    )
