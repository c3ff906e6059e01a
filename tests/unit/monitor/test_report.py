"""`toolkit report`: what hosts tell of a job, what is made of it, and the pages."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from markupsafe import escape

import toolkit.monitor.report
from tests.golden import check_golden, without_style
from tests.unit.cluster_world import EXEC, HOSTS, facts
from tests.unit.cluster_world import inventory as world_inventory
from tests.unit.conftest import Run
from tests.unit.container_world import JOB, PATIENCE_S, World, python, wait_for
from toolkit.api.job import ClusterJob
from toolkit.bench.network_html import network_html
from toolkit.bench.scaling_report import Point as Scaled
from toolkit.bench.scaling_report import Scaling, parse_scaling, scaling_html
from toolkit.container.monitor import gauge_log, job_facts
from toolkit.core.report import HERE, Outcome, from_phase, parse_spans, spans_json
from toolkit.errors import BadInput, Unreachable
from toolkit.jobs.status import parse_status
from toolkit.monitor.charts import Line, chart, clock_text, ticks
from toolkit.monitor.job_report import Curve, JobReport, make_report
from toolkit.monitor.report_html import compare_html, comparison, report_html, verdict
from toolkit.monitor.report_html import facts as facts_of
from toolkit.network.measured import Measured, Pair, Point
from toolkit.plan.execute import StepEnded, Stopwatch
from toolkit.protocol.account import Account
from toolkit.protocol.decode import decode
from toolkit.protocol.jobs import Record, Status

# On a host


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def account(world: World) -> dict[str, Any]:
    code, out, err = world.call("monitor.job_facts", JOB)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def report_of(
    told: dict[str, dict[str, Any]],
    answered: dict[str, float],
    silent: dict[str, str] | None = None,
    job: str = JOB,
) -> JobReport:
    """The report of a job whose status is on the first host."""
    own = next(iter(told.values()))
    return make_report(
        "demo",
        parse_status(job, decode(Status, own["status"]), own["alive"], decode(Record, own["record"] or {})),
        {host: decode(Account, said) for host, said in told.items()},
        silent or {},
        answered,
    )


STEPS = (
    "import time\n"
    "for step in range(6): print(f'step {step}, 40 samples/s', flush=True); time.sleep(0.6)\n"
    "raise SystemExit({code})"
)


def test_what_a_host_tells_of_a_job(world: World) -> None:
    folder = world.job(command=python(STEPS.replace("{code}", "3")))
    (folder / "logs").mkdir()
    began = time.time()
    assert world.call("job.supervisor", JOB)[0] == 0
    said = account(world)
    (rank,) = said["ranks"]
    assert (rank["rank"], rank["exit_code"], rank["last"][-1]) == (0, 3, "step 5, 40 samples/s")
    assert began < rank["starts"][0] < rank["first_output"] <= rank["first_step"] < rank["ended"]
    assert said["throughput"][-1][1:] == [5, pytest.approx(1.7, rel=0.4), 40.0]
    assert said["status"]["state"] == "failed" and not said["alive"] and said["host"] == "gpu1"
    assert {"python", "kernel"} <= set(said["versions"]) and said["network"] == {}
    rows = said["gauges"]
    assert len(rows) >= 2 and rows[-1]["cpu"]["busy"] is not None
    assert began - 1 < rows[0]["at"] <= rows[-1]["at"] < time.time() + 1


def test_an_attempt_after_another_begins_the_pace_anew(world: World) -> None:
    text = STEPS.replace("range(6)", "range(3)").replace("{code}", "0 if again else 3")
    command = python("import os; again = os.environ['TOOLKIT_RESTART'] != '0'\n" + text)
    world.job(command=command, max_restarts=1, networks=[])
    fake = world.mpirun_of_one_rank()
    world.call("job.supervisor", JOB, PATH=f"{fake}:{os.environ['PATH']}")
    said = account(world)
    assert len(said["ranks"][0]["starts"]) == 2 and said["ranks"][0]["exit_code"] == 0
    assert [row[1] for row in said["throughput"]].count(None) == 1, "between the two nothing is known"
    report = report_of({"gpu1": said}, {"gpu1": said["now"]})
    assert [attempt.reason for attempt in report.attempts] == [
        "rank 0 on gpu1 exited with code 3",
        "succeeded",
    ]


def test_a_job_that_runs_and_one_that_nobody_knows(world: World) -> None:
    world.job(command=python("print('step 1', flush=True); import time; time.sleep(60)"))
    world.start("job.supervisor", JOB)
    wait_for(lambda: b"step 1" in world.log())
    said = account(world)
    assert said["alive"] and said["ranks"][0]["ended"] is None
    report = report_of({"gpu1": said}, {"gpu1": said["now"]})
    assert report.status.state == "running" and report.attempts[-1].end is None and report.seconds > 0
    assert json.loads(world.call("monitor.job_facts", "no-such")[1])["record"] is None


def test_a_rank_whose_record_is_damaged_is_in_the_report(world: World) -> None:
    folder = world.job()
    (folder / "logs").mkdir()
    run = {"rank": 0, "attempt": 0, "pid": 1, "began": 1.0, "starts": [1.0]}
    (folder / "logs" / "rank-0.run").write_text(json.dumps(run))
    for name in ("rank-1.run", "rank-other.run"):
        (folder / "logs" / name).touch()
    found = decode(Account, account(world)).ranks
    assert [(rank.rank, rank.starts) for rank in found] == [(0, (1.0,)), (1, ())]


def test_a_package_without_metadata_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted pip leaves them."""
    packages = tmp_path / "packages"
    for name in ("~orch-2.1.dist-info", "torch-2.1.dist-info", "nvidia_nccl_cu12-2.2.dist-info"):
        (packages / name).mkdir(parents=True)
    (packages / "nvidia_nccl_cu12-2.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nvidia-nccl-cu12\nVersion: 2.2\n"
    )
    monkeypatch.setattr(sys, "path", [str(packages)])
    found = job_facts.versions()
    assert found["nccl"] == "2.2" and "torch" not in found and None not in found.values()


