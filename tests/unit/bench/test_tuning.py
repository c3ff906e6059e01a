"""Choice of all-reduce settings by measurements, their storage, and the jobs that receive them."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import toolkit.bench.tune
from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.conftest import Run
from tests.unit.each import for_each
from tests.unit.hosts_here import HostHere
from tests.unit.network.test_explain import HOSTS as EXPLAINED
from tests.unit.test_invariants import Recorder, invoke
from tests.unit.test_invariants import recorder as recorder
from toolkit.api.network import NetworkPart
from toolkit.bench.tune import DEFAULT_BUDGET_S, check_tune, forget, forget_plan, keep_plan, tune
from toolkit.cli.network import tune as tune_verb
from toolkit.cluster.session import Session
from toolkit.container.bench import algorithms
from toolkit.core.command import Command, Result
from toolkit.errors import BadInput, NotReady, ToolkitError, Unreachable
from toolkit.hostsfile.load import load_inventory
from toolkit.jobs.make_job import PlannedJob, plan_request
from toolkit.jobs.plan import job_file
from toolkit.jobs.request import Request
from toolkit.launchers.job import Job
from toolkit.network.choose import Evidence
from toolkit.network.explain import explain
from toolkit.network.show import explanation_text, tuning_text
from toolkit.network.tuning import (
    DEFAULT,
    MOST_LOSS,
    SIZES,
    Algorithm,
    Rule,
    Timing,
    Tuning,
    choose_tuning,
    parse_algorithm,
    parse_timings,
    parse_tunings,
    replace_tuning,
    rules_text,
    trials,
    tuned_for,
    tunings_text,
)
from toolkit.plan.show import plan_text
from toolkit.plan.steps import Plan, Upload
from toolkit.protocol.bench import AlgorithmTime
from toolkit.protocol.decode import decode

HOSTS = (("gpu1", "10.77.0.2", 2), ("gpu2", "10.77.0.3", 3), ("cpu3", "10.77.0.4", 1))
RING, FINE = Algorithm(5, 262144), Algorithm(5, 65536)
STREAMED = tuple(sorted(trials("mpi")[1].env))
DYNAMIC = ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1")


def unheard(event: object) -> None:
    """Ignore every event."""


def timed(trial: str, algorithm: Algorithm, *seconds: float) -> Iterator[Timing]:
    """Return measurements, smallest size first; fewer than all sizes if time ran out."""
    for size, each in zip(SIZES, seconds, strict=False):
        yield Timing(trial, algorithm, size, each)


def chosen(*timings: Iterator[Timing], engine: str = "mpi") -> Tuning:
    return choose_tuning(engine, HOSTS, [timing for some in timings for timing in some])


USUAL = (0.01, 0.1, 1.0, 10.0)


def usual(count: int = len(USUAL)) -> Iterator[Timing]:
    return timed("default", DEFAULT, *USUAL[:count])


def streamed(*factors: float, algorithm: Algorithm = DEFAULT) -> Iterator[Timing]:
    """Streaming takes this many times as long as the default at each size."""
    return timed("streamed", algorithm, *(one * f for one, f in zip(USUAL, factors, strict=False)))


# What is chosen


def test_where_nothing_was_measured_nothing_changes() -> None:
    assert chosen() == Tuning("mpi", HOSTS, why=("the trial with default settings produced no measurements",))
    # Without the default the others cannot be judged.
    alone = chosen(streamed(0.1, 0.1, 0.1, 0.1))
    assert (alone.changes, alone.why, len(alone.timings)) == (
        False,
        ("the trial with default settings produced no measurements",),
        4,
    )


@pytest.mark.parametrize(("sizes", "changes"), [(1, False), (2, False), (3, True)])
def test_small_messages_show_nothing_about_more_connections(sizes: int, changes: bool) -> None:
    faster = timed("4 sockets", DEFAULT, *(0.5 * one for one in USUAL[:sizes]))
    assert chosen(usual(sizes), faster, engine="nccl").changes == changes


def test_nccl_connects_before_the_time_of_a_measurement_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    comm = SimpleNamespace(rank=1)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=comm)))
    monkeypatch.setattr(
        algorithms, "torch_allreduce", lambda backend: lambda size: lambda: calls.append(size)
    )
    monkeypatch.setattr(algorithms, "time_all", lambda *given: calls.append(0))
    monkeypatch.setattr(
        sys, "argv", ["algorithms", "--engine", "nccl", "--sizes", "8", "64", "--budget", "1"]
    )
    assert algorithms.main() == 0 and calls == [8, 0]


def test_a_small_gain_changes_nothing() -> None:
    tuning = chosen(usual(), timed("4 sockets", DEFAULT, *(0.96 * one for one in USUAL)), engine="nccl")
    assert not tuning.changes
    assert tuning.why == ("no trial made large messages clearly faster without slowing smaller messages",)
    assert len(tuning.timings) == 8


def test_streaming_as_quick_as_put_happened_to_be_is_taken() -> None:
    # Whether two puts take turns is luck that lasts for a job: the next one may take half as long again.
    assert chosen(usual(), streamed(1.0, 1.0, 1.01, 1.01)).env == STREAMED
    assert not chosen(usual(), streamed(0.9, 0.9, 0.9, 1.03)).changes


def test_a_clear_gain_at_the_largest_size_is_taken() -> None:
    tuning = chosen(usual(), streamed(1.0, 1.0, 0.9, 0.5))
    assert (tuning.env, tuning.rules) == (STREAMED, ())
    assert tuning.why == (
        "Open MPI sends messages up to 1 MiB without waiting for the receiver, and larger messages as a "
        "stream of fragments",
        "4 MiB: the default algorithm takes 900 ms instead of 1 s (1.11 times as fast)",
        "32 MiB: the default algorithm takes 5 s instead of 10 s (2.00 times as fast)",
    )


@pytest.mark.parametrize(
    ("factors", "taken"),
    [
        ((1 + MOST_LOSS - 0.01, 1.0, 1.0, 0.5), True),
        ((1 + MOST_LOSS + 0.01, 1.0, 1.0, 0.5), False),
        ((0.5, 0.5, 0.5, 1.03), False),  # where it counts most there is a loss
        ((0.5, 0.5, 0.5, 1.01), True),
        ((0.5, 0.5, 1.2, 0.5), False),
    ],
)
def test_variables_are_taken_for_a_gain_at_the_largest_size_that_harms_none(
    factors: tuple[float, ...], taken: bool
) -> None:
    assert bool(chosen(usual(), streamed(*factors)).env) == taken


def test_a_size_counts_where_both_trials_have_it() -> None:
    # At 512 KiB, the largest that both have, there is a loss; what streaming does above has no measure.
    assert not chosen(usual(2), streamed(0.5, 1.05, 0.1, 0.1)).changes
    # The default's own larger sizes say nothing about the other trial either.
    tuning = chosen(usual(), streamed(1.0, 0.5))
    assert tuning.env == STREAMED
    assert [reason.partition(":")[0] for reason in tuning.why[1:]] == ["512 KiB"]


@pytest.mark.parametrize(
    ("sizes", "trial", "ring"),
    [
        (3, "streamed", True),
        (4, "streamed", False),  # the largest was measured: nothing is left to guess
        (3, "default", False),
    ],
)
def test_among_equals_a_segmented_ring_stands_for_larger_messages(sizes: int, trial: str, ring: bool) -> None:
    ways = [usual(sizes)]
    if trial == "streamed":
        ways += [streamed(*[0.5] * sizes), streamed(*[0.51] * sizes, algorithm=RING)]
    else:
        ways += [timed("default", RING, *(0.97 * one for one in USUAL[:sizes]))]
    tuning = chosen(*ways)
    # Below the last size the engine's own choice stays among equals.
    assert tuning.rules == ((Rule(0, DEFAULT), Rule(SIZES[sizes - 1], RING)) if ring else ())
    assert (DYNAMIC in tuning.env) == ring


def test_a_rule_stands_wherever_the_algorithm_changes_and_only_there() -> None:
    ring = (1.2, 0.4, 0.4, 0.9)
    tuning = chosen(usual(), streamed(0.8, 0.8, 0.8, 0.4), streamed(*ring, algorithm=RING))
    assert tuning.rules == (Rule(0, DEFAULT), Rule(SIZES[1], RING), Rule(SIZES[3], DEFAULT))
    assert tuning.env == tuple(sorted((*STREAMED, DYNAMIC)))


def test_an_algorithm_alone_is_taken_without_variables_of_a_trial() -> None:
    tuning = chosen(usual(), timed("default", FINE, 0.02, 0.2, 0.5, 4.0), streamed(1.3, 1.0, 0.1, 0.1))
    assert tuning.rules == (Rule(0, DEFAULT), Rule(SIZES[2], FINE))
    assert tuning.env == (DYNAMIC,)
    assert tuning.why == (
        "4 MiB: segmented ring with segments of 64 KiB takes 500 ms instead of 1 s (2.00 times as fast)",
        "32 MiB: segmented ring with segments of 64 KiB takes 4 s instead of 10 s (2.50 times as fast)",
    )


def test_nccl_gets_the_best_of_its_trials_and_no_rules() -> None:
    tuning = chosen(
        usual(),
        timed("4 sockets", DEFAULT, *(0.7 * one for one in USUAL)),
        timed("16 sockets", DEFAULT, *(0.6 * one for one in USUAL)),
        timed("16 sockets", RING, *(0.1 * one for one in USUAL)),
        engine="nccl",
    )
    assert tuning.rules == () and rules_text(tuning) == ""
    assert tuning.env == (("NCCL_NSOCKS_PERTHREAD", "4"), ("NCCL_SOCKET_NTHREADS", "4"))


def test_gloo_has_nothing_to_choose() -> None:
    assert trials("gloo") == ()


@pytest.mark.parametrize("engine", ["mpi", "nccl"])
def test_every_trial_measures_the_default(engine: str) -> None:
    first, *others = trials(engine)
    assert (first.name, first.env) == ("default", ())
    assert all(other.env for other in others)
    assert all(DEFAULT in trial.algorithms for trial in trials(engine))


# What is written


def a_tuning(**changes: Any) -> Tuning:
    base = Tuning(
        "mpi",
        HOSTS,
        tuple(sorted((*STREAMED, DYNAMIC))),
        (Rule(0, DEFAULT), Rule(524288, RING)),
        ("512 KiB: quicker",),
        (*usual(2), *streamed(0.9, 0.5, algorithm=RING)),
        "2026-11-20 21:13",
    )
    return replace(base, **changes)


def test_open_mpis_file_of_rules() -> None:
    # One collective, all-reduce (2), one size of communicator (6 ranks), two sizes of message.
    assert rules_text(a_tuning()) == "1\n2\n1\n6\n2\n0 0 0 0\n524288 5 0 262144\n"
    assert rules_text(a_tuning(rules=())) == ""


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        (HOSTS, True),
        (HOSTS[:2], False),
        ((*HOSTS, ("gpu4", "10.77.0.5", 1)), False),
        ((HOSTS[1], HOSTS[0], HOSTS[2]), False),
        ((("gpu1", "10.78.0.2", 2), *HOSTS[1:]), False),
        ((("gpu1", "10.77.0.2", 1), *HOSTS[1:]), False),
        ((("box1", "10.77.0.2", 2), *HOSTS[1:]), False),
    ],
)
def test_a_tuning_holds_for_the_same_hosts_addresses_and_slots(
    ranks: Sequence[tuple[str, str, int]], found: bool
) -> None:
    other = a_tuning(hosts=(("gpu9", "10.77.0.9", 8),))
    assert tuned_for(list(ranks), (other, a_tuning())) == ((a_tuning(),) if found else ())


def test_a_new_tuning_takes_the_place_of_one_for_the_same_ranks_and_engine() -> None:
    old, nccl, two = a_tuning(), a_tuning(engine="nccl", rules=()), a_tuning(hosts=HOSTS[:2])
    new = a_tuning(when="2026-11-21 09:00")
    assert replace_tuning((old, nccl, two), new) == (nccl, two, new)
    assert replace_tuning((), new) == (new,)


def test_what_is_kept_can_be_read_again() -> None:
    kept = (a_tuning(), a_tuning(engine="nccl", env=(), rules=(), timings=()))
    assert parse_tunings(tunings_text(kept)) == kept
    assert parse_tunings(tunings_text(())) == ()


def spoiled(**changes: object) -> str:
    (item,) = json.loads(tunings_text((a_tuning(),)))["tuned"]
    return json.dumps({"tuned": [{**item, **changes}]})


@for_each(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "[1]",
        "{}",
        '{"tuned": 1}',
        '{"tuned": [1]}',
        '{"tuned": [{}]}',
        "[" * 100_000,
        spoiled(hosts=[["gpu1", "10.77.0.2"]]),
        spoiled(hosts=[["gpu1", "10.77.0.2", float("inf")]]),
        spoiled(hosts=[["gpu1", "10.77.0.2", "two"]]),
        spoiled(env=["OMPI_MCA_x"]),
        spoiled(rules=[[0, 0]]),
        spoiled(rules=[0]),
        spoiled(timings=[["streamed", "ring", 1, 1.0]]),
        spoiled(timings=[["streamed", 5, 1, 1.0]]),
        spoiled(why=None),
    ],
    ids=lambda text: text[:40],
)
def test_a_file_that_cannot_be_understood_says_nothing(text: str) -> None:
    assert parse_tunings(text) == ()


def test_an_entry_that_cannot_be_understood_does_not_spoil_the_others() -> None:
    one, other = a_tuning(), a_tuning(engine="nccl", rules=())
    items = json.loads(tunings_text((one, other)))["tuned"]
    assert parse_tunings(json.dumps({"tuned": [items[0], {**items[0], "rules": [0]}, 1, items[1]]})) == (
        one,
        other,
    )


def test_an_algorithm_that_this_toolkit_does_not_try_has_a_name_nevertheless() -> None:
    kept = parse_tunings(spoiled(rules=[[0, 0, 0], [65536, 4, 0]], timings=[["streamed", "3:0", 65536, 0.1]]))
    text = tuning_text(kept[0])
    assert "messages of 64 KiB or more: algorithm 4\n" in text and "algorithm 3" in text


def test_what_the_measuring_program_prints() -> None:
    rows = [{"algorithm": "0:0", "bytes": 65536, "seconds": 0.01}]
    rows.append({"algorithm": "5:65536", "bytes": 65536, "seconds": 0.02})
    found = parse_timings("streamed", decode(tuple[AlgorithmTime, ...], rows))
    assert found == (Timing("streamed", DEFAULT, 65536, 0.01), Timing("streamed", FINE, 65536, 0.02))
    assert parse_algorithm(FINE.word) == FINE
    with pytest.raises(ValueError, match="invalid literal"):
        parse_algorithm("ring")


# What people see


def test_a_tuning_as_text() -> None:
    measured = chosen(
        timed("default", DEFAULT, 0.012, 0.118, 1.02),
        timed("streamed", DEFAULT, 0.0118, 0.09, 0.71),
        timed("streamed", RING, 0.0121, 0.088, 0.7),
        timed("streamed", FINE, 0.013, 0.12),
    )
    texts = [
        replace(measured, when="2026-11-20 21:13"),
        replace(chosen(usual(), streamed(1, 1, 1, 1)), when="2026-11-20 21:14"),
    ]
    check_golden("network/tuning.txt", "\n".join(map(tuning_text, texts)))


def test_the_measurements_of_nccl_name_no_other_library() -> None:
    tuning = chosen(usual(), timed("4 sockets", DEFAULT, 0.01, 0.1, 0.9, 5.0), engine="nccl")
    text = tuning_text(tuning)
    assert "all-reduce (nccl)" in text and "the default algorithm" in text
    assert "MPI" not in text


def test_an_explanation_tells_what_is_kept() -> None:
    kept = (a_tuning(), a_tuning(engine="nccl", hosts=HOSTS[:1], env=(), rules=(), why=()))
    facts = {"gpu1": world.facts("gpu1", "10.0.0.1", tuned=tunings_text(kept))}
    said = explain(
        world.inventory(EXPLAINED), facts, Evidence(), dict.fromkeys(("gpu2", "gpu3"), "no answer")
    )
    assert said.tuned == kept
    check_golden("network/explain-tuned.txt", explanation_text(said))
    # Only main keeps anything.
    elsewhere = {"gpu2": world.facts("gpu2", "10.0.0.2", tuned=tunings_text(kept))}
    assert explain(world.inventory(EXPLAINED), elsewhere, Evidence(), {}).tuned == ()


# The command line


@pytest.mark.parametrize("budget", [1.9, 600.5, -1.0, float("nan"), float("inf")])
def test_check_tune_refuses_invalid_options(budget: float) -> None:
    with pytest.raises(BadInput) as caught:
        check_tune("gloo", budget)
    assert [str(problem) for problem in caught.value.problems] == [
        "--backend: should be one of auto, mpi, nccl, found gloo",
        f"--budget: should be 2 to 600 s, found {budget:g} s",
    ]


def test_the_command_line_and_the_api_have_the_same_default_budget() -> None:
    found = [inspect.signature(each).parameters["budget"] for each in (tune_verb, NetworkPart.tune)]
    assert [each.default for each in found] == [DEFAULT_BUDGET_S, DEFAULT_BUDGET_S]


def test_check_tune_accepts_valid_options() -> None:
    for engine in ("auto", "mpi", "nccl"):
        check_tune(engine, 2)
        check_tune(engine, 600)


def test_tune_reports_invalid_options_and_hosts_together(run: Run) -> None:
    Path("hosts.yaml").write_text(world.HOSTS)
    status, _, err = run("network", "tune", "--backend", "gloo", "--budget", "1", "--only", "gpu9")
    assert status == 2
    assert all(
        words in err
        for words in ("--backend: should be one of", "--budget: should be 2 to 600 s", "gpu9 is not")
    )


def test_forget_refuses_the_options_of_a_measurement(run: Run) -> None:
    Path("hosts.yaml").write_text(world.HOSTS)
    words = ("--backend", "mpi", "--budget", "30", "--only", "gpu1")
    status, _, err = run("network", "tune", "--forget", *words)
    assert status == 2
    for option in words[::2]:
        assert f"{option}: cannot be combined with --forget" in err


# Measuring and keeping


class Main(HostHere):
    """The main host; its file of settings has the content that the last recorded plan writes."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__("gpu1")
        self.recorder = recorder

    def run(self, command: Command, timeout: float | None = None) -> Result:
        assert command.argv[-1] == "/home/alice/.local/state/toolkit/demo/gpu1/conf/tuned.json"
        return Result(0, tunings_text(kept_by(self.recorder.ran[-1])) if self.recorder.ran else "")


