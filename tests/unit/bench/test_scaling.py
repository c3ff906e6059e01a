"""`toolkit bench scaling`: speed-up, efficiency and the verdict of what was measured; the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import toolkit.bench.scaling
from tests.golden import check_golden, without_style
from tests.unit import cluster_world as world
from toolkit.bench.scaling import _point, on_first, ordered_hosts
from toolkit.bench.scaling_report import IN_ALL, Point, Scaling, parse_prediction, parse_scaling, scaling_html
from toolkit.core.gauges import HostGauges
from toolkit.errors import BadInput, Interrupted, ToolkitError
from toolkit.jobs.request import Request
from toolkit.launchers.job import Job
from toolkit.protocol.gauges import RankGauge

POINTS = (Point(1, 2, 10.0, 20.0, 200), Point(2, 4, 9.5, 20.0, 190), Point(3, 5, 8.0, 20.0, 160))
WEAK = Scaling(POINTS, predicted=((1, 1.0), (2, 0.97), (3, 0.9)))


def test_as_many_samples_for_each_rank_are_more_work_with_more_ranks() -> None:
    assert [round(WEAK.speedup(point), 3) for point in POINTS] == [1.0, 1.9, 2.0]
    assert [round(WEAK.efficiency(point), 3) for point in POINTS] == [1.0, 0.95, 0.8]
    assert WEAK.expected(POINTS[1]) == 0.97


def test_predicted_and_measured_efficiency_have_the_same_baseline() -> None:
    some = Scaling(POINTS[1:], predicted=((1, 1.0), (2, 0.8), (3, 0.6)))
    assert [some.expected(point) for point in some.points] == pytest.approx([1.0, 0.75])
    assert some.verdict.endswith("(efficiency 84%, predicted 75%): the efficiency is fair")
    again = parse_scaling(some.as_json(), "s.json")
    assert [again.expected(point) for point in again.points] == pytest.approx([1.0, 0.75])
    for unusable in (((3, 0.6),), ((2, 0.0), (3, 0.6))):
        assert replace(some, predicted=unusable).expected(POINTS[2]) is None


def test_a_batch_in_all_is_the_same_work_with_more_ranks() -> None:
    points = tuple(
        replace(point, steps_per_s=throughput) for point, throughput in zip(POINTS, (10, 18, 25), strict=True)
    )
    strong = Scaling(points, IN_ALL)
    assert [round(strong.speedup(point), 3) for point in points] == [1.0, 1.8, 2.5]
    assert [round(strong.efficiency(point), 3) for point in points] == [1.0, 0.9, 1.0]


@pytest.mark.parametrize(
    ("throughputs", "verdict"),
    [
        ((), "no job of the benchmark returned a result"),
        ((10.0,), "1 host: 10 steps/s"),
        ((10.0, 9.8), "2 hosts have 1.96 times the throughput of 1 host (efficiency 98%"),
        (
            (10.0, 7.0),
            "2 hosts have 1.40 times the throughput of 1 host (efficiency 70%): the efficiency is fair",
        ),
        (
            (10.0, 5.2),
            "2 hosts have 1.04 times the throughput of 1 host (efficiency 52%): the efficiency is poor; "
            "measure the links with toolkit bench network",
        ),
        (
            (10.0, 4.0),
            "2 hosts have 0.80 times the throughput of 1 host (efficiency 40%): 2 hosts are slower than 1",
        ),
        (
            (10.0, 9.0, 4.0),
            "3 hosts have 1.20 times the throughput of 1 host (efficiency 40%): 2 hosts have",
        ),
    ],
)
def test_the_verdict(throughputs: tuple[float, ...], verdict: str) -> None:
    points = tuple(Point(n, n, throughput, 20.0, 100) for n, throughput in enumerate(throughputs, 1))
    assert Scaling(points).verdict.startswith(verdict)


def test_the_page_and_the_numbers() -> None:
    found = replace(WEAK, faults=("4 hosts: <no> room",))
    check_golden(
        "scaling/page.html", without_style(scaling_html(found, "Scaling of a&b.py", "2026-11-22 12:00"))
    )
    said = json.loads(json.dumps(found.as_json()))
    assert [row["hosts"] for row in said["rows"]] == [1, 2, 3]
    assert said["rows"][1]["predicted_efficiency"] == 0.97 and said["faults"] == ["4 hosts: <no> room"]
    head, rows = WEAK.rows()
    assert head[-1] == "predicted" and rows[2] == ("3", "5", "8", "0.125 s", "2.00", "80%", "90%")
    assert "predicted" not in Scaling(POINTS).rows()[0]


def test_the_output_of_predict_is_parsed() -> None:
    rows = [{"hosts": 1, "efficiency": 1.0, "wire": 0}, {"hosts": 2, "efficiency": 0.5}]
    assert parse_prediction({"rows": rows}, "p.json") == ((1, 1.0), (2, 0.5))
    with pytest.raises(BadInput, match="--step-time"):
        parse_prediction({"rows": [{"hosts": 1, "efficiency": None}]}, "p.json")
    for other in ([], {"rows": []}, {"rows": 3}, None):
        with pytest.raises(BadInput, match="predict --json"):
            parse_prediction(other, "p.json")


def test_hosts_are_added_main_first_and_one_by_one() -> None:
    inventory = world.inventory(world.HOSTS.replace("main: gpu1", "main: gpu2"))
    request = Request(("true",))
    order = ordered_hosts(inventory, request)
    assert order == ("gpu2", "gpu1", "cpu3")
    assert on_first(request, order, 2).only == ("gpu2", "gpu1")
    slotless = world.inventory(world.HOSTS.replace("address: 10.77.0.2", "address: 10.77.0.2\n    slots: 0"))
    assert ordered_hosts(slotless, request) == ("gpu2", "cpu3")


def test_the_pace_of_what_was_seen() -> None:
    job = world.job("torchrun")
    assert _point(job, [(10.0, 100), (15.0, 150), (20.0, 201)], [3.0]).steps_per_s == pytest.approx(10.1)
    # Another epoch began: what the ranks say of it themselves.
    assert _point(job, [(10.0, 100), (15.0, 3), (20.0, 120)], [9.0, 11.0, 10.0]).steps_per_s == 10.0
    with pytest.raises(ToolkitError, match="print at least two steps"):
        _point(job, [(10.0, 100)], [])
    with pytest.raises(ToolkitError, match="print at least two steps"):
        _point(job, [], [])


def test_a_number_that_fails_does_not_keep_the_others_from_it_and_ctrl_c_ends_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(_session: object, asked: Request, *_: object) -> Point:
        if len(asked.only) == failing:
            raise error
        return Point(len(asked.only), len(asked.only), 10.0, 20.0, 200)

    session = SimpleNamespace(inventory=world.inventory())
    monkeypatch.setattr(toolkit.bench.scaling, "measure", measured)
    everything = (session, Request(words=("train.py",)), (1, 2), (0.0, 1.0, 1.0), None, lambda text: None)
    failing, error = 1, ToolkitError("no room")
    found = toolkit.bench.scaling.measure_all(*everything)  # type: ignore[arg-type]
    assert [point.hosts for point in found.points] == [2] and found.faults == ("1 host: no room",)
    error = Interrupted()
    with pytest.raises(Interrupted):
        toolkit.bench.scaling.measure_all(*everything)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="selected hosts with slots is 3"):
        toolkit.bench.scaling.measure_all(session, everything[1], (99,), *everything[3:])  # type: ignore[arg-type]


Reports = tuple[HostGauges, ...]


def running(*_: object) -> SimpleNamespace:
    return SimpleNamespace(final=False)


def watched(
    monkeypatch: pytest.MonkeyPatch,
    job: Job,
    reports: Callable[[float], Reports],
    seconds: float = 10.0,
    status: Callable[..., SimpleNamespace] = running,
    warm_up: float = 1.0,
) -> Point:
    """Return what is measured in ten seconds, after one second of warming up.

    Args:
        reports: returns the reports of the hosts at a time, which begins at 100 s.
        status: answers a query of the job's state.
    """
    now = 100.0

    class Readings:
        def wait(self, seconds: float) -> None:
            nonlocal now
            now += seconds

        def now(self) -> tuple[Reports, dict[str, str]]:
            return reports(now), {}

    monkeypatch.setattr(toolkit.bench.scaling, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(toolkit.bench.scaling, "job_status", status)
    session: Any = SimpleNamespace()
    return toolkit.bench.scaling._watch(session, Readings(), job, warm_up, seconds, 60.0)  # type: ignore[arg-type]


def test_the_steps_of_this_job_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other jobs make 7 steps a second at the same time, this one 10.

    A host without a rank of the job reports 1,000 steps a second of it.
    """
    job = world.job("torchrun")

    def reports(now: float) -> Reports:
        steps = {"20260101-000000-a-0000": 7 * now, job.id: 10 * now, "20990101-000000-z-0000": 7 * now}
        ranks = tuple(RankGauge(name, 0, step=int(step)) for name, step in steps.items())
        stranger = HostGauges("gpu9", now, ranks=(RankGauge(job.id, 0, step=int(1000 * now)),))
        return stranger, HostGauges("gpu1", now, ranks=ranks)

    point = watched(monkeypatch, job, reports)
    assert (point.steps_per_s, point.steps) == (pytest.approx(10.0), 100)


