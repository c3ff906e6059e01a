"""`toolkit network tune`: find the fastest all-reduce settings of a cluster and store them for jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from toolkit.bench.network import measured_text
from toolkit.cluster.session import Session, observe_layout
from toolkit.core.answers import read_answer
from toolkit.core.command import quoted, script
from toolkit.core.facts import Facts
from toolkit.errors import BadInput, NotReady, Problem, ToolkitError
from toolkit.jobs.make_job import PlannedJob, plan_request
from toolkit.jobs.request import Request
from toolkit.network.tuning import (
    SIZES,
    Timing,
    Trial,
    Tuning,
    choose_tuning,
    parse_timings,
    parse_tunings,
    replace_tuning,
    trials,
    tunings_text,
)
from toolkit.plan.context import failure
from toolkit.plan.execute import Listener
from toolkit.plan.steps import File, Phase, Plan, Upload
from toolkit.protocol.bench import AlgorithmTime
from toolkit.protocol.names import program

ENGINES = ("auto", "mpi", "nccl")
# Default time limit of the command line and of the Python API, in seconds.
DEFAULT_BUDGET_S = 8.0
_RESULT = "@algorithms"
# Assumed overhead of a job until the first one has shown it, and minimum time of a trial, in seconds.
_START_SECONDS, _LEAST_SECONDS = 2.0, 1.0
# The measuring program keeps to its budget; this timeout stops one that hangs.
_HANGS_AFTER = 120.0
_READ, _READ_SECONDS = '[ ! -e "$1" ] || cat -- "$1"', 30.0


def check_tune(engine: str, budget: float) -> None:
    """Refuse invalid options before any host is contacted.

    Raises:
        BadInput: names every invalid option.
    """
    problems = []
    if engine not in ENGINES:
        problems.append(Problem("--backend", f"should be one of {', '.join(ENGINES)}, found {engine}"))
    if not 2 <= budget <= 600:
        problems.append(Problem("--budget", f"should be 2 to 600 s, found {budget:g} s"))
    if problems:
        raise BadInput("command line", tuple(problems))


def tune_plans(session: Session, engine: str, budget: float, only: tuple[str, ...] = ()) -> tuple[Plan, ...]:
    """Return the plans of the measuring jobs; the real time of each depends on the previous ones."""
    engine = _engine(session, engine, only)
    several = trials(engine)
    share = max(_LEAST_SECONDS, budget / len(several) - _START_SECONDS)
    return tuple(_planned(session, engine, trial, share, only).plan for trial in several)


def tune(
    session: Session,
    engine: str,
    budget: float,
    listen: Listener,
    only: tuple[str, ...] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Tuning:
    """Measure each trial in a separate job, choose the fastest settings, and store them on the main host.

    Args:
        engine: ``mpi``, ``nccl``, or ``auto`` for NCCL if every rank has a GPU.
        budget: seconds for all trials together.

    Raises:
        ToolkitError: the cluster is not up, it has only one rank, another job runs, or a job failed.
    """
    engine = _engine(session, engine, only)
    timings: list[Timing] = []
    places: tuple[tuple[str, str, int], ...] = ()
    end, overhead = clock() + budget, _START_SECONDS
    several = trials(engine)
    for done, trial in enumerate(several):
        # A job with more to measure gets more of the time.
        weights = [1 + len(later.algorithms) for later in several[done:]]
        share = (end - clock()) * weights[0] / sum(weights)
        measuring = max(_LEAST_SECONDS, share - overhead)
        planned = _planned(session, engine, trial, measuring, only)
        job = planned.job
        places = tuple((host.name, host.address, host.slots) for host in job.hosts)
        if job.world_size < 2:
            raise NotReady(
                "an all-reduce requires at least two ranks, found 1",
                "in hosts.yaml: add a host, or set slots of a host to 2 or more  # or omit --only",
            )
        begin = clock()
        text = measured_text(session, planned, _RESULT, listen)
        rows = read_answer(tuple[AlgorithmTime, ...], text, session.inventory.main, "the measurements")
        timings += parse_timings(trial.name, rows)
        overhead = max(0.0, clock() - begin - measuring)
    tuning = choose_tuning(engine, places, timings, datetime.now().strftime("%Y-%m-%d %H:%M"))
    _keep(session, replace_tuning(_stored(session), tuning), listen)
    return tuning


def forget_plan(session: Session) -> Plan:
    """Return the plan of ``forget``; without a step if no settings are stored.

    Raises:
        ToolkitError: the main host did not answer.
    """
    facts = _main(session)
    if not parse_tunings(facts.tuned):
        return Plan(f"tune {session.inventory.cluster}", ())
    return keep_plan(session.inventory.cluster, facts, ())


def forget(session: Session, listen: Listener) -> tuple[Tuning, ...]:
    """Remove the stored settings, so that backends choose for themselves; return the removed settings.

    Raises:
        ToolkitError: the main host did not answer, or the file could not be written.
    """
    kept = _kept(session)
    if kept:
        _keep(session, (), listen)
    return kept


def _main(session: Session) -> Facts:
    name = session.inventory.main
    if name in session.errors:
        raise session.errors[name]
    return session.facts[name]


def _kept(session: Session) -> tuple[Tuning, ...]:
    return parse_tunings(_main(session).tuned)


def _stored(session: Session) -> tuple[Tuning, ...]:
    """Return the settings in the file now: other commands can change the file while this one measures.

    Raises:
        ToolkitError: the main host did not answer, or the file could not be read.
    """
    facts = _main(session)
    path, runner = _path(facts), session.runners[facts.host]
    result = runner.run(script(_READ, path), _READ_SECONDS)
    if not result.ok:
        fix = f"on {facts.host}: {quoted('ls', '-l', path)}  # then make the file readable"
        raise failure(result, runner, fix)
    return parse_tunings(result.stdout)


def _path(main: Facts) -> str:
    return f"{main.state_dir}/conf/tuned.json"


def _keep(session: Session, tunings: tuple[Tuning, ...], listen: Listener) -> None:
    facts = _main(session)
    report = session.execute(keep_plan(session.inventory.cluster, facts, tunings), listen)
    if failed := [o for o in report.failures if o.phase != "connect"]:
        raise ToolkitError(
            f"cannot store the tuned settings: {failed[0].detail}", failed[0].fix, failed[0].host
        )
    # The next jobs of this session use the settings, and its next tuning keeps them.
    session.facts[facts.host] = replace(facts, tuned=tunings_text(tunings))


def keep_plan(cluster: str, main: Facts, tunings: tuple[Tuning, ...]) -> Plan:
    """Return the plan that writes the settings for jobs to the main host; `down` removes them."""
    file = File(_path(main), (tunings_text(tunings),))
    step = Upload(main.host, "store the tuned settings", (file,))
    return Plan(f"tune {cluster}", (Phase("keep", (step,)),))


def _engine(session: Session, engine: str, only: tuple[str, ...]) -> str:
    if engine != "auto":
        return engine
    places = [p for p in observe_layout(session, running=True).places if not only or p.name in only]
    return "nccl" if places and all(len(p.gpus) >= p.slots for p in places) else "mpi"


def _planned(
    session: Session, engine: str, trial: Trial, seconds: float, only: tuple[str, ...]
) -> PlannedJob:
    words = (
        *(*program("bench.algorithms"), "--engine", engine, "--budget", f"{seconds:.2f}"),
        *("--algorithms", *(algorithm.word for algorithm in trial.algorithms)),
        *("--sizes", *map(str, SIZES)),
    )
    # Open MPI reads the algorithm at run time only if dynamic rules are enabled.
    writable = (("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),) if engine == "mpi" else ()
    return plan_request(
        session,
        Request(
            words=words,
            launcher="mpirun",
            env=(*trial.env, *writable),
            timeout=seconds + _HANGS_AFTER,
            only=only,
            secrets=False,
            tuned=False,
        ),
    )