def opened(recorder: Recorder) -> Session:
    made = Session.open(load_inventory("hosts.yaml"))
    made.runners["gpu1"] = Main(recorder)  # type: ignore[assignment]
    return made


@pytest.fixture
def session(recorder: Recorder) -> Session:
    return opened(recorder)


class Measuring:
    """A fake of the measuring jobs: each takes its budget and a little more, on a clock of its own."""

    def __init__(self, faster: float) -> None:
        self.now, self.faster, self.jobs = 100.0, faster, list[Job]()

    def __call__(self, session: Session, planned: PlannedJob, mark: str, listen: object) -> str:
        job = planned.job
        self.jobs.append(job)
        self.now += self.budgets[-1] + 1.5
        factor = self.faster if dict(job.override).keys() & dict(STREAMED).keys() else 1.0
        words = list(job.command)
        algorithms = words[words.index("--algorithms") + 1 : words.index("--sizes")]
        sizes = [int(word) for word in words[words.index("--sizes") + 1 :]]
        return json.dumps(
            [
                {"algorithm": algorithm, "bytes": size, "seconds": size * 1e-7 * factor}
                for algorithm in algorithms
                for size in sizes
            ]
        )

    def clock(self) -> float:
        return self.now

    @property
    def budgets(self) -> list[float]:
        return [float(job.command[job.command.index("--budget") + 1]) for job in self.jobs]


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    made = Measuring(0.5)
    monkeypatch.setattr(toolkit.bench.tune, "measured_text", made)
    return made