def test_the_clocks_of_two_hosts_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of gpu2 is 5 s behind; gpu1, with rank 0, does not report for some seconds."""
    job = world.job("torchrun")

    def reports(now: float) -> Reports:
        def host(name: str, rank: int, at: float) -> HostGauges:
            return HostGauges(name, at, ranks=(RankGauge(job.id, rank, step=int(10 * now)),))

        second = host("gpu2", 1, now - 5)
        return (second,) if 106 <= now < 112 else (host("gpu1", 0, now), second)

    assert watched(monkeypatch, job, reports).steps_per_s == pytest.approx(10.0)
    # The clock of the host was set back.
    assert _point(job, [(10.0, 100), (15.0, 150), (10.0, 200)], [9.0]).steps_per_s == 9.0


def stepping(job: Job, step: Callable[[float], float]) -> Callable[[float], Reports]:
    """Return the reports of one rank that has done as many steps at a time after its first one, at 103 s."""

    def reports(now: float) -> Reports:
        ranks = (RankGauge(job.id, 0, step=int(step(now - 103))),) if now >= 103 else ()
        return (HostGauges("gpu1", now, ranks=ranks),)

    return reports


@pytest.mark.parametrize("period", [1.0, 3.0, 4.9, 5.2, 6.0, 8.0, 10.0, 12.0, 25.0, 45.0])
def test_slow_steps_are_measured_from_their_first_change(
    monkeypatch: pytest.MonkeyPatch, period: float
) -> None:
    """Gauges are read each 0.5 s, and each end of the measurement is as exact."""
    job = world.job("torchrun")
    point = watched(monkeypatch, job, stepping(job, lambda now: now / period), 20.0)
    assert point.steps > 0 and point.seconds == pytest.approx(point.steps * period, abs=0.5)


def test_the_first_step_that_is_seen_began_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.job("torchrun")
    point = watched(monkeypatch, job, stepping(job, lambda now: (now + 7) / 8), warm_up=0.0)
    assert (point.seconds, point.steps) == (8, 1)


def test_a_stall_is_part_of_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step each second, and none between the fifth and the thirtieth."""
    job = world.job("torchrun")
    point = watched(monkeypatch, job, stepping(job, lambda now: min(now, 5) + max(0, now - 30)))
    assert (point.seconds, point.steps) == (30, 5)


