"""`from toolkit import Cluster`: what needs no host."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import toolkit
import toolkit.jobs.code
import toolkit.jobs.control
from scripts.api_page import PARTS
from tests.unit import cluster_world as world
from tests.unit import docs_check
from tests.unit.conftest import Run
from tests.unit.container_world import PATIENCE_S, wait_for
from tests.unit.hosts_here import HostHere
from toolkit.api.cluster import Cluster
from toolkit.api.connection import ToolkitWarning
from toolkit.api.job import ClusterJob
from toolkit.bench.scaling import measure_all
from toolkit.bench.smoke import Smoke
from toolkit.cli.run import run as run_verb
from toolkit.cluster.probe_containers import InspectedImage
from toolkit.cluster.session import Session, observe_layout
from toolkit.core.finding import Finding
from toolkit.core.report import Outcome, PlanFailed, Report, refuse_failed
from toolkit.diagnose.evidence import Evidence
from toolkit.diagnose.verdict import Verdict
from toolkit.diagnose.why import Answer
from toolkit.errors import BadInput, NotReady, ToolkitError, Unreachable, UnreachableCause
from toolkit.export.prepare import BatchRequest
from toolkit.hostsfile.inventory import Host
from toolkit.jobs.request import Request
from toolkit.jobs.status import JobStatus
from toolkit.monitor.job_report import JobReport
from toolkit.predict.ask import Options
from toolkit.protocol.probes import ImageReport

SECRET = "hf_a1b2c3d4"
HOSTS = "cluster: t\nimage: toolkit:cpu\nhosts:\n  gpu1: {address: 10.9.8.7, slots: 1}\n"


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yaml"
    path.write_text(HOSTS)
    return path


def test_it_is_there_for_those_who_ask_and_costs_others_nothing() -> None:
    assert toolkit.Cluster is Cluster
    with pytest.raises(AttributeError, match="Clusters"):
        _ = toolkit.Clusters
    text = "import sys, toolkit; print(sorted(name for name in sys.modules if name.startswith('toolkit')))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['toolkit']"


def test_a_wrong_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing\.yaml"):
        Cluster(tmp_path / "nothing.yaml")


def test_a_wrong_request_is_refused_before_anything_is_contacted(hosts: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        Cluster(hosts).run("no-such.py", workdir=tmp_path, launcher="mpiruns", ranks=7)
    assert {problem.path for problem in caught.value.problems} >= {"--launcher", "no-such.py", "--np"}
    with pytest.raises(BadInput, match="gpu9"):
        Cluster(hosts).execute("gpu9", "true")


def test_findings_are_warnings_or_go_to_a_function(hosts: Path) -> None:
    finding = Finding("env", "warning", "is odd", "remove it", "gpu1", "env/X")
    with pytest.warns(ToolkitWarning, match="gpu1: env/X: is odd; fix: remove it"):
        Cluster(hosts).warn(finding)
    heard: list[Finding] = []
    Cluster(hosts, warn=heard.append).warn(finding)
    assert heard == [finding]


def test_a_plan_that_fails_names_every_host() -> None:
    good = Outcome("files", "write", "gpu1", "ok")
    bad = Outcome("files", "write", "gpu2", "failed", 0.0, "no room", "make room")
    assert refuse_failed(Report("up t", (good,))).ok
    with pytest.raises(PlanFailed, match="up t failed\n  gpu2: write: no room") as caught:
        refuse_failed(Report("up t", (good, bad)))
    assert caught.value.fix == "make room" and caught.value.report.failures == (bad,)


def test_each_fix_of_a_failed_plan_is_a_line_that_can_be_pasted() -> None:
    """An explanation after ``#`` must not swallow the next command."""
    fixes = ("df -h /  # free space on /", "sudo systemctl start docker")
    rows = [Outcome("files", "write", f"gpu{n}", "failed", 0.0, "no", fix) for n, fix in enumerate(fixes)]
    with pytest.raises(PlanFailed) as caught:
        refuse_failed(Report("up t", tuple(rows)))
    assert str(caught.value).splitlines()[-2:] == [f"  fix: {fix}" for fix in fixes]