def kept_by(plan: Plan) -> tuple[Tuning, ...]:
    (step,) = plan.steps
    assert isinstance(step, Upload)
    (file,) = step.files
    assert file.path == "/home/alice/.local/state/toolkit/demo/gpu1/conf/tuned.json" and file.mode == 0o600
    (text,) = file.content
    assert isinstance(text, str)
    return parse_tunings(text)


def test_each_trial_is_a_job_of_its_own_within_the_budget(
    session: Session, recorder: Recorder, measuring: Measuring
) -> None:
    found = tune(session, "mpi", 8.0, unheard, clock=measuring.clock)
    assert found.hosts == HOSTS and found.env == STREAMED
    assert [dict(job.override) for job in measuring.jobs] == [dict([DYNAMIC]), dict((*STREAMED, DYNAMIC))]
    assert all(job.launcher == "mpirun" and job.timeout for job in measuring.jobs)
    # The second knows by the first what a job takes besides measuring.
    assert measuring.budgets == [1.0, 4.0] and measuring.now == 108.0
    assert [kept_by(plan) for plan in recorder.ran] == [(found,)]


def test_what_is_measured_is_measured_without_what_was_tuned_before(
    session: Session, measuring: Measuring
) -> None:
    session.facts["gpu1"] = replace(session.facts["gpu1"], tuned=tunings_text((a_tuning(),)))
    tune(session, "mpi", 8.0, unheard, clock=measuring.clock)
    assert [(job.tuned, job.rules) for job in measuring.jobs] == [((), "")] * 2


