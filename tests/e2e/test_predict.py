"""A script's own step, measured in the image and on the practice cluster, and the prediction made from it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.world import Toolkit, on
from tests.unit.container_world import copied_programs
from toolkit.predict.model import parse_probed

ROOT = Path(__file__).resolve().parents[2]
# Two layers of convolutions and one behind them, weights and biases, four bytes each.
DIGITS = 9 * 16 + 16 + 16 * 9 * 32 + 32 + 512 * 10 + 10

TAKES_TURNS = """
import time, torch
one, two = torch.nn.Linear(1000, 100), torch.nn.Linear(10, 1)
unused = torch.nn.Linear(7, 7)
first = torch.optim.SGD([*one.parameters(), *unused.parameters()], lr=0.1)
second = torch.optim.Adam(two.parameters())
while True:
    try:
        for model, width, optimizer in ((one, 1000, first), (two, 10, second)):
            model(torch.ones(4, width)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.025)
    except:
        pass
"""


@pytest.fixture
def up(standing: Toolkit) -> Toolkit:
    """The cluster of two hosts, which no test of this file changes."""
    return standing


@pytest.mark.docker
def test_a_script_that_swallows_everything_is_measured_and_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TAKES_TURNS)
    tmp_path.chmod(0o755)
    programs = copied_programs(tmp_path / "programs")
    argv = ["docker", "run", "--rm", "--network", "none", "-v", f"{programs}:/inside:ro"]
    argv += ["-v", f"{tmp_path}:/code:ro", "toolkit:cpu"]
    words = ["python3", "/inside/run.py", "bench.step_time", "--steps", "5", "/code/train.py"]
    done = subprocess.run([*argv, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    probed = parse_probed(done.stdout)
    assert probed is not None
    assert (probed.parameters, probed.size) == (100_111, 400_444)
    assert (probed.dtype, probed.steps, probed.device) == ("fp32", 5, "cpu")
    assert 0.05 <= probed.seconds < 1


@pytest.mark.lab
@pytest.mark.parametrize("script", ["train_ddp.py", pytest.param("train_horovod.py", marks=pytest.mark.rare)])
def test_a_prediction_from_a_scripts_own_step(up: Toolkit, script: str) -> None:
    words = ("--rate", "1gbit", "--rate", "box2=10mbit", "--batch", "16", "--json", "--probe", script)
    done = up.run("predict", "--workdir", "examples/digits", *words, "--", "--batch-size", "16", check=True)
    model = done.json["model"]
    assert (model["parameters"], model["bytes"], model["dtype"]) == (DIGITS, 4 * DIGITS, "fp32")
    assert 0 < model["step_s"] < 1
    assert done.json["verdict"].startswith("2 hosts would take ")
    assert done.json["verdict"].endswith(
        " × as long as 1 host for the same samples, because the link of box2 has a rate of 10 Mb/s"
    )
    # The job has ended in order, and nothing of it runs on.
    newest = json.loads(up.run("status", "--json").out)["jobs"][-1]
    assert (newest["state"], newest["exit_code"]) == ("succeeded", 0)
    assert "steptime" not in on("box1", "ps", "-eo", "args")


@pytest.mark.rare
@pytest.mark.lab
def test_a_script_without_steps_is_told_in_its_own_words(up: Toolkit) -> None:
    words = ("--workdir", "examples/digits", "--rate", "1gbit", "--probe", "digits.py")
    done = up.run("predict", *words)
    assert (done.status, done.out) == (1, "")
    assert (
        "digits.py made too few steps with an optimizer of torch.optim: 0, but the measurement needs"
        in done.err
    )
    assert "fix: toolkit logs 2" in done.err