def test_a_job_that_hangs_has_no_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.job("torchrun")
    what = f"job {job.id} printed no step number for 60 s after step 5"
    with pytest.raises(ToolkitError, match=what) as caught:
        watched(monkeypatch, job, stepping(job, lambda now: min(now, 5)))
    hint = "if the script evaluates or saves after that step, use a smaller --seconds or a larger --patience"
    assert caught.value.fix == f"toolkit logs {job.id}  # {hint}"
    with pytest.raises(ToolkitError, match="printed a step number within 60 s"):
        watched(monkeypatch, job, lambda now: ())


@pytest.mark.parametrize("repeated", [False, True])
def test_a_host_that_stops_reporting_is_not_steady(monkeypatch: pytest.MonkeyPatch, repeated: bool) -> None:
    """`Gauges` repeats the last report of a silent host for a while, then omits it."""
    job = world.job("torchrun")
    step = stepping(job, lambda now: now)

    def reports(now: float) -> Reports:
        return step(now) if now <= 108 else step(108) if repeated else ()

    with pytest.raises(ToolkitError, match="printed no step number for 60 s after step 5"):
        watched(monkeypatch, job, reports)


@pytest.mark.parametrize(("failures", "measured"), [(4, True), (5, False)])
def test_some_failed_queries_of_the_state_do_not_end_the_measurement(
    monkeypatch: pytest.MonkeyPatch, failures: int, measured: bool
) -> None:
    job, left = world.job("torchrun"), iter([*[True] * failures, False, *[True] * 4])

    def status(*_: object) -> SimpleNamespace:
        if next(left, False):
            raise ToolkitError("timed out after 30 s")
        return running()

    reports = stepping(job, lambda now: now)
    if measured:
        assert watched(monkeypatch, job, reports, 40.0, status).steps_per_s == pytest.approx(1.0)
    else:
        with pytest.raises(ToolkitError, match="timed out"):
            watched(monkeypatch, job, reports, 40.0, status)


