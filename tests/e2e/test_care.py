"""A failed test does not make the next one fail: what it leaves broken on its hosts is repaired (care.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.world import LAB

pytestmark = [pytest.mark.lab, pytest.mark.rare]


def test_the_test_after_a_failed_one_has_healthy_hosts(tmp_path: Path) -> None:
    name = f"{LAB}-care"
    # The tests below are in no share.
    env = {**os.environ, "TOOLKIT_TEST_LAB": name, "TOOLKIT_KEEP_LAB": "0", "TOOLKIT_TEST_SHARE": ""}
    words = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-v", "--basetemp", str(tmp_path / "own")]
    done = subprocess.run(
        [*words, str(Path(__file__).with_name("spoils.py"))], env=env, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "2 failed, 2 passed" in said, said
    _, _, repairs = said.partition("practice clusters after failed tests")
    for repair in (
        f"box2 of lab {name} was exited: started",
        "box1: removed the rule -A INPUT -p tcp",
        "box1: woke paused containers",
        f"box2 of lab {name} was paused: started",
        f"lab {name} is made again, since it could not be repaired",
    ):
        assert repair in repairs, said
