"""`toolkit bench network`: run the measuring program as an ordinary job and read its result."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.cluster.session import Session
from toolkit.errors import BadInput, Problem, ToolkitError
from toolkit.jobs.control import run_to_completion
from toolkit.jobs.make_job import PlannedJob, plan_request
from toolkit.jobs.records import job_status
from toolkit.jobs.request import Request
from toolkit.network.measured import Measured, parse_measured
from toolkit.plan.execute import Listener
from toolkit.plan.steps import Plan
from toolkit.protocol.names import program

ENGINES = ("auto", "mpi", "gloo", "nccl")
# From 1 KiB in steps of four: latency shows at one end, bandwidth at the other.
SIZES = tuple(1024 * 4**k for k in range(12))
USUAL_BYTES, MOST_BYTES = 256 * 1024**2, SIZES[-1]
_RESULT = "@network "


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
    if not 0 <= bench.seconds <= 60:
        problems.append(Problem("--seconds", f"should be 0 to 60 s, found {bench.seconds:g} s"))
    if not 1 <= bench.streams <= 64:
        problems.append(Problem("--streams", f"should be 1 to 64, found {bench.streams}"))
    if not 0 <= bench.most <= MOST_BYTES:
        most = MOST_BYTES // 1024**2
        problems.append(Problem("--most", f"should be 0 to {most} MiB, found {bench.most / 1024**2:g} MiB"))
    if not 0 < bench.budget <= 3600:
        problems.append(
            Problem("--budget", f"should be more than 0 and at most 3600 s, found {bench.budget:g} s")
        )
    if problems:
        raise BadInput("command line", tuple(problems))


def bench_plan(session: Session, bench: NetworkBench, only: tuple[str, ...] = ()) -> Plan:
    """Return the plan that ``run_bench`` starts with."""
    return plan_request(session, _request(bench, only)).plan


def run_bench(
    session: Session, bench: NetworkBench, listen: Listener, only: tuple[str, ...] = ()
) -> Measured:
    """Measure the network of all hosts or of some.

    Raises:
        ToolkitError: the cluster is not up, another job runs, or the job failed; contains its last lines.
    """
    planned = plan_request(session, _request(bench, only))
    return parse_measured(measured_text(session, planned, _RESULT, listen), f"output of {planned.job.id}")


def measured_text(session: Session, planned: PlannedJob, mark: str, listen: Listener) -> str:
    """Run a measuring job and return the rest of the last line that contains ``mark``.

    Raises:
        ToolkitError: the job failed; contains its last lines.
    """
    job = planned.job
    lines = run_to_completion(session, planned.plan, job.id, listen).splitlines()
    ended = job_status(session, job.id)
    found = [line.partition(mark)[2] for line in lines if mark in line]
    if ended.exit_code != 0 or not found:
        tail = " | ".join(lines[-5:])
        code = "" if ended.exit_code is None else f" and exit code {ended.exit_code}"
        what = f"job {job.id} ended with the state {ended.state}{code}; end of the log: {tail or 'no output'}"
        raise ToolkitError(what, f"toolkit logs {job.id}")
    return found[-1]


def _request(bench: NetworkBench, only: tuple[str, ...]) -> Request:
    # mpirun, because the ranks exchange their addresses through MPI with every backend.
    return Request(words=bench.words, launcher="mpirun", timeout=3600, only=only, secrets=False)