def test_run_takes_what_the_verb_takes() -> None:
    ours = set(inspect.signature(Cluster.run).parameters) - {"self"}
    here_only = {
        "hosts",
        "on_interrupt",
        "detach",
        "fold",
        "no_check",
        "dry_run",
        "as_json",
        "verbose",
        "raw",
    }
    assert ours - {"check"} == set(inspect.signature(run_verb).parameters) - here_only


def test_what_a_notebook_shows_is_a_short_line_without_secrets(hosts: Path) -> None:
    hosts.write_text(f"{HOSTS}env: {{TOKEN: {SECRET}}}\n")
    cluster, job = Cluster(hosts), f"{SECRET} {'x' * 500}"
    status = JobStatus("j1", "failed", 1, 0.0, 2.0, job, command=("train.py", job), last_lines=(job,) * 40)
    said = tuple(Outcome("files", f"write {n}", "gpu1", "ok", 0.0, job) for n in range(500))
    answer = Answer(
        status, Evidence("j1", "failed", "", ("gpu1",) * 500, ()), Verdict("end", "slow " * 90, ""), (), {}
    )
    facts = replace(world.IMAGE, env=(("TOKEN", SECRET),))
    values = {
        "Cluster('t', 1 host)": cluster,
        "ImagePart(Cluster('t', 1 host))": cluster.image,
        "ClusterJob('j1')": ClusterJob(cluster, "j1"),
        "JobStatus('j1', 'failed', exit_code=1, 0 ranks)": status,
        "Report('up', ok, 500 steps, 500 changes)": Report("up", said),
        "Smoke(ok, 0 problems, '2 ranks')": Smoke((), (), "2 ranks"),
        f"InspectedImage('lab:1', '{facts.identity}')": InspectedImage(
            "lab:1", facts, ImageReport("/usr/bin/python3", (3, 12, 1), {}, ())
        ),
        "JobReport('j1', 'failed', 2.0 s)": JobReport(
            "demo", status, 2.0, (), (), None, (), (), (), (), None
        ),
    }
    assert {text: repr(value) for text, value in values.items()} == {text: text for text in values}
    assert re.fullmatch(r"Answer\('j1', 'slow [^\n]{,120} \[\.\.\.\]'\)", repr(answer))
    assert str(answer).startswith("j1: slow slow") and "no output for" in str(answer)
    assert SECRET not in repr((cluster.inventory, Host("gpu1", "gpu1", env=(("TOKEN", SECRET),))))