def test_a_rank_without_a_word(world: World) -> None:
    world.job(command=python("pass"))
    world.call("job.supervisor", JOB)
    said = account(world)
    assert said["throughput"] == [] and said["ranks"][0]["first_output"] is None


def test_the_newest_measurement_of_the_network_is_found(world: World) -> None:
    for number, mark in enumerate(("old", "new")):
        folder = world.job(f"bench-{number}", command=["python3", "/run/run.py", "bench.network"])
        record = {"command": ["python3", "/run/run.py", "bench.network"], "hosts": []}
        (folder / "record.json").write_text(json.dumps(record))
        (folder / "status.json").write_text(json.dumps({"state": "succeeded", "started": 100.0 + number}))
        (folder / "output.log").write_text(f'[gpu1 0] @network 1/1 {{"which": "{mark}"}}\n')
    world.job(command=python("pass"))
    assert account(world)["network"] == {"job": "bench-1", "text": '{"which": "new"}'}


def test_a_partial_measurement_of_the_network_does_not_replace_a_complete_one(world: World) -> None:
    for number, state in enumerate(("failed", "succeeded", "failed", "running")):
        folder = world.job(f"bench-{number}", command=["bench.network"])
        (folder / "record.json").write_text(json.dumps({"command": ["bench.network"], "hosts": []}))
        (folder / "status.json").write_text(json.dumps({"state": state, "started": 100.0 + number}))
        (folder / "output.log").write_text(f'[gpu1 0] @network 1/1 {{"which": {number}}}\n')
    assert account(world)["network"] == {"job": "bench-1", "text": '{"which": 1}'}
    # The format of earlier versions.
    (world.root / "jobs" / "bench-1" / "output.log").write_text('[gpu1 0] @network {"which": 9}\n')
    assert account(world)["network"] == {"job": "bench-1", "text": '{"which": 9}'}
    # Without a complete one, the last partial one.
    (world.root / "jobs" / "bench-1" / "output.log").write_text("")
    assert account(world)["network"]["job"] == "bench-3"


