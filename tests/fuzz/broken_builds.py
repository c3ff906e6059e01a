"""Builds that are broken on purpose, and the random input that notices.

Builds of toolkit/container are broken in one invariant each, and schedules notice. Builds of the client are
broken in its decoder, its filter, its local writer or its limits, and answers of hosts notice.

python -m tests.fuzz.broken_builds
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import schedules

SEED = 2
ROOT = Path(__file__).resolve().parents[2]


class Build(NamedTuple):
    """A change of one line that breaks one invariant.

    Args:
        first: number of the first schedule. One soon after it notices the change, so that tests are quick.
        schedules: how many may pass before one notices.
    """

    invariant: int
    file: str
    old: str
    new: str
    first: int = 0
    schedules: int = 100


BUILDS = (
    Build(1, "job/rank.py", 'f"rank-{rank}.exit"', 'f"rank-{rank // 2}.exit"'),
    Build(2, "job/attempt.py", "if (is_late or astray) and", "if (is_late and not astray) and", 23),
    Build(3, "conventions.py", "LEASE_S = 10.0", "LEASE_S = 100.0", 59),
    Build(4, "conventions.py", "LOST_S = 4.0", "LOST_S = 1.0", 19),
    Build(5, "job/rank_records.py", "min(enumerate(records), key", "max(enumerate(records), key"),
    Build(6, "job/variables.py", "path.unlink()  # before", "pass  # before"),
)


class Client(NamedTuple):
    """A change of one line of the client, words of the report that notices it, and verbs that reach it.

    Args:
        kind: of the changes of answers; empty for all of them.
        first: number of the first case. One soon after it notices the change, so that tests are quick.
    """

    file: str
    old: str
    new: str
    words: str
    verbs: tuple[str, ...]
    cases: int = 400
    kind: str = ""
    first: int = 0


CLIENTS = (
    Client(
        "protocol/decode.py",
        "if len(text) > _DIGITS:",
        "if not text:",
        "ValueError",
        ("status", "jobs"),
        kind="json raw",
    ),
    Client(
        "core/printable.py",
        '_UNSAFE = re.compile("[\\x00-\\x08\\x0b-\\x1f',
        '_UNSAFE = re.compile("[',
        "control characters",
        ("status", "check"),
    ),
    Client(
        "core/local_writer.py",
        'any(part in ("", ".", "..")',
        'any(part in ("", ".")',
        "owned",
        ("down", "api down"),
    ),
    Client(
        "remote/ssh.py", "if left <= 0:", "if left <= -1e9:", "outlives its limit", ("status", "exec", "gc")
    ),
    Client(
        "remote/ssh.py",
        "_MOST_BYTES = 32 << 20",
        "_MOST_BYTES = 32 << 30",
        "memory grew",
        ("status", "jobs"),
    ),
    Client(
        "remote/fanout.py",
        "errors[key] = error",
        "raise",
        "reports nothing of",
        ("status", "image ls"),
        first=48,
    ),
)

_CASES = """
import json, sys
from tests.fuzz.answers import many
seed, first, cases, verbs, kind = json.loads(sys.argv[1])
print(json.dumps(many(seed, range(first, first + cases), tuple(verbs), 1, kind).failures))
"""


def notice_client(build: Client, verbs: tuple[str, ...] | None = None) -> tuple[str, str]:
    """Return the case that notices a build of the client, and the first line of its report.

    Args:
        verbs: those of the build by default.

    Raises:
        LookupError: none notices it, or the line is not in the source.
    """
    with tempfile.TemporaryDirectory(prefix="toolkit-broken-") as folder:
        for path in ROOT.iterdir():
            if path.name != "toolkit" and not path.name.startswith("."):
                Path(folder, path.name).symlink_to(path)
        # With the compiled modules: Python compiles the changed one again, because its time differs. Without
        # those that other tests are compiling, which get another name meanwhile.
        shutil.copytree(ROOT / "toolkit", Path(folder, "toolkit"), ignore=shutil.ignore_patterns("*.pyc.*"))
        file = Path(folder, "toolkit", build.file)
        text = file.read_text()
        if text.count(build.old) != 1:
            raise LookupError(f"{build.file} has {text.count(build.old)} times: {build.old}")
        file.write_text(text.replace(build.old, build.new))
        words = json.dumps([SEED, build.first, build.cases, verbs or build.verbs, build.kind])
        done = subprocess.run(
            [sys.executable, "-c", _CASES, words], cwd=folder, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise LookupError(f"the cases cannot be run: {done.stderr[-2000:]}")
    for failure in json.loads(done.stdout):
        first = next(line for line in failure.splitlines() if line.startswith("--- broken"))
        if build.words in first:
            case = first.partition("number ")[2].partition(":")[0]
            return case, first
        raise LookupError(f"{build.file}, {build.new}: something else is noticed: {first}")
    raise LookupError(f"no case of {build.cases} notices {build.new} in {build.file}")


def notice(build: Build) -> tuple[int, str]:
    """Return how many schedules it takes until one breaks the invariant, and the first line of its report.

    Raises LookupError if none does in time, or the line is not in the source.
    """
    with tempfile.TemporaryDirectory(prefix="toolkit-broken-") as folder:
        programs = Path(folder) / "container"
        shutil.copytree(schedules.PROGRAMS, programs, ignore=shutil.ignore_patterns("__pycache__"))
        text = (programs / build.file).read_text()
        if text.count(build.old) != 1:
            raise LookupError(f"{build.file} has {text.count(build.old)} times: {build.old}")
        (programs / build.file).write_text(text.replace(build.old, build.new))
        for number in range(build.first, build.first + build.schedules):
            schedule = schedules.make(random.Random(f"{SEED}/schedules/{number}"))
            try:
                schedules.run(schedule, programs)
            except schedules.Broken as error:
                first = str(error).partition("\n")[0]
                if f"invariant {build.invariant}:" in first:
                    return number + 1 - build.first, first
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
    for client in CLIENTS:
        try:
            case, first = notice_client(client)
            print(f"{client.file}, {client.new}: case {case}: {first}", flush=True)
        except LookupError as error:
            code = 1
            print(error, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
