"""Tests that fail on purpose and leave their hosts broken, each followed by one that must pass.

Started by test_care.py, in a pytest and on a practice cluster of their own.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.e2e import faults, waiting
from tests.e2e.world import Toolkit, containers, on, outer, sh

pytestmark = pytest.mark.lab
RULE = "INPUT -p tcp --dport 22 -j DROP"


def test_that_fails(up: Toolkit) -> None:
    up.run("run", "-d", "--workdir", "examples", "--", "sleep", "600", check=True)
    sh("box1", f"iptables -I {RULE}")
    on("box1", "docker", "pause", "toolkit-two-main")
    up.start("status")
    faults.power_off("box2")
    assert not "on purpose"


def test_that_follows(standing: Toolkit) -> None:
    assert "DROP" not in sh("box1", "iptables -S INPUT")
    assert containers("box2", "two", running=True) == ["toolkit-two-worker"]
    assert "all-reduce over 2 ranks" in standing.run("smoke", check=True).out
    # The job of `smoke` is listed too.
    states = {job["state"] for job in standing.run("jobs", "--json", check=True).json}
    assert not states & set(waiting.GOING), states


def test_that_fails_beyond_repair(up: Toolkit) -> None:
    sh("box1", "userdel trainer")
    subprocess.run(["docker", "pause", outer("box2")], check=True)
    assert not "on purpose"


def test_that_follows_a_new_lab(up: Toolkit) -> None:
    assert "trainer" in sh("box1", "id trainer")
    assert "all-reduce over 2 ranks" in up.run("smoke", check=True).out
