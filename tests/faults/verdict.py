"""Observations of a case, and the invariants that they break."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.faults.model import Answer, Case


@dataclass
class Seen:
    """Observations of one case; seconds count from the fault, None if not seen."""

    injected: bool = False
    noticed: float | None = None
    ended: float | None = None
    exit: int | None = None
    state: str = ""
    cause: str = ""
    gone: dict[str, float | None] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    harmed: list[str] = field(default_factory=list)
    checkpoint: str = ""  # what is wrong with the newest complete one
    slow: list[str] = field(default_factory=list)  # commands over their limit
    trouble: list[str] = field(default_factory=list)  # what else went wrong for the toolkit afterwards
    lab: str = ""  # how the lab itself broke


def root_cause(text: str) -> str:
    """Return the line of a command's output that says why it failed, empty where none does.

    >>> root_cause("job a: 3 ranks\\njob a: failed after 3.1 s, exit code 1: rank 0 on box1 ended")
    'rank 0 on box1 ended'
    """
    lines = text.splitlines()
    for line in lines:
        if found := re.match(r"job \S+: (?:failed|lost|timeout|stopped)\b.*?exit code \S+: (.+)", line):
            return found[1]
    for line in lines:  # the report, which has the reason
        if found := re.match(r"\s*([^:]+: FAILED at .*)", line):
            return found[1]
    for number, line in enumerate(lines):
        if found := re.match(r"\s*FAILED  (.*)", line):
            rest = lines[number + 1].strip() if number + 1 < len(lines) else ""
            return f"{found[1]}: {rest}"
    for number, line in enumerate(lines):
        if line.startswith("toolkit: "):
            # Errors about several hosts list them below the first line.
            below = [text.strip() for text in lines[number + 1 :] if text.startswith("  ")][:3]
            return " | ".join([line.removeprefix("toolkit: "), *below])
    return ""


def broken(case: Case, answer: Answer, seen: Seen) -> list[str]:
    """Return the invariants that did not hold, each by its name and what was seen.

    Where the phase was not reached there was no fault, and nothing to say about an answer to it.
    """
    if seen.lab:
        return [f"lab: {seen.lab}"]
    answered = [*_answered(case, answer, seen), *_in_time(case, answer, seen)] if seen.injected else []
    found = [*answered, *(f"left: {line}" for line in seen.left)]
    found += [f"harmed: {line}" for line in seen.harmed]
    found += [f"checkpoint: {seen.checkpoint}"] if seen.checkpoint else []
    found += [f"limit: {line}" for line in seen.slow if seen.injected]
    return found + [f"afterwards: {line}" for line in seen.trouble]


def _answered(case: Case, answer: Answer, seen: Seen) -> list[str]:
    found = []
    status = "none" if seen.exit is None else str(seen.exit)
    # What a signal ends in its first or last moment says nothing itself; a shell tells the same of it.
    told = str(128 - seen.exit) if seen.exit is not None and seen.exit < 0 else status
    if not re.fullmatch(answer.exit, status) and not re.fullmatch(answer.exit, told):
        found.append(f"exit code: {status}, not {answer.exit}")
    if answer.states and seen.state not in answer.states:
        found.append(f"state: {seen.state or 'unknown'}, not {' or '.join(answer.states)}")
    if answer.cause and seen.exit not in (0, None):
        wanted = answer.cause.format(host=case.host, rank=case.rank)
        if not re.search(wanted, seen.cause):
            found.append(f"cause: {seen.cause or 'none said'}")
    return found


def _in_time(case: Case, answer: Answer, seen: Seen) -> list[str]:
    found = [*_late("notice", seen.noticed, answer.notice, answer.cause != "" and seen.exit != 0)]
    found += [*_late("end", seen.ended, answer.end, True)]
    for host, after in seen.gone.items():
        limit = answer.own if host == case.host and answer.own is not None else answer.gone
        found += _late(f"{host} clean", after, limit, True)
    return found


def _late(what: str, seconds: float | None, limit: float | None, due: bool) -> list[str]:
    if limit is None or not due:
        return []
    if seconds is None:
        return [f"late: {what} never"]
    return [f"late: {what} after {seconds:.1f} s, not {limit:g}"] if seconds > limit else []