@pytest.mark.parametrize("stops", [True, False])
def test_a_job_with_an_unknown_state_is_stopped_and_ends_the_series_if_it_is_not(
    monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    job, stopped, lines = world.job("torchrun"), list[str](), list[str]()

    def fail(*_: object) -> SimpleNamespace:
        raise ToolkitError("cannot list the jobs of gpu1: timed out after 30 s", "toolkit status -v")

    def stop(_: object, name: str, grace: float) -> None:
        stopped.append(name)
        if not stops:
            raise ToolkitError("gpu1 does not answer", "ping gpu1")

    planned = SimpleNamespace(plan=None, job=job)
    monkeypatch.setattr(toolkit.bench.scaling, "plan_request", lambda *_: planned)
    for name in ("start", "_follow"):
        monkeypatch.setattr(toolkit.bench.scaling, name, lambda *_: None)
    monkeypatch.setattr(toolkit.bench.scaling, "Gauges", lambda *_: nullcontext())
    for name in ("_watch", "job_status"):
        monkeypatch.setattr(toolkit.bench.scaling, name, fail)
    monkeypatch.setattr(toolkit.bench.scaling, "stop", stop)
    session: Any = SimpleNamespace(inventory=world.inventory())
    asked, times = Request(words=("train.py",)), (0.0, 1.0, 1.0)
    found = toolkit.bench.scaling.measure_all(session, asked, (1, 2), times, print, lines.append)
    if stops:
        assert stopped == [job.id] * 2 and len(found.faults) == 2
    else:
        what = f"job {job.id} might still be running, because toolkit could not stop the job"
        assert stopped == [job.id] and found.faults == (f"1 host: {what}: gpu1 does not answer",)
        assert lines[-1].endswith(f"fix: toolkit stop {job.id}")


def test_the_line_of_a_started_job_names_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    job, lines = world.job("torchrun"), list[str]()
    planned = SimpleNamespace(plan=None, job=job)
    monkeypatch.setattr(toolkit.bench.scaling, "plan_request", lambda *_: planned)
    for name in ("start", "_follow"):
        monkeypatch.setattr(toolkit.bench.scaling, name, lambda *_: None)
    monkeypatch.setattr(toolkit.bench.scaling, "Gauges", lambda *_: nullcontext())
    monkeypatch.setattr(toolkit.bench.scaling, "_watch", lambda *_: POINTS[0])
    monkeypatch.setattr(toolkit.bench.scaling, "job_status", lambda *_: SimpleNamespace(final=True))
    session, asked, times = SimpleNamespace(), Request(words=("train.py",)), (0.0, 1.0, 1.0)
    toolkit.bench.scaling.measure(session, asked, *times, print, lines.append)  # type: ignore[arg-type]
    (line,) = lines
    assert line.startswith(f"job {job.id}: ") and line.endswith(", torchrun")
