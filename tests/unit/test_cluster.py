"""`from toolkit import Cluster`: what needs no host."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import toolkit
from toolkit.cli.run import run as run_verb
from toolkit.cluster import Cluster
from toolkit.cluster_connection import ToolkitWarning
from toolkit.cluster_job import ClusterJob
from toolkit.core.finding import Finding
from toolkit.core.report import Outcome, PlanFailed, Report, refuse_failed
from toolkit.errors import BadInput

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


def test_run_takes_what_the_verb_takes() -> None:
    ours = set(inspect.signature(Cluster.run).parameters) - {"self"}
    here_only = {"hosts", "on_interrupt", "detach", "fold", "no_check", "dry_run", "as_json", "verbose"}
    assert ours == set(inspect.signature(run_verb).parameters) - here_only


def test_a_job_shows_its_id(hosts: Path) -> None:
    assert repr(ClusterJob(Cluster(hosts), "j1")) == "ClusterJob('j1')"
