"""Runs a PyTorch script as one rank and measures a step: bytes of gradients, seconds from step to step.

    bench.step_time [--steps N] [--warm-up N] [--limit SECONDS] SCRIPT [ARGUMENTS...]

Every optimizer's step is seen through PyTorch's own hooks, whatever the script makes of it: plain PyTorch,
DistributedDataParallel, Horovod. After enough steps the script is ended, and one line that begins with
"toolkit-steptime" says as JSON what was seen. Needs nothing but PyTorch 2.
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
from pathlib import Path
from typing import Any

MARK = "toolkit-steptime"
LEAST_STEPS = 2  # below this a median says nothing
RAISED_OFTEN = 3  # how often a script may swallow its end before it is ended without being asked


class Enough(BaseException):
    """Ends the script; not an Exception, so that `except Exception` in a training loop lets it pass."""


class Meter:
    """Counts gradients and takes the time at the steps of the optimizer that stepped first.

    Where several optimizers take turns, a step is from one turn of the first to its next.
    """

    def __init__(self, steps: int, warm_up: int, limit: float, now: Callable[[], float]) -> None:
        self.steps, self.warm_up, self.limit = steps, warm_up, limit
        self._now = now
        self._first: int | None = None
        self._nested = 0
        self._seen: dict[int, Any] = {}
        self.marks: list[float] = []

    def before(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Take note of every parameter that has a gradient now; called as an optimizer begins its step."""
        self._nested += 1
        # Horovod's optimizer steps the one that it wraps: the same step seen twice.
        if self._nested == 1:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._seen[id(parameter)] = parameter

    def after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Take the time; raises Enough when there is nothing left to learn."""
        self._nested -= 1
        if self._nested:
            return
        if self._first is None:
            self._first = id(optimizer)
        if id(optimizer) != self._first:
            return
        if not self.enough():  # a script that swallows its end goes on, but nothing more is taken
            self.marks.append(self._now())
        if self.enough():
            raise Enough

    def enough(self) -> bool:
        """Whether all steps were seen, or a few and the time is up."""
        if len(self.marks) > self.warm_up + self.steps:
            return True
        slow = len(self.marks) > 1 and self.marks[-1] - self.marks[0] > self.limit
        return slow and len(self.marks) > LEAST_STEPS

    def durations(self) -> list[float]:
        """Seconds of each step without those of the warm-up; all that there are when they are few."""
        every = [later - earlier for earlier, later in zip(self.marks, self.marks[1:], strict=False)]
        rest = every[self.warm_up :]
        return rest if len(rest) >= LEAST_STEPS else every[-LEAST_STEPS:]

    def gradients(self) -> dict[str, int]:
        """Bytes of gradients by kind, such as {"float32": 102228128}."""
        sizes: dict[str, int] = {}
        for parameter in self._seen.values():
            # A gradient may have been dropped since; it had the parameter's kind and shape.
            kind = str(parameter.dtype).removeprefix("torch.")
            sizes[kind] = sizes.get(kind, 0) + parameter.numel() * parameter.element_size()
        return sizes

    def result(self, device: str) -> dict[str, object] | None:
        """What was seen, None when that was too little."""
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
    """Run the script as its own program would; returns its exit code, 0 when it was ended by the meter."""
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
    """Forget the modules of toolkit, so that a script that imports one of this name gets its own."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "toolkit"]:
        del sys.modules[name]


def leave_mpi() -> None:
    """Leave MPI in order where the script is in it: mpirun calls any other end a failure."""
    if horovod := sys.modules.get("horovod.torch"):
        horovod.shutdown()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def main() -> int:
    parser = argparse.ArgumentParser(description="measure a step of a training script on one slot")
    parser.add_argument("--steps", type=int, default=10, help="steps to measure")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before these, which are often slower")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which fewer steps will do")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    # Without a launcher the world is this process.
    world = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    if "RANK" not in os.environ:
        os.environ.update(world, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        print("bench.step_time measures one rank alone; start it with one", file=sys.stderr)
        return 64

    import torch
    from torch.optim import optimizer as hooks

    def now() -> float:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the GPU works on after the step's call has returned
        return time.perf_counter()

    def finish(code: int) -> int:
        gpu = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu"
        result = meter.result(gpu) if code == 0 else None
        if result is not None:
            print(f"{MARK} {json.dumps(result)}")
        elif code == 0:
            print(
                f"{options.script}: {len(meter.marks)} steps of an optimizer of torch.optim were seen; "
                f"at least {LEAST_STEPS + 1} are needed",
                file=sys.stderr,
            )
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
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
    # Not the interpreter's own end: DDP and Horovod have threads at work, which abort it now and then.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
