"""Try random input.

usage: python -m tests.fuzz [-n NUMBER] [--seed SEED] [--first NUMBER] [--kind KIND] [--jobs NUMBER]
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import answers, command_lines, exports, hosts_files, schedules

KINDS = ("files", "lines", "schedules", "exports", "answers")
_MOST_FAILURES = 10

# From seed and number to what was tried and how it ended.
Try = Callable[[random.Random], tuple[object, Callable[[], str]]]


def main() -> int:
    """Try every input; return 0 when none broke anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("-n", type=int, default=2000, help="how many of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--kind", choices=KINDS, help="one kind alone")
    parser.add_argument("--jobs", type=int, default=2, help="processes for answers, which take longest")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _all(given)
    except KeyboardInterrupt:
        return 130


def _all(given: argparse.Namespace) -> int:
    failures = 0
    if given.kind in (None, "answers"):
        failures += _answers(given.n, given.seed, given.first, given.jobs)
    with tempfile.TemporaryDirectory(prefix="toolkit-fuzz-") as folder:
        answers.settle(Path(folder).resolve() / "box")
        for kind in KINDS[:-1]:
            if given.kind in (None, kind):
                failures += _run(kind, given.n, given.seed, given.first, Path(folder).resolve())
    return 1 if failures else 0


def _answers(count: int, seed: int, first: int, jobs: int) -> int:
    """Judge answers of hosts, in processes of their own, and print a table; return how many cases failed."""
    start = time.monotonic()
    so_far = answers.Tally()
    tried = 0

    def progress(done: int, tally: answers.Tally) -> None:
        nonlocal so_far, tried
        so_far, tried = tally, done
        print(f"answers: {done} of {count} tried, {len(tally.failures)} broken", file=sys.stderr, flush=True)

    interrupted = None
    try:
        so_far = answers.in_processes(seed, first, count, jobs, progress)
    except KeyboardInterrupt as error:
        interrupted = error
    print("".join(so_far.failures) + answers.table(so_far))
    outcomes: Counter[str] = Counter()
    for (_, _, outcome), number in so_far.counts.items():
        outcomes[outcome] += number
    _sum_up("answers", seed, time.monotonic() - start, outcomes)
    if interrupted:
        _tell_rest("answers", seed, first + tried, first + count)
        raise interrupted
    return len(so_far.failures)


def _run(kind: str, count: int, seed: int, first: int, folder: Path) -> int:
    makers = {"files": _files, "lines": lambda: _lines(folder / "box"), "schedules": _schedules}
    attempt = {**makers, "exports": lambda: _exports(folder)}[kind]()
    outcomes: Counter[str] = Counter()
    failures = 0
    start = time.monotonic()
    for number in range(first, first + count):
        # A text as seed is hashed the same way everywhere, and numbers do not depend on those before them.
        subject, judge = attempt(random.Random(f"{seed}/{kind}/{number}"))
        try:
            outcomes[judge()] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                _sum_up(kind, seed, time.monotonic() - start, outcomes)
                _tell_rest(kind, seed, number, first + count)
                raise
            failures += 1
            outcomes["BROKEN"] += 1
            _tell(kind, seed, number, subject, error)
            if failures == _MOST_FAILURES:
                break
    _sum_up(kind, seed, time.monotonic() - start, outcomes)
    return failures


def _sum_up(kind: str, seed: int, seconds: float, outcomes: Counter[str]) -> None:
    ended = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common())
    total = sum(outcomes.values())
    rate = f"{total / seconds:.0f}/s"
    print(f"fuzz {kind}: seed {seed}, {total} tried in {seconds:.1f} s ({rate}): {ended}", flush=True)


def _tell_rest(kind: str, seed: int, number: int, end: int) -> None:
    print(f"interrupted; to continue: make fuzz KIND={kind} SEED={seed} FIRST={number} N={end - number}")


def _files() -> Try:
    def attempt(rng: random.Random) -> tuple[object, Callable[[], str]]:
        text = hosts_files.mutant(rng)
        return text, lambda: hosts_files.judge(text)

    return attempt


def _schedules() -> Try:
    def attempt(rng: random.Random) -> tuple[object, Callable[[], str]]:
        schedule = schedules.make(rng)
        return schedule, lambda: schedules.run(schedule)

    return attempt


def _exports(folder: Path) -> Try:
    def attempt(rng: random.Random) -> tuple[object, Callable[[], str]]:
        export = exports.make(rng)
        return export.image, lambda: exports.judge(export, folder)

    return attempt


def _lines(folder: Path) -> Try:
    box = command_lines.sandbox(folder)
    command_lines.check_right(box)

    def attempt(rng: random.Random) -> tuple[object, Callable[[], str]]:
        words, spoiled, text = command_lines.make(rng)
        subject = (words, "must be refused") if spoiled else words
        return subject, lambda: command_lines.judge(words, spoiled, text, box)

    return attempt


def _tell(kind: str, seed: int, number: int, subject: object, error: BaseException) -> None:
    print(f"\n--- broken: {kind}, seed {seed}, number {number}\n{subject!r}")
    traceback.print_exception(error, file=sys.stdout)
    print(f"again: make fuzz SEED={seed} FIRST={number} N=1 KIND={kind}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
