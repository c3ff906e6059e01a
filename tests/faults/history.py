"""The history of cases, a line each; its figures and its table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from tests.faults.model import Answer, Case, Fault
from tests.faults.verdict import Seen, broken


@dataclass(frozen=True)
class Outcome:
    """One line of the history."""

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

    def line(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def outcome_of(case: Case, answer: Answer, seen: Seen, commit: str, took: float, only: str = "") -> Outcome:
    """Return what is kept of a case."""
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
    """Return the outcomes of a history; lines cut off and keys of other versions are passed over."""
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
    """Return the number of the case that comes after the last one recorded of this seed."""
    return max((row.index for row in history if row.seed == seed and row.only == only), default=-1) + 1


def kind(line: str) -> str:
    """Return the name of a broken invariant without what was seen."""
    return line.partition(":")[0]


@dataclass(frozen=True)
class Figures:
    """What is told of many cases; seconds are of jobs that failed, as the answer to a fault."""

    run: int
    injected: int
    longest_notice: float
    longest_end: float
    orphans: int
    harmed: int
    wrong_cause: int
    broken: int
    lab: int

    def lines(self) -> list[str]:
        return [
            f"faults injected: {self.injected} of {self.run} cases",
            f"longest time to notice: {self.longest_notice:.1f} s; to end: {self.longest_end:.1f} s",
            f"cases that left something: {self.orphans} (target 0); harmed a bystander: {self.harmed} (0)",
            f"wrong root-cause lines: {self.wrong_cause} (0)",
            f"cases with a broken invariant: {self.broken} (0)",
            *([f"cases that broke the lab and tell nothing: {self.lab}"] if self.lab else []),
        ]


def figures(rows: Sequence[Outcome]) -> Figures:
    """Return the figures of these outcomes."""

    def count(test: Callable[[Outcome], bool]) -> int:
        return sum(map(test, rows))

    def has(name: str) -> Callable[[Outcome], bool]:
        return lambda row: any(kind(line) == name for line in row.broken)

    told = [row for row in rows if row.injected and row.state == "failed"]
    return Figures(
        run=len(rows),
        injected=count(lambda row: row.injected),
        longest_notice=max((row.notice_s or 0.0 for row in told), default=0.0),
        longest_end=max((row.end_s or 0.0 for row in told), default=0.0),
        orphans=count(has("left")),
        harmed=count(has("harmed")),
        wrong_cause=count(has("cause")),
        broken=count(lambda row: any(kind(line) != "lab" for line in row.broken)),
        lab=count(has("lab")),
    )


def table(faults: Sequence[Fault], rows: Sequence[Outcome]) -> list[str]:
    """Return the matrix with its results as a Markdown table, a row for each fault."""
    lines = [
        "| Fault | What is done | On | Phases | Cases | Noticed | Ended | Broken |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for fault in faults:
        own = [row for row in rows if row.fault == fault.name and row.injected]
        failed = [row for row in own if row.state == "failed"]
        kinds = sorted({kind(line) for row in own for line in row.broken})
        bad = sum(bool(row.broken) for row in own)
        cells = (
            f"`{fault.name}`",
            fault.about,
            fault.where,
            ", ".join(fault.answers),
            str(len(own)),
            _spread([row.notice_s for row in failed]),
            _spread([row.end_s for row in failed]),
            f"{bad}: {', '.join(kinds)}" if bad else "0" if own else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _spread(seconds: Iterable[float | None]) -> str:
    """The median and the longest, where there are any."""
    known = sorted(each for each in seconds if each is not None)
    if not known:
        return ""
    return f"{known[len(known) // 2]:.1f} s, at most {known[-1]:.1f}"
