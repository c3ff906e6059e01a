"""Results of acceptance items: how they are judged, and the Markdown report that they become."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["passed", "failed", "skipped"]
# Characters of a cell of the report.
_LONGEST = 300


class Failed(Exception):
    """The item does not work on this machine; the text is the reason."""


class Skipped(Exception):
    """The machine cannot run the item; the text is the reason."""


@dataclass(frozen=True)
class Result:
    """The result of one item.

    Args:
        title: what the item shows.
        detail: a measured value of a passed item, otherwise the reason.
        seconds: wall-clock time.
    """

    name: str
    title: str
    state: State
    detail: str
    seconds: float


def last_line(output: str) -> str:
    """Return the last line of an output that is not empty, without color codes; empty if there is none."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in output.splitlines()]
    return next((line for line in reversed(lines) if line), "")


def error_line(output: str) -> str:
    """Return the line of a failed program that names its error, otherwise its last line."""
    errors = [
        line.strip()
        for line in output.splitlines()
        if re.search(r"(Error|Exception)\b.*: \S|^toolkit: ", line) and "ChildFailedError" not in line
    ]
    return errors[0] if errors else last_line(output)


def judge_program(status: int, output: str, pattern: str) -> str:
    """Return the first match of a pattern in the output of a program that succeeded.

    Args:
        status: its exit status, negative for a signal.
        pattern: a regular expression for one line, which a program prints only if its own test passed.

    Raises:
        Failed: the program failed, or printed no such line.
    """
    if status:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        raise Failed(f"{how}: {error_line(output)}")
    found = re.search(pattern, output, re.MULTILINE)
    if found is None:
        raise Failed(f"the program succeeded without its result line; its last line: {last_line(output)}")
    return found[0].strip()


def judge_fault(status: int, output: str, names: Sequence[str], expected: str) -> str:
    """Return a sentence if a deliberate fault failed as expected and was recognized.

    Args:
        names: known errors found in the output, in their order.
        expected: the known error that the fault must be.

    Raises:
        Failed: the program succeeded, or another error was found first.
    """
    if not status:
        raise Failed("the program with the deliberate fault succeeded")
    if expected not in names:
        found = ", ".join(names) or "no known error"
        raise Failed(f"{found} was found instead of {expected} in: {error_line(output)}")
    if names[0] != expected:
        raise Failed(f"{names[0]} was found before {expected}")
    return f"recognized as {expected}"


def exit_status(results: Sequence[Result]) -> int:
    """Return 0 if an item passed and none failed, 1 if one failed, 3 if none could run."""
    states = {result.state for result in results}
    if "failed" in states:
        return 1
    return 0 if "passed" in states else 3


def markdown(facts: Mapping[str, str], results: Sequence[Result], rehearsal: bool) -> str:
    """Return the report.

    Args:
        facts: properties of the machine, by their names.
        rehearsal: the items ran without a GPU.
    """
    counts = {
        state: sum(result.state == state for result in results) for state in ("passed", "failed", "skipped")
    }
    total = sum(result.seconds for result in results)
    title = f"{'Rehearsal without a GPU' if rehearsal else 'GPU acceptance'}: {facts.get('GPUs', 'no GPU')}"
    lines = [
        f"#### {_cell(title)}",
        "",
        ", ".join(f"{count} {state}" for state, count in counts.items()) + f"; {total:.0f} s in total.",
        "",
        "| Machine | |",
        "| --- | --- |",
        *(f"| {_cell(name)} | {_cell(value)} |" for name, value in facts.items()),
        "",
        "| Item | Result | Seconds | Detail |",
        "| --- | --- | --- | --- |",
        *(
            f"| {_cell(result.title)} | {result.state} | {result.seconds:.0f} | {_cell(result.detail)} |"
            for result in results
        ),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Return text for one cell of a Markdown table."""
    plain = " ".join(text.split()).replace("|", "\\|")
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1]}…"