def test_every_verb_is_named_by_the_page_about_it() -> None:
    """The table says where each verb is from Python, and what it says is there."""
    verbs = set(docs_check.verbs())
    page = (Path(toolkit.__file__).parents[1] / "docs/how-to/python-api.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    named: set[str] = set()
    for cell, _ in rows:
        words = re.findall(r"`([^`]+)`", cell)
        group = words[0].partition(" ")[0] if " " in words[0] else ""
        named |= {word if " " in word or not group else f"{group} {word}" for word in words}
    second_names = {"bench predict", "bench tune"}
    assert verbs - named == {"shell", *second_names} and named <= verbs
    parts = {"cluster": Cluster, "job": ClusterJob, "Cluster": Cluster}
    kinds = {name: kind for name, kind in PARTS.items() if "." in name}
    for _, cell in rows:
        for owner, method in re.findall(r"`((?:\w+\.)+)(\w+)\(", cell):
            owner = owner.rstrip(".")
            if owner.startswith("toolkit"):
                assert callable(getattr(importlib.import_module(owner), method))
            else:
                assert callable(getattr(kinds.get(owner) or parts[owner], method)), (owner, method)


def test_a_prediction_is_that_of_the_verb(hosts: Path, run: Run) -> None:
    made = Cluster(hosts).predict(Options(model="resnet50", step_time="0.25s", rate=("1gbit",), up_to=4))
    _, out, _ = run(
        *("predict", "--hosts", str(hosts), "--model", "resnet50", "--step-time", "0.25s"),
        *("--rate", "1gbit", "--up-to", "4", "--json"),
    )
    told = json.loads(out)
    assert told["verdict"] == made.prediction.verdict
    assert [row["step"] for row in told["rows"]] == [asdict(row.step) for row in made.prediction.rows]
    with pytest.raises(BadInput, match="--model"):
        Cluster(hosts).predict(Options(model="no-such-model"))


def test_what_leaves_is_that_of_the_verb(hosts: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    request = Request(words=("train.py",), workdir=tmp_path, launcher="torchrun", secrets=False)
    batch = BatchRequest(request, gpus=2, slots=2)
    words = ("--hosts", str(hosts), "--workdir", str(tmp_path), "--launcher", "torchrun", "--json")
    for target, made in (
        ("slurm", Cluster(hosts).render_slurm(batch)),
        ("kubernetes", Cluster(hosts).render_kubernetes(batch)),
    ):
        _, out, _ = run("render", target, *words, "--gpus", "2", "--slots", "2", "train.py")
        assert json.loads(out)["files"] == made
    with pytest.raises(BadInput, match="cannot export a job with ray to Slurm"):
        Cluster(hosts).render_slurm(BatchRequest(replace(request, launcher="ray"), gpus=0))


def test_a_first_file_is_refused_before_anybody_is_contacted(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("mine\n")
    with pytest.raises(BadInput, match="exists already"):
        Cluster.init("gpu1", path=tmp_path / "hosts.yaml")
    with pytest.raises(BadInput) as caught:
        Cluster.init("a b", "gpu1:many", path=tmp_path / "other.yaml")
    assert {problem.path for problem in caught.value.problems} == {"a b", "gpu1:many"}
    with pytest.raises(BadInput, match="the list contains no host"):
        Cluster.init(path=tmp_path / "other.yaml")
    assert not (tmp_path / "other.yaml").exists() and (tmp_path / "hosts.yaml").read_text() == "mine\n"


def test_an_unknown_flavor_or_cuda_version_is_refused(hosts: Path) -> None:
    with pytest.raises(BadInput, match="tpu"):
        Cluster(hosts).image.build("tpu")
    with pytest.raises(BadInput, match="--cuda: should be 13 or 12, found 11"):
        Cluster(hosts).image.build("gpu", cuda=11)


def test_lines_that_nobody_takes_are_not_kept_without_end(
    hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, sent = Session(world.inventory()), []

    def endless(session: Session, job: str, sink: Callable[[bytes], None], excerpt: object) -> None:
        sink(b"a line\n")
        while not session.closed and len(sent) < 1000:
            sink(b"x" * (1 << 15))
            sent.append(1)

    monkeypatch.setattr("toolkit.api.job.follow", endless)
    monkeypatch.setattr(ClusterJob, "_connect", lambda job: session)
    monkeypatch.setattr(ClusterJob, "_status", lambda job, session: SimpleNamespace(id="j1"))
    lines = ClusterJob(Cluster(hosts), "j1").lines()
    assert next(lines) == "a line"
    wait_for(lambda: len(sent) >= 60)  # the queue has room for 64 pieces
    time.sleep(0.1)  # without a limit, all 1,000 would come in this time
    assert len(sent) < 100
    assert len(next(lines)) < 2 << 20, "a line without end comes in parts"
    lines.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("leave", ["break", "interrupt"])
def test_to_leave_the_lines_of_a_job_closes_its_connections(
    leave: str, hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, ended = Session(world.inventory()), threading.Event()

    def endless(session: Session, job: str, sink: Callable[[bytes], None], excerpt: object) -> None:
        while not session.closed:
            sink(b"a line\n")
            time.sleep(0.01)
        ended.set()

    monkeypatch.setattr("toolkit.api.job.follow", endless)
    monkeypatch.setattr(ClusterJob, "_connect", lambda job: session)
    monkeypatch.setattr(ClusterJob, "_status", lambda job, session: SimpleNamespace(id="j1"))
    lines = ClusterJob(Cluster(hosts), "j1").lines()
    assert next(lines) == "a line"
    if leave == "break":
        lines.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            lines.throw(KeyboardInterrupt())  # type: ignore[attr-defined]
    assert session.closed and ended.wait(PATIENCE_S)


def test_down_ends_jobs_first_and_goes_on_when_one_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    def stop(session: Session, job: str) -> None:
        did.append(f"stop {job}")
        if job == "a":
            raise NotReady("it cannot be ended", "")

    monkeypatch.setattr(toolkit.jobs.control, "running_jobs", lambda session: ["a", "b"])
    monkeypatch.setattr(toolkit.jobs.control, "stop", stop)
    toolkit.jobs.control.end_jobs(Session(world.inventory()), lambda job: did.append(f"tell {job}"))
    assert did == ["tell a", "stop a", "tell b", "stop b"]


def test_down_stops_a_job_where_it_runs_after_an_edit_of_main(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(world.inventory(world.HOSTS.replace("main: gpu1", "main: gpu2")))
    session.facts = world.facts_when_up()
    session.runners = {name: HostHere(name) for name in session.facts}  # type: ignore[misc]
    monkeypatch.setattr(Session, "open", lambda *_, **__: session)
    monkeypatch.setattr("toolkit.cluster.session.local_image", lambda *_: None)
    with Cluster(session.inventory).prepare_down() as prepared:
        assert prepared.session.inventory.main == "gpu1"
        assert prepared.session.main.container == "toolkit-demo-main"


def test_before_up_nobody_says_that_this_machine_lacks_the_image() -> None:
    session = Session(world.inventory())
    session.facts = {name: replace(facts, images=()) for name, facts in world.cluster_facts().items()}
    with pytest.raises(NotReady, match="the cluster is not up") as caught:
        observe_layout(session, running=True)
    assert (caught.value.fix, caught.value.exit_code) == ("toolkit up", 3)


def test_what_makes_no_sense_is_refused_before_anybody_is_contacted(hosts: Path) -> None:
    with pytest.raises(BadInput) as caught:
        Cluster(hosts).network.tune(backend="gloom", budget=1.0)
    assert {problem.path for problem in caught.value.problems} == {"--backend", "--budget"}
    with pytest.raises(BadInput, match="should be 1 or more"):
        measure_all(Session(world.inventory()), Request(words=("true",)), (0,), (1.0, 1.0, 1.0), print, print)


def test_where_no_host_answers_the_cure_says_whose_it_is() -> None:
    session = Session(world.inventory())
    session.errors = {name: NotReady("it is off", "switch it on", name) for name in ("gpu1", "gpu2")}
    with pytest.raises(ToolkitError) as caught:
        session.require_some()
    assert caught.value.what.splitlines()[1:] == ["  gpu1: it is off", "  gpu2: it is off"]
    assert caught.value.fix == "switch it on"
    session.errors["gpu2"] = NotReady("no key is accepted", "ssh-copy-id gpu2", "gpu2")
    with pytest.raises(ToolkitError) as caught:
        session.require_some()
    assert caught.value.fix == "toolkit check  # lists the fix for each host; for gpu1: switch it on"
    unknown = UnreachableCause.UNKNOWN_KEY
    session.errors = {n: Unreachable("not known", f"toolkit trust {n}", n, unknown) for n in ("gpu1", "gpu2")}
    with pytest.raises(ToolkitError) as caught:
        session.require_some()
    assert caught.value.fix == "toolkit trust gpu1 gpu2"
    more = ("head", *(f"gpu{number}" for number in range(1, 5)))
    session.errors = {n: Unreachable("not known", f"toolkit trust {n}", n, unknown) for n in more}
    with pytest.raises(ToolkitError) as caught:
        session.require_some()
    assert caught.value.fix == "toolkit trust head 'gpu[1-4]'", "zsh fails if no file has such a name"


def test_open_files_are_allowed_up_to_the_hard_limit() -> None:
    text = (
        "import resource\nfrom toolkit.cluster.connect import allow_open_files\n"
        "limit = resource.RLIMIT_NOFILE\nresource.setrlimit(limit, (100, 500))\n"
        "for number in (50, 300, 900):\n    allow_open_files(number, 500); print(*resource.getrlimit(limit))"
        "\nallow_open_files(900, 501)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["100 500", "300 500", "500 500"]
    assert "NotReady: your machine allows 500 open files per process" in done.stderr


def test_a_job_on_a_host_that_the_hosts_file_does_not_name() -> None:
    session = Session(world.inventory())
    session.facts = world.facts_when_up()
    with pytest.raises(NotReady, match=r"not in hosts\.yaml") as caught:
        session.container("gpu9")
    assert caught.value.host == "gpu9" and caught.value.fix