def test_a_session_knows_at_once_what_it_has_tuned(
    session: Session, recorder: Recorder, measuring: Measuring
) -> None:
    whole = tune(session, "mpi", 8.0, unheard, clock=measuring.clock)
    assert plan_request(session, Request(words=("true",))).job.tuned == STREAMED
    part = tune(session, "mpi", 8.0, unheard, ("gpu1", "gpu2"), clock=measuring.clock)
    assert part.hosts == HOSTS[:2]
    assert kept_by(recorder.ran[-1]) == (whole, part)
    assert forget(session, unheard) == (whole, part)
    assert kept_by(recorder.ran[-1]) == ()
    assert plan_request(session, Request(words=("true",))).job.tuned == ()


def test_tune_keeps_what_other_commands_stored_and_removed_while_it_measured(
    session: Session, recorder: Recorder, measuring: Measuring
) -> None:
    """All sessions connected before the first of them stored its settings."""
    second, third = opened(recorder), opened(recorder)
    one = tune(session, "mpi", 8.0, unheard, ("gpu1", "gpu2"), clock=measuring.clock)
    two = tune(second, "mpi", 8.0, unheard, ("gpu1", "cpu3"), clock=measuring.clock)
    assert one.hosts != two.hosts and kept_by(recorder.ran[-1]) == (one, two)
    assert forget(second, unheard) == (one, two)
    three = tune(third, "mpi", 8.0, unheard, clock=measuring.clock)
    assert kept_by(recorder.ran[-1]) == (three,)


