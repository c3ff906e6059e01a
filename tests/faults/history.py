"""The history of runs (one line per run), with its figures and tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace

from tests.faults.catalogue import PHASE
from tests.faults.model import Answer, Case, Fault
from tests.faults.verdict import Seen, broken

# The value of `fixed` if the fix was searched for and not found.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Outcome:
    """One run of a case: one line of the history.

    Args:
        commit: the commit that was tested.
        fixed: for a run that broke an invariant, the commit with the fix; empty if the run is not fixed.
    """

    commit: str
    seed: int
    index: int
    fault: str
    phase: str
    host: str
    launcher: str
    injected: bool
    notice_s: float | None
    end_s: float | None
    exit: int | None
    state: str
    cause: str
    broken: tuple[str, ...]
    took_s: float
    only: str = ""
    fixed: str = ""

    def line(self) -> str:
        data = asdict(self)
        return json.dumps({key: data[key] for key in data if key != "fixed" or self.fixed}, sort_keys=True)


def outcome_of(case: Case, answer: Answer, seen: Seen, commit: str, took: float, only: str = "") -> Outcome:
    """Return the outcome of a case for the history."""
    return Outcome(
        commit=commit,
        seed=case.seed,
        index=case.index,
        fault=case.fault,
        phase=case.phase,
        host=case.host,
        launcher=case.launcher,
        injected=seen.injected,
        notice_s=_round(seen.noticed),
        end_s=_round(seen.ended),
        exit=seen.exit,
        state=seen.state,
        cause=seen.cause[:300],
        broken=tuple(broken(case, answer, seen)),
        took_s=round(took, 1),
        only=only,
    )


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def parse_history(text: str) -> list[Outcome]:
    """Return the outcomes of a history; skip incomplete lines, and keys of other versions."""
    known = {each.name for each in fields(Outcome)}
    rows = []
    for line in text.splitlines():
        try:
            data = json.loads(line)
            kept = {key: value for key, value in data.items() if key in known}
            rows.append(Outcome(**{**kept, "broken": tuple(kept["broken"])}))
        except (ValueError, TypeError, KeyError):
            continue
    return rows


def next_index(history: Iterable[Outcome], seed: int, only: str = "") -> int:
    """Return the number of the case after the last recorded case of this seed."""
    return max((row.index for row in history if row.seed == seed and row.only == only), default=-1) + 1


def not_in(kept: Iterable[Outcome], rows: Iterable[Outcome]) -> list[Outcome]:
    """Return the runs in ``rows`` that ``kept`` does not contain; ignore the key ``fixed``.

    Each run is a separate line, so a run that passes never replaces a run that broke an invariant.
    """
    left = Counter(replace(row, fixed="") for row in kept)
    new = []
    for row in rows:
        run = replace(row, fixed="")
        if left[run]:
            left[run] -= 1
        else:
            new.append(row)
    return new


def kind(line: str) -> str:
    """Return the name of a broken invariant without the details."""
    return line.partition(":")[0]


@dataclass(frozen=True)
class Longest:
    """The longest times of all runs of one command in which the fault was injected.

    Args:
        notice: the run with the longest time from the fault to the error message, None without a message.
        failed: the run with the longest time from the fault to the end of a command that failed or hung.
        passed: the same for a command that exited with 0.
    """

    verb: str
    runs: int
    notice: Outcome | None
    failed: Outcome | None
    passed: Outcome | None


def longest(rows: Iterable[Outcome]) -> list[Longest]:
    """Return the longest times of each command, over all runs in which the fault was injected."""
    injected = [row for row in rows if row.injected]

    def most(own: Iterable[Outcome], seconds: Callable[[Outcome], float | None]) -> Outcome | None:
        return max(
            (row for row in own if seconds(row) is not None), key=lambda row: seconds(row) or 0, default=None
        )

    found = []
    for verb in dict.fromkeys(phase.verb for phase in PHASE.values()):
        own = [row for row in injected if PHASE[row.phase].verb == verb]
        failed = most((row for row in own if row.exit != 0), lambda row: row.end_s)
        passed = most((row for row in own if row.exit == 0), lambda row: row.end_s)
        found.append(Longest(verb, len(own), most(own, lambda row: row.notice_s), failed, passed))
    return found


def longest_table(rows: Iterable[Outcome]) -> list[str]:
    """Return the longest times of each command as a Markdown table; the case is in parentheses."""

    def cell(row: Outcome | None, seconds: float | None) -> str:
        return "" if row is None or seconds is None else f"{seconds:.1f} s ({row.index})"

    lines = [
        "| Command | Runs | Longest time to the error message "
        "| Longest time to a nonzero exit code | Longest time to exit code 0 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for each in longest(rows):
        cells = (
            "`image send`" if each.verb == "send" else f"`{each.verb}`",
            str(each.runs),
            cell(each.notice, each.notice and each.notice.notice_s),
            cell(each.failed, each.failed and each.failed.end_s),
            cell(each.passed, each.passed and each.passed.end_s),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def broken_table(rows: Iterable[Outcome]) -> list[str]:
    """Return a Markdown table of all runs that broke an invariant or the lab, with the commit of each fix."""
    lines = [
        "| Case | Tested commit | Fault and phase | Broken invariants | Commit of the fix |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in sorted((row for row in rows if row.broken), key=lambda row: (row.seed, row.only, row.index)):
        kinds = ", ".join(dict.fromkeys(map(kind, row.broken)))
        kinds = "none: broken practice cluster" if kinds == "lab" else kinds
        case = f"{row.index} (seed {row.seed}{', ' if row.only else ''}{row.only})"
        fault = f"`{row.fault}` in {row.phase}"
        lines.append(f"| {case} | {row.commit} | {fault} | {kinds} | {row.fixed or 'not fixed'} |")
    return lines


@dataclass(frozen=True)
class Figures:
    """The counts over many runs. A run that broke only the lab is counted in ``lab`` and not in ``broken``.

    Args:
        fixed: the broken runs whose fixing commit is known.
        unknown: the broken runs whose fix was not found.
        unfixed: the runs that broke an invariant or the lab and have no fix yet.
    """

    runs: int
    cases: int
    injected: int
    orphans: int
    harmed: int
    wrong_cause: int
    broken: int
    fixed: int
    unknown: int
    unfixed: int
    lab: int

    def lines(self) -> list[str]:
        unfixed = self.broken - self.fixed - self.unknown
        return [
            f"Runs: {self.runs} ({self.cases} different cases). "
            f"Runs with an injected fault: {self.injected}.",
            f"Runs that left a resource behind: {self.orphans} (target 0). "
            f"Runs that changed another cluster or process: {self.harmed} (target 0).",
            f"Runs with a wrong error message: {self.wrong_cause} (target 0).",
            f"Runs that broke an invariant: {self.broken} (target 0). Runs with a known fix: {self.fixed}, "
            f"with an unknown fix: {self.unknown}, without a fix: {unfixed}.",
            *([f"Runs that broke only the practice cluster: {self.lab}."] if self.lab else []),
        ]


def figures(rows: Sequence[Outcome]) -> Figures:
    """Return the figures of these runs."""

    def count(test: Callable[[Outcome], bool]) -> int:
        return sum(map(test, rows))

    def has(name: str) -> Callable[[Outcome], bool]:
        return lambda row: any(kind(line) == name for line in row.broken)

    bad = [row for row in rows if any(kind(line) != "lab" for line in row.broken)]
    return Figures(
        runs=len(rows),
        cases=len({(row.seed, row.only, row.index) for row in rows}),
        injected=count(lambda row: row.injected),
        orphans=count(has("left")),
        harmed=count(has("harmed")),
        wrong_cause=count(has("cause")),
        broken=len(bad),
        fixed=sum(row.fixed not in ("", UNKNOWN) for row in bad),
        unknown=sum(row.fixed == UNKNOWN for row in bad),
        unfixed=count(lambda row: bool(row.broken) and not row.fixed),
        lab=count(has("lab")),
    )


def table(faults: Sequence[Fault], rows: Sequence[Outcome]) -> list[str]:
    """Return the faults and their results as a Markdown table with one row for each fault.

    The times are the median and the maximum over all runs in which the command failed or hung.
    """
    lines = [
        "| Fault | Runs | Time to the error message, s (median/maximum) "
        "| Time to a nonzero exit code, s (median/maximum) |",
        "| --- | --- | --- | --- |",
    ]
    for fault in faults:
        own = [row for row in rows if row.fault == fault.name and row.injected]
        failed = [row for row in own if row.exit != 0]
        cells = (
            f"`{fault.name}`",
            str(len(own)),
            _spread([row.notice_s for row in failed]),
            _spread([row.end_s for row in failed]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _spread(seconds: Iterable[float | None]) -> str:
    """Return the median and the maximum, or an empty text if no run has a time."""
    known = sorted(each for each in seconds if each is not None)
    if not known:
        return ""
    return f"{known[len(known) // 2]:.1f}/{known[-1]:.1f}"
