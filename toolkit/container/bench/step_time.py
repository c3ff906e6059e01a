"""Runs a PyTorch script as one rank and measures its steps: bytes of gradients, seconds per step.

    bench.step_time [--steps N] [--warm-up N] [--limit SECONDS] SCRIPT [ARGUMENTS...]

PyTorch's own hooks report every optimizer step, for plain PyTorch, DistributedDataParallel and Horovod. After
enough steps the script is ended, and one line with the prefix "toolkit-steptime" contains the result as JSON.
Needs only PyTorch 2.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = "toolkit-steptime"
LEAST_STEPS = 2  # below this a median is meaningless
RAISED_OFTEN = 3  # number of times that a script can catch Enough before its process is exited


class Enough(BaseException):
    """End of the script; not an Exception, so that `except Exception` in a loop does not catch it."""


class Meter:
    """Meter of gradients and times at the steps of the optimizer that stepped first.

    If several optimizers take turns, a step lasts from one turn of the first optimizer to its next.
    """

    def __init__(self, steps: int, warm_up: int, limit: float, now: Callable[[], float]) -> None:
        self.steps, self.warm_up, self.limit = steps, warm_up, limit
        self._now = now
        self._first: int | None = None
        self._nested = 0
        self._seen: dict[int, Any] = {}
        self.marks: list[float] = []

    def before(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Record every parameter that has a gradient now; called before an optimizer's step."""
        self._nested += 1
        # Horovod's optimizer steps the one that it wraps, so the same step is reported twice.
        if self._nested == 1:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._seen[id(parameter)] = parameter

    def after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Record the time; raise Enough after the last measured step."""
        self._nested -= 1
        if self._nested:
            return
        if self._first is None:
            self._first = id(optimizer)
        if id(optimizer) != self._first:
            return
        if not self.enough():  # a script that catches Enough continues, but is no longer measured
            self.marks.append(self._now())
        if self.enough():
            raise Enough

    def enough(self) -> bool:
        """Return whether all steps were measured, or some and the time is up."""
        if len(self.marks) > self.warm_up + self.steps:
            return True
        slow = len(self.marks) > 1 and self.marks[-1] - self.marks[0] > self.limit
        return slow and len(self.marks) > LEAST_STEPS

    def durations(self) -> list[float]:
        """Return the seconds of each step without the warm-up; if there are few, of all steps."""
        every = [later - earlier for earlier, later in zip(self.marks, self.marks[1:], strict=False)]
        rest = every[self.warm_up :]
        return rest if len(rest) >= LEAST_STEPS else every[-LEAST_STEPS:]

    def gradients(self) -> dict[str, int]:
        """Return bytes of gradients by type, such as {"float32": 102228128}."""
        sizes: dict[str, int] = {}
        for parameter in self._seen.values():
            # A gradient can have been dropped since; it had the parameter's type and shape.
            kind = str(parameter.dtype).removeprefix("torch.")
            sizes[kind] = sizes.get(kind, 0) + parameter.numel() * parameter.element_size()
        return sizes

    def result(self, device: str) -> dict[str, object] | None:
        """Return the result, None if there are too few steps."""
        durations = self.durations()
        if len(durations) < LEAST_STEPS or not self._seen:
            return None
        return {
            "parameters": sum(parameter.numel() for parameter in self._seen.values()),
            "gradients": self.gradients(),
            "seconds": statistics.median(durations),
            "least": min(durations),
            "most": max(durations),
            "steps": len(durations),
            "device": device,
        }


def run_script(script: str, arguments: list[str]) -> int:
    """Run the script as the main program; return its exit code, 0 if the meter ended it."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except Enough:
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def hide_toolkit() -> None:
    """Remove the modules of toolkit, so that a script with modules of the same names imports its own."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "toolkit"]:
        del sys.modules[name]


def leave_mpi() -> None:
    """Finalize MPI if the script uses it: mpirun reports any other exit as a failure."""
    if horovod := sys.modules.get("horovod.torch"):
        horovod.shutdown()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def main() -> int:
    parser = argparse.ArgumentParser(description="measure the step time of a training script on one slot")
    parser.add_argument("--steps", type=int, default=10, help="number of measured steps (default: 10)")
    parser.add_argument(
        "--warm-up",
        type=int,
        default=3,
        help="number of warm-up steps before the measured steps (default: 3)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=60.0,
        help="stop after SECONDS, even if fewer steps were measured, but measure at least 2 steps "
        "(default: 60)",
    )
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    # Without a launcher, this process is the complete world.
    world = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    if "RANK" not in os.environ:
        os.environ.update(world, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        print("bench.step_time measures a single rank, so start only one rank", file=sys.stderr)
        return 64

    import torch
    from torch.optim import optimizer as hooks

    # The script can replace or close its streams.
    output, errors = os.dup(1), os.dup(2)

    def now() -> float:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the GPU continues after the step's call has returned
        return time.perf_counter()

    def finish(code: int) -> int:
        gpu = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu"
        result = meter.result(gpu) if code == 0 else None
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the script can have closed the stream
                stream.flush()
        if result is not None:
            os.write(output, f"{MARK} {json.dumps(result)}\n".encode())
        elif code == 0:
            why = (
                f"{options.script} made too few steps with an optimizer of torch.optim: "
                f"{len(meter.marks)}, but the measurement needs at least {LEAST_STEPS + 1}\n"
            )
            os.write(errors, os.fsencode(why))
            code = 1
        if code == 0:
            leave_mpi()
        return code

    raised = 0

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal raised
        try:
            meter.after(optimizer, args, kwargs)
        except Enough:
            raised += 1
            if raised > RAISED_OFTEN:
                os._exit(finish(0))
            raise

    meter = Meter(options.steps, options.warm_up, options.limit, now)
    hooks.register_optimizer_step_pre_hook(meter.before)
    hooks.register_optimizer_step_post_hook(after)
    hide_toolkit()
    code = finish(run_script(options.script, options.arguments))
    # Not the interpreter's own exit: running threads of DDP and Horovod sometimes abort it.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