def test_tune_stores_nothing_if_it_cannot_read_what_is_stored(
    recorder: Recorder, measuring: Measuring, tmp_path: Path
) -> None:
    session = Session.open(load_inventory("hosts.yaml"))
    session.facts["gpu1"] = replace(session.facts["gpu1"], state_dir=str(tmp_path))
    (tmp_path / "conf").mkdir()
    tune(session, "mpi", 8.0, unheard, clock=measuring.clock)
    file = tmp_path / "conf/tuned.json"
    file.write_text(tunings_text((a_tuning(hosts=HOSTS[:1]),)))
    tune(session, "mpi", 8.0, unheard, clock=measuring.clock)
    (step,) = recorder.ran[-1].steps
    assert isinstance(step, Upload)
    assert [t.hosts for t in parse_tunings(str(step.files[0].content[0]))] == [HOSTS[:1], HOSTS]
    file.unlink()
    file.mkdir()
    with pytest.raises(ToolkitError, match="Is a directory") as caught:
        tune(session, "mpi", 8.0, unheard, clock=measuring.clock)
    assert caught.value.fix == f"on gpu1: ls -l {file}  # then make the file readable"
    assert len(recorder.ran) == 2


def test_auto_is_nccl_where_every_rank_has_a_gpu(session: Session, measuring: Measuring) -> None:
    assert tune(session, "auto", 8.0, unheard, clock=measuring.clock).engine == "mpi"
    assert tune(session, "auto", 8.0, unheard, ("gpu1",), clock=measuring.clock).engine == "nccl"


