"""The meter of steptime.py, fed as PyTorch's hooks feed it; tests/e2e/test_predict.py has PyTorch itself."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_world import INSIDE
from toolkit.container.bench import step_time as steptime


@dataclass
class Parameter:
    """The part of torch.nn.Parameter that the meter uses."""

    count: int
    grad: object = True
    dtype: str = "torch.float32"
    width: int = 4

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return self.width


@dataclass
class Optimizer:
    parameters: list[Parameter]
    param_groups: list[dict[str, list[Parameter]]] = field(init=False)

    def __post_init__(self) -> None:
        self.param_groups = [{"params": self.parameters[:1]}, {"params": self.parameters[1:]}]


def turns(meter: Any, *optimizers: Optimizer) -> int:
    """Step the optimizers in turn until the meter has enough; return how many rounds that took."""
    for rounds in itertools.count(1):
        for optimizer in optimizers:
            meter.before(optimizer, (), {})
            try:
                meter.after(optimizer, (), {})
            except BaseException as end:
                assert type(end).__name__ == "Enough"
                return rounds
    raise AssertionError


def clock(*steps: float) -> Any:
    """A clock that goes on by these, the last one for ever."""
    times = itertools.accumulate(itertools.chain(steps, itertools.repeat(steps[-1])))
    return lambda: next(times)


def test_what_has_a_gradient_is_counted_once() -> None:
    half = Parameter(100, dtype="torch.bfloat16", width=2)
    meter = steptime.Meter(4, 1, 60, clock(0.5))
    turns(meter, Optimizer([Parameter(1000), half, Parameter(7, grad=None)]))
    result = meter.result("cpu")
    assert result["parameters"] == 1100
    assert result["gradients"] == {"float32": 4000, "bfloat16": 200}
    assert json.loads(json.dumps(result)) == result


def test_the_warm_up_is_left_out_and_the_median_taken() -> None:
    meter = steptime.Meter(4, 2, 1e9, clock(0, 9, 5, 1, 1, 30, 2, 1))
    assert turns(meter, Optimizer([Parameter(1)])) == 7
    assert meter.durations() == [1, 1, 30, 2]
    result = meter.result("cpu")
    assert (result["seconds"], result["least"], result["most"], result["steps"]) == (1.5, 1, 30, 4)


def test_a_wrapped_optimizer_steps_once() -> None:
    """Horovod's calls the one that it wraps, and both are seen."""
    inner = outer = Optimizer([Parameter(10)])
    meter = steptime.Meter(3, 1, 60, clock(1))
    for _ in range(3):
        for begins in (outer, inner):
            meter.before(begins, (), {})
        for ends in (inner, outer):
            meter.after(ends, (), {})
    assert len(meter.marks) == 3
    assert meter.gradients() == {"float32": 40}


def test_optimizers_that_take_turns_make_one_step_together() -> None:
    meter = steptime.Meter(3, 1, 60, clock(1))
    assert turns(meter, Optimizer([Parameter(10)]), Optimizer([Parameter(5)])) == 5
    assert meter.result("cpu")["parameters"] == 15


def test_slow_steps_are_fewer() -> None:
    meter = steptime.Meter(10, 3, 60, clock(40))
    assert turns(meter, Optimizer([Parameter(1)])) == 3
    result = meter.result("cpu")
    assert (result["steps"], result["seconds"]) == (2, 40)


def test_steps_after_the_end_of_the_measurement_are_not_counted() -> None:
    meter = steptime.Meter(2, 1, 60, clock(1))
    one = Optimizer([Parameter(1)])
    turns(meter, one)
    seen = list(meter.marks)
    assert turns(meter, one) == 1
    assert meter.marks == seen


@pytest.mark.parametrize(
    ("steps", "parameters"), [(0, [Parameter(1)]), (1, [Parameter(1)]), (9, [Parameter(1, grad=None)])]
)
def test_too_little_is_no_result(steps: int, parameters: list[Parameter]) -> None:
    meter = steptime.Meter(20, 1, 60, clock(1))
    one = Optimizer(parameters)
    for _ in range(steps):
        meter.before(one, (), {})
        meter.after(one, (), {})
    assert meter.result("cpu") is None


def test_the_script_runs_as_its_own_program_would(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("NAME = 'found'\n")
    (tmp_path / "toolkit.py").write_text("NAME = 'own'\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, helper, toolkit\nif __name__ == '__main__':\n"
        "    print(helper.NAME, toolkit.NAME, sys.argv[1:])\n    sys.exit(3)\n"
    )
    code = (
        f"import sys; sys.path[0] = {str(INSIDE)!r}; from toolkit.container.bench import step_time\n"
        "step_time.hide_toolkit()\n"
        f"sys.exit(step_time.run_script({str(script)!r}, ['--epochs', '2']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "found own ['--epochs', '2']\n")


def test_a_script_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv, path = list(sys.argv), list(sys.path)
    try:
        (tmp_path / "bad.py").write_text("raise ValueError('no data')\n")
        assert steptime.run_script(str(tmp_path / "bad.py"), []) == 1
        (tmp_path / "words.py").write_text("raise SystemExit('no data')\n")
        assert steptime.run_script(str(tmp_path / "words.py"), []) == 1
        (tmp_path / "good.py").write_text("raise SystemExit\n")
        assert steptime.run_script(str(tmp_path / "good.py"), []) == 0
    finally:
        sys.argv, sys.path[:] = argv, path
    assert "ValueError: no data" in capsys.readouterr().err


# The part of PyTorch that the program uses, for an interpreter without it.
_TORCH = {
    "__init__.py": "from torch import cuda, optim\n",
    "cuda.py": "def is_initialized():\n    return False\n",
    "optim/__init__.py": "from torch.optim import optimizer\n",
    "optim/optimizer.py": (
        "before, after = [], []\n"
        "register_optimizer_step_pre_hook, register_optimizer_step_post_hook = before.append, after.append\n"
    ),
}
_STEPS = """
import contextlib, sys
from types import SimpleNamespace as New
from torch.optim.optimizer import after, before
weight = New(grad=True, dtype="torch.float32", numel=lambda: 5, element_size=lambda: 4)
optimizer = New(param_groups=[{"params": [weight]}])
def train(steps):
    for step in range(steps):
        before[0](optimizer, (), {})
        after[0](optimizer, (), {})
"""


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("train(100)", 0),
        ("sys.stdout = open('own.log', 'w')\ntrain(100)", 0),
        ("with open('own.log', 'w') as sys.stdout:\n    train(100)", 0),
        ("sys.stdout = sys.stderr = None\ntrain(100)", 0),
        ("sys.stdout.close(); sys.stderr.close()\ntrain(2)", 1),
    ],
)
def test_the_result_does_not_depend_on_the_streams_of_the_script(
    tmp_path: Path, script: str, code: int
) -> None:
    for name, text in _TORCH.items():
        path = tmp_path / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "train.py").write_text(_STEPS + script)
    program = (
        f"import sys; sys.path[:0] = [{str(INSIDE)!r}, {str(tmp_path)!r}]; sys.argv = ['x', 'train.py']\n"
        "from toolkit.container.bench import step_time; sys.exit(step_time.main())"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    if code:
        assert "train.py made too few steps with an optimizer of torch.optim: 2" in done.stderr
    else:
        mark, _, result = done.stdout.partition(" ")
        assert (mark, json.loads(result)["parameters"], done.stderr) == (steptime.MARK, 5, "")
