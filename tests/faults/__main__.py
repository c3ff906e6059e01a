"""make faults: cases one after another by seed and number, a history of them, the figures.

A second call continues after the last recorded case of the same seed. A repeated case gets another line.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from tests.faults.arena import Arena, commit
from tests.faults.catalogue import FAULTS, PHASES
from tests.faults.history import (
    Outcome,
    broken_table,
    figures,
    longest_table,
    next_index,
    not_in,
    outcome_of,
    parse_history,
    table,
)
from tests.faults.model import Case, Fault, case_at, combinations
from tests.faults.runner import Trial

PAGE, KEPT = Path("docs/internals/faults.md"), Path("docs/internals/faults-history.jsonl")
BEGIN, END = "<!-- written by make faults -->", "<!-- end -->"


def lacks(fault: Fault) -> bool:
    """Return whether a file that the fault needs is missing on this machine."""
    return bool(fault.needs) and not Path(fault.needs).is_file()


def try_case(arena: Arena, case: Case, only: str) -> Outcome:
    start = time.monotonic()
    trial = Trial(arena, case)
    return outcome_of(case, trial.answer, trial.run(), commit(), time.monotonic() - start, only)


def told(row: Outcome) -> str:
    """Return one line about a case, and one for each broken invariant."""
    seconds = f", ended after {row.end_s:.1f} s" if row.end_s is not None else ""
    how = f"exit {row.exit}, {row.state or 'no job'}{seconds}" if row.injected else "not reached"
    head = f"{row.index:4d}  {row.fault} in {row.phase} on {row.host} ({row.launcher}): {how}"
    head += f"; {row.took_s:.0f} s in all"
    return "\n".join([head, *(f"        {line}" for line in row.broken)])


def with_table(page: str, rows: list[Outcome]) -> str:
    """Return the page with the table and the figures of these outcomes in their place."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    seeds = ", ".join(map(str, sorted({row.seed for row in rows})))
    many = Counter(row.commit for row in rows).items()
    commits = ", ".join(f"{name} ({count})" for name, count in many)
    text = [
        f"Seeds: {seeds}. Tested commits, with the number of runs: {commits}.",
        "",
        *(f"- {line}" for line in figures(rows).lines()),
        "",
        *longest_table(rows),
        "",
        *broken_table(rows),
        "",
        *table(FAULTS, rows),
    ]
    return "\n".join([f"{head}{BEGIN}", "", *text, "", f"{END}{tail}"])


def with_runs(kept: str, rows: list[Outcome]) -> str:
    """Return the kept history, all its lines unchanged, and below them the runs that it does not contain."""
    new = not_in(parse_history(kept), rows)
    return kept + "".join(f"{row.line()}\n" for row in new)


def listing() -> str:
    lines = [f"{phase.name:12} {phase.about}" for phase in PHASES]
    lines.append("")
    for fault in FAULTS:
        lines.append(f"{fault.name:22} {fault.about}; in {', '.join(fault.answers)}")
    return "\n".join([*lines, "", f"{len(FAULTS)} faults, {len(combinations(FAULTS))} combinations"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("-n", type=int, default=50, help="how many cases of this seed in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="FAULT[/PHASE]", help="these alone; /PHASE: of all")
    parser.add_argument("--lab", default="lab", help="a practice cluster of three hosts that is up")
    parser.add_argument("--folder", type=Path, help="the lab's folder; .lab/LAB by default")
    parser.add_argument("--history", type=Path, default=Path(".faults/history.jsonl"))
    parser.add_argument("--list", action="store_true", help="print faults and phases, do nothing")
    parser.add_argument(
        "--again",
        type=int,
        action="append",
        default=[],
        metavar="CASE",
        help="run this case again (repeatable)",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="add new runs to docs/internals/faults-history.jsonl, rewrite docs/internals/faults.md",
    )
    return parser.parse_args()


def main() -> int:
    args = parse()
    if args.list:
        print(listing())
        return 0
    text = args.history.read_text() if args.history.exists() else ""
    history = parse_history(text)
    if args.report:
        KEPT.write_text(with_runs(KEPT.read_text(), history))
        kept = parse_history(KEPT.read_text())
        PAGE.write_text(with_table(PAGE.read_text(), kept))
        print("\n".join(figures(kept).lines()))
        return 0
    faults = [fault for fault in FAULTS if not lacks(fault)]
    for fault in FAULTS:
        if fault not in faults:
            print(f"{fault.name} is left out: {fault.needs} does not exist", file=sys.stderr)
    first = next_index(history, args.seed, args.only)
    numbers = args.again or range(first, args.n)
    cases = [case_at(faults, args.seed, index, args.only) for index in numbers]
    if cases:
        # If a signal ends it, it removes its clusters; behind nohup or & SIGINT would be ignored.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: sys.exit(143))
        args.history.parent.mkdir(parents=True, exist_ok=True)
        place = (args.folder or Path(".lab", args.lab)).resolve()
        with Arena(place / "hosts.yaml", place / "faults", args.lab) as arena:
            for case in cases:
                row = try_case(arena, case, args.only)
                with args.history.open("a") as file:
                    # The history is published, so it must not contain folders of this machine.
                    file.write(row.line().replace(f"{Path.cwd()}/", "") + "\n")
                history.append(row)
                print(told(row), flush=True)
    own = [row for row in history if row.seed == args.seed and row.only == args.only]
    found = figures(own)
    print(f"seed {args.seed}" + (f", {args.only}" if args.only else ""))
    print("\n".join(found.lines()))
    return 1 if found.unfixed else 0


if __name__ == "__main__":
    sys.exit(main())
