"""`toolkit report` on real hosts: a job that was started again, two jobs, and a host that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.world import Toolkit

pytestmark = pytest.mark.lab


@pytest.fixture
def up(standing: Toolkit) -> Toolkit:
    """The cluster of two hosts, which no test of this file changes."""
    return standing


# Rank 1 crashes once; every rank says how far it has come.
TRAINING = (
    "import os, time; rank, again = int(os.environ['RANK']), os.environ['TOOLKIT_RESTART'] != '0'\n"
    "for step in range(12):\n"
    "    print(f'step {step}, 32 samples/s', flush=True); time.sleep(0.5)\n"
    "    if rank == 1 and step == 5 and not again: os._exit(9)"
)


def test_a_job_that_was_started_again(up: Toolkit, tmp_path: Path) -> None:
    words = ("--launcher", "torchrun", "--max-restarts", "1", "--", "python", "-c", TRAINING)
    up.run("run", *words, check=True)
    page = tmp_path / "page.html"
    said = up.run("report", "--json", "-o", str(page), check=True).json
    assert (said["status"]["state"], said["silent"]) == ("succeeded", [])
    assert [attempt["reason"] for attempt in said["attempts"]] == [
        "rank 1 on box2 exited with code 9",
        "succeeded",
    ]
    phases = {(span["phase"], span["host"]) for span in said["preparation"]}
    assert {(phase, host) for phase in ("connect", "code") for host in ("box1", "box2")} <= phases
    assert ("start", "box1") in phases
    # The last `up` that changed something: what that was is another case's affair.
    brought = {span["phase"] for span in said["up"]}
    assert {"connect", "query and plan"} < brought, brought
    for rank in said["ranks"]:
        assert len(rank["starts"]) == 2 and rank["exit_code"] == 0
        assert (
            0
            < rank["starts"][0]
            < rank["first_step"]
            < rank["starts"][1]
            < rank["ended"]
            < said["seconds"] + 1
        )
    assert said["steps_per_s"] == pytest.approx(2.0, rel=0.5) and said["samples_per_s"] == 32
    for host in said["hosts"]:
        curves = {curve["name"]: curve for curve in host["curves"]}
        assert len(curves["CPU"]["points"]) >= 4 and curves["memory"]["points"][0][1] > 0
        assert dict(host["versions"])["torch"] and dict(host["versions"])["docker"]
    text = page.read_text()
    assert "1 restart" in text and "rank 1 on box2 exited with code 9" in text and "<script" not in text

    other = up.run("report", "--compare", said["status"]["id"], "-o", str(page), check=True)
    assert "times the samples/s" in other.out and "Versions that differ" in page.read_text()
    assert up.run("report", "no-such-job").status == 3
