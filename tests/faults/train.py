"""The tested job: an all-reduce each step, a checkpoint every few steps, until it is asked to finish.

In FOLDER, which all hosts share, rank 0 writes a file for each step. A file there named exit-RANK makes a
rank exit, balloon-RANK makes it take memory without end, and finish ends the job with 0. Checkpoints go to
DISK (default: FOLDER).
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(os.environ["FOLDER"])
DISK = Path(os.environ.get("DISK", FOLDER))
STEP_S = 0.15
LONGEST_S = 150  # limit for a job that is not ended from outside
EVERY, PIECES, PIECE = 3, 10, 200_000


def by_mpi() -> Callable[[float], float]:
    from mpi4py import MPI  # type: ignore[import-not-found]

    world = MPI.COMM_WORLD
    return lambda value: float(world.allreduce(value))


def by_gloo() -> Callable[[float], float]:
    import torch  # type: ignore[import-not-found]
    import torch.distributed as dist  # type: ignore[import-not-found]

    dist.init_process_group("gloo")

    def total(value: float) -> float:
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor)
        return float(tensor[0])

    return total


def rest(seconds: float) -> None:
    """Sleep with a call that libfaketime does not replace. With a clock that is ahead by date only, its
    replacement of the call behind time.sleep refuses every length (EINVAL; 0.9.10).
    """
    select.select([], [], [], seconds)


def save(step: int) -> None:
    """Write a checkpoint that a crash leaves complete or absent, and keep two."""
    body = f"step {step} ".encode() * (PIECES * PIECE // 10)
    half = DISK / f"half-{step}"
    (FOLDER / half.name).touch()
    with half.open("wb") as file:
        file.write(hashlib.sha256(body).hexdigest().encode())
        for start in range(0, len(body), PIECE):
            file.write(body[start : start + PIECE])
            file.flush()
            rest(0.02)
        os.fsync(file.fileno())
    half.rename(DISK / f"ckpt-{step}")
    for old in sorted(DISK.glob("ckpt-*"), key=lambda path: int(path.name.split("-")[1]))[:-2]:
        old.unlink()


def asked() -> None:
    if (FOLDER / f"exit-{RANK}").exists():
        print("a file asks this rank to exit")
        sys.exit(3)
    if (FOLDER / f"balloon-{RANK}").exists():
        print("a file asks this rank to take memory")
        taken: list[Any] = []
        while True:
            taken.append(os.urandom(1 << 20) * 16)


def main() -> None:
    def end(_signum: int, _frame: object) -> None:
        rest(0.4)
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
    total = by_gloo() if os.environ.get("TORCHELASTIC_RUN_ID") else by_mpi()
    started = time.monotonic()
    finish, step = 0.0, 0
    while finish == 0 and time.monotonic() < started + LONGEST_S:
        step += 1
        asked()
        rest(STEP_S)
        finish = total(float(RANK == 0 and (FOLDER / "finish").exists()))
        if RANK == 0:
            (FOLDER / f"step-{step}").touch()
            print(f"step {step}")
            if step % EVERY == 0:
                save(step)
    print(f"finished at step {step}")


if __name__ == "__main__":
    # An exit that is left to Python waits in MPI_Finalize for the ranks that go on, and now and then it is
    # ended by Gloo's threads, which are still there: both on purpose, and neither is what is tried here.
    try:
        main()
        if mpi := sys.modules.get("mpi4py.MPI"):
            mpi.Finalize()  # without it mpirun calls any end a failure
        sys.stdout.flush()
        os._exit(0)
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(end.code or 0))
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
