"""`from toolkit import Cluster` on real hosts: the example as it is, and what it leaves out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.world import Toolkit, containers
from toolkit import Cluster
from toolkit.errors import NotReady, ToolkitError

pytestmark = pytest.mark.lab
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster.py"
SLEEPS = """
import os, time
print('step 1 of rank', os.environ['RANK'], os.environ['WORD'], flush=True)
time.sleep(99)
"""


@pytest.fixture
def up(standing: Toolkit) -> Toolkit:
    """The cluster of two hosts, which no test of this file changes."""
    return standing


@pytest.mark.filterwarnings("ignore::toolkit.api.connection.ToolkitWarning")
def test_a_job_from_python(up: Toolkit, tmp_path: Path) -> None:
    cluster = Cluster(up.hosts)
    assert cluster.up().changes == 0 and [state.ok for state in cluster.status()] == [True, True]
    (tmp_path / "train.py").write_text(SLEEPS)
    job = cluster.run("train.py", workdir=tmp_path, launcher="torchrun", env={"WORD": "from here"})
    lines = job.lines()
    seen = [next(lines), next(lines)]
    assert sorted(line.partition("step")[2] for line in seen) == [f" 1 of rank {n} from here" for n in (0, 1)]
    with pytest.raises(NotReady, match="still runs after 1 s"):
        job.wait(timeout=1)
    assert cluster.job().id == job.id and not job.status().final and "rank 1" in job.log(rank=1)
    assert {rank for gauges in cluster.gauges()[0] for rank in (one.rank for one in gauges.ranks)} == {0, 1}
    verdict = job.why().verdict
    assert verdict.kind in ("sleep", "code", "runs"), verdict
    assert cluster.execute("box2", "hostname").ok
    rows = cluster.image.rows()
    assert [(row.host, row.state) for row in rows if row.kind == "wanted"] == [
        ("box1", "whole"),
        ("box2", "whole"),
    ]
    assert cluster.image.prune().ok and all(host.address for host in cluster.network.explain().hosts)
    assert {"box1/compose.yaml", "box2/compose.yaml"} <= set(cluster.render("compose"))
    assert job.stop(grace=1.0).state == "stopped" == job.stop().state
    assert any(line.startswith("[toolkit] stopped") for line in lines)
    assert job.report().status.state == "stopped"
    job.get("train.py", into=tmp_path / "back")
    assert (tmp_path / "back" / "train.py").read_text() == SLEEPS
    with pytest.raises(ToolkitError, match="there is no job"):
        cluster.job("no-such")


@pytest.mark.rare
def test_the_example_as_it_is(up: Toolkit) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=up.env, cwd=up.folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded 0" in done.stdout and "cores at most" in done.stdout
    assert [containers(host, "up") for host in ("box1", "box2")] == [[], []]
    up.run("up", check=True)