def test_gauges_of_a_long_job_are_thinned(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOOLKIT_ROOT", str(world.root))
    monkeypatch.setattr(gauge_log, "APART_S", 0.01)
    monkeypatch.setattr(gauge_log, "MOST_ROWS", 8)
    (tmp_path / "jobs").mkdir()
    path, over = tmp_path / "gauges.jsonl", threading.Event()
    log = gauge_log.GaugeLog(path)
    thread = threading.Thread(target=log.keep, args=(over,))
    thread.start()
    wait_for(lambda: log._apart >= 0.04)
    over.set()
    thread.join(PATIENCE_S)
    rows = gauge_log.read_rows(path)
    assert 4 <= len(rows) <= 9 and [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    path.write_text(path.read_text() + '{"at": 1, "cut o')
    assert len(gauge_log.read_rows(path)) == len(rows), "what was cut off by a crash is passed over"


# What went before


def test_what_hosts_were_busy_with() -> None:
    watch = Stopwatch()
    watch.met("a", 0.2)
    heard: list[object] = []
    listen = watch.heard_by(heard.append)
    time.sleep(0.05)
    for status in ("ok", "skipped", "not run"):
        listen(StepEnded(Outcome("code", "send", "a", status, 0.01)))  # type: ignore[arg-type]
    spans = watch.take()
    assert [(span.phase, span.host) for span in spans] == [
        ("connect", "a"),
        ("query and plan", HERE),
        ("code", "a"),
    ]
    assert len(heard) == 3 and watch.take() == (), "what was taken is not told again"
    moved = from_phase(spans, "code")
    assert moved[-1].begin == 0.0 and moved[0].begin < 0
    assert [row.phase for row in parse_spans(spans_json(moved))] == [row.phase for row in moved]


@pytest.mark.parametrize("value", [None, 3, [[1]], {"a": 1}, [["x", "y", "z", "w"]]])
def test_times_of_another_version_are_passed_over(value: object) -> None:
    assert parse_spans(value) == ()


# The report


def gauges(at: float, busy: float | None, gpu: float | None = None) -> dict[str, Any]:
    gpus = (
        [] if gpu is None else [{"index": 0, "utilization": gpu, "memory_used": 1024, "memory_total": 81920}]
    )
    return {
        "at": at,
        "cpu": {"cores": 8, "busy": busy, "load": 1.0},
        "memory": {"total": 64 * 2**30, "used": 8 * 2**30},
        "network": {"interface": "eth0", "in": 1e6, "out": 2e6, "mbit": 1000},
        "disk": {"read": 0.0, "written": 1e6, "free": 1},
        "gpus": gpus,
    }


def host_says(name: str, rank: int, ahead: float, **changes: Any) -> dict[str, Any]:
    """Return the answer of a host whose clock is `ahead` of main's, where the job began at 1000."""
    zero = 1000.0 + ahead
    whole = {
        "host": name,
        "record": {"owner": "alice", "launcher": "torchrun", "command": ["python", "train.py", "<b>"]},
        "status": None,
        "alive": False,
        "preparation": None,
        "up": None,
        "ranks": [
            {
                "rank": rank,
                "attempt": 1,
                "starts": [zero + 1.0, zero + 33.0],
                "first_output": zero + 3.0 if rank == 0 else None,
                "first_step": zero + 4.0 if rank == 0 else None,
                "ended": zero + 60.0,
                "exit_code": 0,
                "signal": 0,
                "oom": False,
                "last": [],
            }
        ],
        "throughput": [],
        "gauges": [gauges(zero + 2.0 * at, None if at == 0 else 4.0 + at % 3, 90.0) for at in range(30)],
        "versions": {"python": "3.11.2", "torch": "2.13.0", "kernel": f"6.1-{name}"},
        "network": {},
        "now": zero + 70.0,
    }
    return {**whole, **changes}


def sample(**changes: Any) -> JobReport:
    """A job of two hosts, one restart, whose second host's clock is 100 s ahead of main's."""
    status = {
        "state": "succeeded",
        "exit_code": 0,
        "started": 1000.0,
        "ended": 1060.0,
        "reason": "",
        "hosts": {"box1": [0], "box2": [0]},
        "restarts": [
            {
                "at": 1030.0,
                "reason": "rank 1 on box2 was killed by SIGKILL",
                "host": "box2",
                "hosts": ["box1", "box2"],
            }
        ],
        "cause": {},
    }
    spans = [["connect", "box1", -1.2, 0.3], ["query and plan", HERE, -0.9, 0.2], ["code", "box1", -0.7, 0.4]]
    throughput = [[1000.0 + at, at * 10, 10.0 + at % 2, 640.0] for at in range(5, 30)]
    throughput += [[1033.0, None, None, None]] + [[1000.0 + at, at * 10, 12.0, 700.0] for at in range(40, 60)]
    main = host_says(
        "box1",
        0,
        0.0,
        status={**status, **changes},
        preparation={"spans": spans},
        up={"at": 900.0, "spans": [["image", "box1", 0.0, 60.0], ["sshd", "box2", 61.0, 0.5]]},
        throughput=throughput,
        network={"job": "bench-1", "text": "{}"},
    )
    told = {"box1": main, "box2": host_says("box2", 1, 100.0)}
    return report_of(told, {"box1": 5070.0, "box2": 5070.0}, {"box3": "does not <answer>"}, "j1")


def test_times_of_hosts_whose_clocks_differ_are_told_by_mains() -> None:
    report = sample()
    assert [rank.starts for rank in report.ranks] == [(1.0, 33.0), (1.0, 33.0)]
    assert [rank.ended for rank in report.ranks] == [60.0, 60.0]
    assert {curve.points[0][0] for host in report.hosts for curve in host.curves} == {0.0}
    assert report.up_before == 100.0 and report.seconds == 60.0
    assert report.first_step == pytest.approx(5.2), "from when the command began to connect"


def test_the_few_numbers() -> None:
    report = sample()
    assert report.typical("steps/s") == 11.0 and report.typical("samples/s") == 640.0
    assert report.typical("no such") is None and report.mean("GPU 0") == 90.0 and report.mean("GPU 7") is None
    assert verdict(report) == "succeeded after 1:00; 11 steps/s on 2 ranks of 2 hosts; 1 restart"
    assert json.loads(json.dumps(report.as_json()))["steps_per_s"] == 11.0


LINKS = (Pair("box1", "box2", 9.4e9, 2e-5), Pair("box2", "box1", 9.3e9, 2e-5))
MEASURED = Measured(("box1", "box2"), LINKS, (Point(1 << 20, 2, 0.002), Point(1 << 24, 2, 0.02)), "mpi")
GROWN = Scaling(
    (Scaled(1, 1, 10.0, 20.0, 200), Scaled(2, 2, 9.0, 20.0, 180)), predicted=((1, 1.0), (2, 0.95))
)


def test_the_page() -> None:
    text = report_html(sample(), "2026-11-22 12:00", MEASURED, GROWN)
    check_golden("report/page.html", without_style(text))
    assert_self_contained(text)
    for section in ("time", "throughput", "restarts", "ranks", "hosts", "scaling", "network", "versions"):
        assert f"href='#{section}'" in text and f"<section id={section}>" in text


def test_secrets_of_the_file_and_of_command_lines_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = replace(world_inventory(), env=(("API_TOKEN", "s3cret"),), main="box1")
    told = host_says("box1", 0, 0.0, status={"state": "failed", "started": 1000.0, "reason": "no s3cret"})
    told["record"] = {
        **told["record"],
        "command": ["python", "train.py", "--env", "HF_TOKEN=abc"],
        "hosts": [],
    }
    told["status"]["cause"] = {"last": ["it was s3cret"]}
    told["ranks"][0] |= {"exit_code": 1, "last": ["login with s3cret failed"]}
    status = parse_status("j1", decode(Status, told["status"]), False, decode(Record, told["record"]))
    said = {name: facts(name) for name in ("box1", *inventory.names)}
    session = SimpleNamespace(inventory=inventory, errors={}, facts=said)
    monkeypatch.setattr(toolkit.monitor.report, "job_status", lambda *_: status)
    monkeypatch.setattr(toolkit.monitor.report, "_ask", lambda *_: (5070.0, told))
    report = toolkit.monitor.report.job_report(session, "j1")  # type: ignore[arg-type]
    text = report_html(report, "", None, None) + json.dumps(report.as_json())
    assert "s3cret" not in text and "abc" not in text and "HF_TOKEN=***" in text


def test_a_host_without_a_part_is_not_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = world_inventory(f"{HOSTS}{EXEC}")
    record = {**host_says("gpu2", 0, 0.0)["record"], "transport": "exec", "hosts": [{"name": "gpu2"}]}
    told = {name: host_says(name, number, 0.0) for number, name in enumerate(("gpu2", "cpu3"))}
    told["gpu1"] = host_says("gpu1", 0, 0.0, record=None)
    status = parse_status("j1", decode(Status, {"state": "failed"}), True, decode(Record, record))
    session = SimpleNamespace(inventory=inventory, errors={}, facts={name: facts(name) for name in told})
    monkeypatch.setattr(toolkit.monitor.report, "job_status", lambda *_: status)
    monkeypatch.setattr(toolkit.monitor.report, "_ask", lambda session, name, job: (5070.0, told[name]))
    report = toolkit.monitor.report.job_report(session, "j1")  # type: ignore[arg-type]
    assert [rank.host for rank in report.ranks] == ["gpu2"]


def test_a_host_that_the_job_has_left_is_silent_if_it_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inventory = replace(world_inventory(), main="gpu1")
    told = host_says("gpu1", 0, 0.0)
    restarts = [{"reason": "lost", "hosts": ["gpu1", "gpu2"]}]
    status = {"state": "failed", "hosts": {"gpu1": [0]}, "restarts": restarts}
    errors = {name: Unreachable("it does not answer", "", name) for name in inventory.names if name != "gpu1"}
    session = SimpleNamespace(inventory=inventory, errors=errors, facts={"gpu1": facts("gpu1")})
    monkeypatch.setattr(
        toolkit.monitor.report, "job_status", lambda *_: parse_status("j1", decode(Status, status))
    )
    monkeypatch.setattr(toolkit.monitor.report, "_ask", lambda *_: (5070.0, told))
    report = toolkit.monitor.report.job_report(session, "j1")  # type: ignore[arg-type]
    assert report.silent == (("gpu2", "it does not answer"),)


def assert_self_contained(text: str) -> None:
    """Nothing is fetched, nothing runs, and what people have named things is text."""
    for word in ("http:", "https:", "<script", "<link", "@import", "url(", "src="):
        assert word not in text, word
    assert "<b>'" not in text and "<answer>" not in text


def test_the_page_of_a_job_that_failed_without_a_word() -> None:
    report = sample(
        state="failed", exit_code=1, reason="rank 0 on box1 ended with <exit> code 1", restarts=[]
    )
    text = report_html(report, "2026-11-22 12:00", None, None)
    assert "&lt;exit&gt;" in text and "class='verdict bad'" in text
    assert "<section id=restarts>" not in text and "toolkit bench network" in text


def test_two_jobs_beside_each_other() -> None:
    one, other = sample(), sample(ended=1030.0)
    text = compare_html(one, other, "2026-11-22 12:00")
    check_golden("report/compare.html", without_style(text))
    assert_self_contained(text)
    assert comparison(one, other) == "job j1 has 1.00 times the samples/s of job j1"


def test_a_lost_job_lasted_until_its_last_known_moment() -> None:
    """Its host was found three days later."""
    lost = sample(state="running", ended=None, restarts=[])
    lost = replace(lost, queried=3 * 86400.0)
    assert (lost.status.state, lost.seconds) == ("lost", 60.0)
    assert verdict(lost).startswith("lost after 1:00; ")
    bare = replace(lost, throughput=(), last=0.0)
    assert verdict(bare) == "lost; 2 ranks of 2 hosts" and ("total time", "-") in facts_of(bare)
    said = comparison(replace(sample(), throughput=()), replace(lost, throughput=()))
    assert said.endswith("at least one job has no recorded end")


HOSTILE = "a'\" onload=x><script>alert(1)</script>&#39;"


class Parsed(HTMLParser):
    """A page as a browser understands it: elements, attributes, and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.values: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(name for name, _ in attrs)}
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


def hostile() -> JobReport:
    """The job of `sample`, in which each name and line that users, hosts or ranks choose is hostile."""
    whole = sample(state="failed")
    names = {name: name + HOSTILE for name in ("box1", "box2")}
    return replace(
        whole,
        cluster=HOSTILE,
        status=replace(
            whole.status,
            id=HOSTILE,
            hosts=((HOSTILE, (0,)),),
            command=(HOSTILE,),
            launcher=HOSTILE,
            owner=HOSTILE,
            reason=HOSTILE,
            last_lines=(HOSTILE,),
        ),
        hosts=tuple(
            replace(host, name=names[host.name], versions=((HOSTILE, names[host.name]),))
            for host in whole.hosts
        ),
        ranks=tuple(replace(rank, host=names[rank.host], how=HOSTILE) for rank in whole.ranks),
        attempts=tuple(
            replace(attempt, hosts=tuple(names.values()), reason=HOSTILE) for attempt in whole.attempts
        ),
        up=tuple(replace(span, host=names[span.host]) for span in whole.up),
        silent=((HOSTILE, HOSTILE),),
        network=(HOSTILE, ""),
    )


LINE = (Pair(HOSTILE, "box2", 9.4e9, 2e-5),)
HOSTILE_NETWORK = Measured((HOSTILE, "box2"), LINE, MEASURED.allreduce, HOSTILE, (HOSTILE,))
HOSTILE_SCALING = replace(GROWN, faults=(HOSTILE,))
# Elements and attributes of all pages.
_ELEMENTS = (
    "a b br circle code details div h1 h2 h3 header html i li line main meta nav p path polyline pre section "
    "span style summary svg table td text th title tr ul"
)
_ATTRIBUTES = (
    "aria-label charset class content cx cy d fill href id lang name points r role scope stroke "
    "stroke-dasharray stroke-linejoin stroke-width style tabindex text-anchor title viewbox width x x1 x2 "
    "y y1 y2"
)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (
            lambda: report_html(hostile(), HOSTILE, HOSTILE_NETWORK, HOSTILE_SCALING),
            # title, when, line of a rank, names of hosts, end of a rank, versions
            (
                f"Job {HOSTILE}",
                f"report of {HOSTILE}",
                f"{HOSTILE}\n",
                f"{HOSTILE}: {HOSTILE}",
                f"box1{HOSTILE}",
            ),
        ),
        (
            lambda: compare_html(hostile(), sample(), HOSTILE),
            (f"Jobs {HOSTILE} and j1", f"report of {HOSTILE}", f"{HOSTILE}: failed"),
        ),
        (
            lambda: network_html(HOSTILE_NETWORK, HOSTILE, HOSTILE),
            (f"Network of {HOSTILE}", f"All-reduce ({HOSTILE})", f"the slowest link, from {HOSTILE}"),
        ),
        (
            lambda: scaling_html(HOSTILE_SCALING, HOSTILE, HOSTILE),
            (HOSTILE, f"Not measured{HOSTILE}"),
        ),
    ],
    ids=["report", "compare", "network", "scaling"],
)
def test_names_titles_and_lines_of_ranks_are_text_in_every_page(
    page: Callable[[], str], said: tuple[str, ...]
) -> None:
    text = page()
    parsed = Parsed(text)
    assert [words for words in said if words not in parsed.words] == []
    assert parsed.names <= {*_ELEMENTS.split(), *_ATTRIBUTES.split()}
    assert "<script" not in text and "a'" not in text and '\\"' not in text


def test_hosts_and_ends_of_attempts_are_text_in_attributes_and_charts() -> None:
    text = report_html(hostile(), "", None, None)
    parsed = Parsed(text)
    assert f"box1{HOSTILE}: attempt 0, 30 s" in parsed.values, "a bar"
    assert any(value.endswith(f" on box1{HOSTILE}") for value in parsed.values), "a chart of a host"
    assert f"<title>{escape(HOSTILE)}</title></line>" in text, "the mark of a restart"


def test_templates_of_pages_are_escaped_without_exception() -> None:
    files = sorted((Path(toolkit.__file__).parent / "html").glob("*.j2"))
    assert len(files) >= 7
    for file in files:
        assert file.name.endswith(".html.j2"), "by its name it is escaped"
        assert not re.search(r"safe|autoescape", file.read_text(encoding="utf-8")), file.name


def test_charts_have_round_numbers_and_no_line_where_nothing_is_known() -> None:
    assert [ticks(top) for top in (0, 7.3, 0.21, 1000, float("inf"))] == [
        [0.0, 1.0],
        [0.0, 2.0, 4.0, 6.0, 8.0],
        [0.0, 0.1, 0.2, 0.3],
        [0.0, 250.0, 500.0, 750.0, 1000.0],
        [0.0, 1.0],
    ]
    assert [clock_text(at) for at in (4.234, -3, 125, 3725.4, 0.01)] == [
        "4.2 s",
        "-3 s",
        "2:05",
        "1:02:05",
        "0 s",
    ]
    curve = Curve("x", "", ((0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 1.0), (4.0, 1.5)))
    drawn = chart([Line(curve, "x", 0)], "x")
    assert drawn is not None and [len(piece.points) for piece in drawn.pieces] == [2, 2]
    assert chart([Line(Curve("x", "", ((0.0, None),)), "x", 0)], "x") is None


def test_scaling_is_read_as_it_was_printed() -> None:
    said = json.loads(json.dumps(GROWN.as_json()))
    assert parse_scaling(said, "f.json") == GROWN
    for wrong in ({}, [], {**said, "batch": "x"}, {**said, "rows": [{"hosts": 1}]}, {**said, "rows": 3}):
        with pytest.raises(BadInput, match="bench scaling"):
            parse_scaling(wrong, "f.json")


def test_a_report_without_a_host_is_one_json_document_with_the_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yaml").write_text("cluster: c\nimage: i\nhosts:\n  gpu1: {address: 10.0.0.1}\n")
    empty = replace(sample(), hosts=(), silent=(("gpu1", "no answer"),))
    monkeypatch.setattr(ClusterJob, "report", lambda self: empty)
    status, out, _ = run("report", "--json")
    found = json.loads(out)
    assert (status, found["error"]["what"], found["page"]) == (1, "no host of the job answered", None)