def test_one_rank_alone_has_nobody_to_reduce_with(
    session: Session, recorder: Recorder, measuring: Measuring
) -> None:
    with pytest.raises(NotReady, match="an all-reduce requires at least two ranks, found 1"):
        tune(session, "mpi", 8.0, unheard, ("cpu3",), clock=measuring.clock)
    assert measuring.jobs == [] and recorder.ran == []


def test_nothing_kept_nothing_forgotten(session: Session, recorder: Recorder) -> None:
    assert forget(session, unheard) == () and recorder.ran == []
    assert forget_plan(session).steps == ()


def test_where_main_does_not_answer_that_is_what_is_said(session: Session) -> None:
    session.errors["gpu1"] = Unreachable("no answer", "switch it on", "gpu1")
    del session.facts["gpu1"]
    for call in (lambda: forget(session, unheard), lambda: forget_plan(session)):
        with pytest.raises(Unreachable):
            call()


def test_a_dry_run_shows_what_would_run(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    code, printed = invoke("network", "tune", "--dry-run")
    assert code == 0 and printed.count("phase start") == 2
    code, printed = invoke("network", "tune", "--forget", "--dry-run", "--json")
    assert code == 0 and json.loads(printed) == {
        "title": "tune demo",
        "dry_run": True,
        "plan": ["tune demo: nothing to change"],
    }
    held = world.facts_when_up()
    held["gpu1"] = replace(held["gpu1"], tuned=tunings_text((a_tuning(),)))
    monkeypatch.setattr(world, "facts_when_up", lambda: held)
    _, printed = invoke("network", "tune", "--forget", "--dry-run")
    assert recorder.ran == [] and printed == plan_text(keep_plan("demo", held["gpu1"], ()))
    _, said = invoke("network", "tune", "--forget")
    assert said == "removed 1 tuned setting; MPI and NCCL use their defaults again\n"
    assert [plan_text(plan) for plan in recorder.ran] == [printed]


# Jobs


def test_a_job_without_tuning_has_none() -> None:
    about = json.loads(job_file(world.job()))
    assert (about["tuned"], about["rules"]) == ({}, "")


def test_a_job_file_holds_what_was_tuned() -> None:
    about = json.loads(job_file(replace(world.job(), tuned=STREAMED, rules="1\n")))
    assert (about["tuned"], about["rules"]) == (dict(STREAMED), "1\n")


@pytest.mark.parametrize(
    ("changes", "tuned"),
    [
        ({}, True),
        ({"launcher": "torchrun"}, True),
        ({"ranks": 6}, True),
        ({"ranks": 5}, False),
        ({"only": ("gpu1", "gpu2")}, False),
        ({"exclude": ("cpu3",)}, False),
        ({"tuned": False}, False),
    ],
)
def test_a_job_on_the_same_ranks_gets_what_was_tuned(
    session: Session, changes: dict[str, Any], tuned: bool
) -> None:
    main = session.facts["gpu1"]
    nccl = a_tuning(engine="nccl", env=(("NCCL_SOCKET_NTHREADS", "4"),), rules=())
    session.facts["gpu1"] = replace(main, tuned=tunings_text((a_tuning(), nccl)))
    job = plan_request(session, Request(**{"words": ("true",), **changes})).job
    expected = ((*a_tuning().env, *nccl.env), rules_text(a_tuning())) if tuned else ((), "")
    assert (job.tuned, job.rules) == expected


def test_a_host_with_another_address_gets_nothing(session: Session) -> None:
    moved = a_tuning(hosts=(("gpu1", "10.78.0.2", 2), *HOSTS[1:]))
    session.facts["gpu1"] = replace(session.facts["gpu1"], tuned=tunings_text((moved,)))
    assert plan_request(session, Request(words=("true",))).job.tuned == ()
    session.facts["gpu1"] = replace(session.facts["gpu1"], tuned="not JSON")
    assert plan_request(session, Request(words=("true",))).job.tuned == ()
