"""Builds of toolkit/inside that are broken on purpose, one for each invariant, and the schedules that notice.

python -m tests.fuzz.broken_builds
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import schedules

SEED = 2


class Build(NamedTuple):
    """A change of one line that breaks one invariant, and how many schedules may pass before one notices."""

    invariant: int
    file: str
    old: str
    new: str
    schedules: int = 100


BUILDS = (
    Build(1, "rank.py", 'f"rank-{place.rank}.exit"', 'f"rank-{place.local_rank}.exit"'),
    Build(2, "attempt.py", "if (late or astray) and", "if (late and not astray) and"),
    Build(3, "common.py", "LEASE_S = 10.0", "LEASE_S = 100.0"),
    Build(4, "common.py", "LOST_S = 4.0", "LOST_S = 1.0"),
    Build(5, "records.py", "return min(enumerate(records), key", "return max(enumerate(records), key"),
    Build(6, "variables.py", "path.unlink()  # before", "pass  # before"),
)


def notice(build: Build) -> tuple[int, str]:
    """Return how many schedules it takes until one breaks the invariant, and the first line of its report.

    Raises LookupError if none does in time, or the line is not in the source.
    """
    with tempfile.TemporaryDirectory(prefix="toolkit-broken-") as folder:
        inside = Path(folder) / "inside"
        shutil.copytree(schedules.INSIDE, inside, ignore=shutil.ignore_patterns("__pycache__"))
        text = (inside / build.file).read_text()
        if text.count(build.old) != 1:
            raise LookupError(f"{build.file} has {text.count(build.old)} times: {build.old}")
        (inside / build.file).write_text(text.replace(build.old, build.new))
        for number in range(build.schedules):
            schedule = schedules.make(random.Random(f"{SEED}/schedules/{number}"))
            try:
                schedules.run(schedule, inside)
            except schedules.Broken as error:
                first = str(error).partition("\n")[0]
                if f"invariant {build.invariant}:" in first:
                    return number + 1, first
    raise LookupError(f"no schedule of {build.schedules} notices that {build.new} stands in {build.file}")


def main() -> int:
    """Print what notices each build; return 1 if one is not noticed."""
    code = 0
    for build in BUILDS:
        try:
            count, first = notice(build)
            print(
                f"invariant {build.invariant}, {build.file}, {build.new}: {count} schedules: {first}",
                flush=True,
            )
        except LookupError as error:
            code = 1
            print(f"invariant {build.invariant}: {error}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
